//! The next step in every situation.

use super::super::{
    authorities::{Authorities, Authority},
    policy::{CertificateView, Lifetimes, SecretView, State, Step, Wanted, next_step},
    wanted::{AGENT, GATEWAY, ITEM, SCHEDULER, wanted},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LIFETIMES: Lifetimes = Lifetimes { certificate: Duration::from_hours(24) };

fn at(hours: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    start.checked_add(SignedDuration::from_hours(hours)).unwrap()
}

fn authority(name: &str, from: i64) -> Authority {
    let (name, until) = (name.to_owned(), at(from + 8 * 24));
    Authority { certificate: name.clone(), name, key: "key".into(), from: at(from), until }
}

fn signing_a() -> Authorities {
    Authorities::default().with_signing(authority("A", 0))
}

/// Secrets with certificates of one authority, from an hour on.
fn secrets(wanted: &Wanted, issuer: &str, trusted: &[&str], from: i64) -> BTreeMap<&'static str, SecretView> {
    let certificate = |identity: &_| CertificateView {
        issuer: issuer.into(),
        identity: Clone::clone(identity),
        from: at(from),
        until: at(from + 24),
    };
    let secret = |items: &BTreeMap<_, _>| SecretView {
        trusted: trusted.iter().map(|name| (*name).to_owned()).collect(),
        certificates: items
            .iter()
            .map(|(item, identity)| (String::clone(item), certificate(identity)))
            .collect(),
        has_leftovers: false,
    };
    wanted.iter().map(|(name, items)| (*name, secret(items))).collect()
}

fn step(
    authorities: &Authorities,
    wanted: &Wanted,
    secrets: &BTreeMap<&'static str, SecretView>,
    now: i64,
) -> Step {
    next_step(&State { authorities, wanted, secrets, now: at(now), lifetimes: LIFETIMES })
}

fn write(secret: &'static str, renew: &[&str]) -> Step {
    Step::Write { secret, renew: renew.iter().map(|item| (*item).to_owned()).collect() }
}

#[test]
fn first_authority_signs_at_once() {
    let wanted = wanted("ml", ["shop"]);
    assert_eq!(step(&Authorities::default(), &wanted, &BTreeMap::new(), 0), Step::Create);
    assert_eq!(step(&signing_a(), &wanted, &BTreeMap::new(), 0), write(AGENT, &["agent-shop"]));
    assert_eq!(step(&signing_a(), &wanted, &secrets(&wanted, "A", &["A"], 0), 1), Step::Wait);
}

#[test]
fn certificates_are_renewed_after_two_thirds() {
    let wanted = wanted("ml", ["shop"]);
    let mut secrets = secrets(&wanted, "A", &["A"], 0);
    assert_eq!(step(&signing_a(), &wanted, &secrets, 15), Step::Wait);
    assert_eq!(step(&signing_a(), &wanted, &secrets, 16), write(AGENT, &["agent-shop"]));
    // Only those that are due.
    let fresh = secrets[AGENT].certificates["agent-shop"].clone();
    let fresh = CertificateView { from: at(16), until: at(40), ..fresh };
    secrets.get_mut(AGENT).unwrap().certificates.insert("agent-shop".into(), fresh);
    assert_eq!(step(&signing_a(), &wanted, &secrets, 16), write(GATEWAY, &[ITEM]));
}

type Damage = fn(&mut BTreeMap<&'static str, SecretView>);

#[test]
fn changed_and_damaged_secrets_are_written_again() {
    let both = wanted("ml", ["iris", "shop"]);
    let good = secrets(&both, "A", &["A"], 0);
    let damages: [(Damage, Step); 6] = [
        (|secrets| drop(secrets.remove(GATEWAY)), write(GATEWAY, &[ITEM])),
        // A key of another certificate, or text that is no certificate.
        (
            |secrets| drop(secrets.get_mut(AGENT).unwrap().certificates.remove("agent-iris")),
            write(AGENT, &["agent-iris"]),
        ),
        (|secrets| secrets.get_mut(SCHEDULER).unwrap().trusted.clear(), write(SCHEDULER, &[])),
        // An authority of others.
        (
            |secrets| secrets.get_mut(SCHEDULER).unwrap().trusted.extend(["Z".to_owned()]),
            write(SCHEDULER, &[]),
        ),
        (|secrets| secrets.get_mut(GATEWAY).unwrap().has_leftovers = true, write(GATEWAY, &[])),
        (
            |secrets| {
                let held = secrets.get_mut(GATEWAY).unwrap().certificates.get_mut(ITEM).unwrap();
                held.identity.uri = "spiffe://ml.gantry/gantry/role/operator".into();
            },
            write(GATEWAY, &[ITEM]),
        ),
    ];
    for (damage, expected) in damages {
        let mut secrets = good.clone();
        damage(&mut secrets);
        assert_eq!(step(&signing_a(), &both, &secrets, 1), expected);
    }
    // A Server that is deleted.
    assert_eq!(step(&signing_a(), &wanted("ml", ["shop"]), &good, 1), write(AGENT, &[]));
}

#[test]
fn next_authority_signs_when_all_parts_had_time_to_read_it() {
    let wanted = wanted("ml", []);
    let due = 8 * 24 * 2 / 3;
    let known = secrets(&wanted, "A", &["A"], due - 1);
    assert_eq!(step(&signing_a(), &wanted, &known, due), Step::Prepare);
    let prepared = signing_a().with_next(authority("B", due));
    assert_eq!(step(&prepared, &wanted, &known, due), write(AGENT, &[]), "trusted before it signs");
    let both = secrets(&wanted, "A", &["A", "B"], due - 1);
    assert_eq!(step(&prepared, &wanted, &both, due), Step::Announce);
    let announced = prepared.announced_at(at(due));
    assert_eq!(step(&announced, &wanted, &both, due + 2), Step::Wait);
    assert_eq!(step(&announced, &wanted, &both, due + 3), Step::Promote);
    // A Secret that lost it in between starts no second wait, but is written first.
    let mut partly = both.clone();
    partly.insert(GATEWAY, known[GATEWAY].clone());
    assert_eq!(step(&announced, &wanted, &partly, due + 6), write(GATEWAY, &[]));
    // The clock was set back.
    let later = announced.clone().announced_at(at(due + 2));
    assert_eq!(step(&later, &wanted, &both, due + 1), Step::Announce);

    let promoted = announced.promoted();
    assert_eq!(promoted.signer().unwrap().name, "B");
    assert_eq!(promoted.names(), BTreeSet::from(["A", "B"]), "what A signed is still accepted");
    assert_eq!(step(&promoted, &wanted, &both, due + 6), write(GATEWAY, &[ITEM]));
}

#[test]
fn retired_authority_is_trusted_until_it_expires() {
    let wanted = wanted("ml", []);
    let authorities = signing_a().with_next(authority("B", 150)).promoted();
    let secrets = secrets(&wanted, "B", &["A", "B"], 185);
    assert_eq!(step(&authorities, &wanted, &secrets, 191), Step::Wait);
    assert_eq!(step(&authorities, &wanted, &secrets, 192), Step::Prune);
    assert_eq!(authorities.clone().pruned(at(191)), authorities);
    let pruned = authorities.pruned(at(192));
    assert_eq!(pruned.names(), BTreeSet::from(["B"]));
    assert_eq!(step(&pruned, &wanted, &secrets, 192), write(AGENT, &[]));
}

#[test]
fn lost_authorities_are_replaced_without_cutting_off_a_part() {
    let wanted = wanted("ml", []);
    let known = secrets(&wanted, "A", &["A"], 0);
    assert_eq!(step(&Authorities::default(), &wanted, &known, 1), Step::Prepare);
    // Expired certificates are worth nothing.
    assert_eq!(step(&Authorities::default(), &wanted, &known, 25), Step::Create);
}

#[test]
fn expired_authority_is_replaced_at_once() {
    let wanted = wanted("ml", []);
    let known = secrets(&wanted, "A", &["A"], 160);
    assert_eq!(step(&signing_a(), &wanted, &known, 8 * 24), Step::Create);
    let with_next = signing_a().with_next(authority("B", 100));
    assert_eq!(step(&with_next, &wanted, &known, 8 * 24), Step::Promote);
}

#[test]
fn authority_of_a_clock_that_was_years_ahead_is_replaced() {
    let wanted = wanted("ml", []);
    let ahead = Authorities::default().with_signing(authority("A", 9000));
    let known = secrets(&wanted, "A", &["A"], 9000);
    assert_eq!(step(&ahead, &wanted, &known, 0), Step::Create);
    let next = signing_a().with_next(authority("B", 9000));
    assert_eq!(step(&next, &wanted, &secrets(&wanted, "A", &["A", "B"], 0), 1), Step::Prepare);
}
