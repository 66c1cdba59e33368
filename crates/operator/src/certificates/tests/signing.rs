//! Real certificates in real handshakes, and what text shows of them.

use super::super::{
    authorities::Authorities,
    policy::{Identity, Step},
    secrets::{files, recovered, view},
    sign,
    wanted::{AGENT, BUNDLE, GATEWAY, ITEM, SCHEDULER, agent_item, operator, wanted},
};
use gantry_tls::CertificateInfo;
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LIFETIME: Duration = Duration::from_hours(24);

fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap()
}

fn authorities() -> Authorities {
    Authorities::default().with_signing(sign::authority("ml", now(), LIFETIME * 8).unwrap())
}

fn secret(authorities: &Authorities, items: &BTreeMap<String, Identity>) -> Secret {
    let renew = items.keys().cloned().collect();
    let data = files(None, authorities, items, &renew, now(), LIFETIME).unwrap();
    Secret { data: Some(data), ..Secret::default() }
}

#[test]
fn view_of_a_written_secret_has_the_wanted_items() {
    let authorities = authorities();
    for (name, items) in wanted("ml", ["shop", "iris"]) {
        let view = view(&secret(&authorities, &items));
        assert_eq!(view.trusted, BTreeSet::from([authorities.signer().unwrap().name.clone()]), "{name}");
        assert!(!view.has_leftovers);
        let held: BTreeMap<String, Identity> =
            view.certificates.iter().map(|(item, held)| (item.clone(), held.identity.clone())).collect();
        assert_eq!(held, items);
        for held in view.certificates.values() {
            assert_eq!(held.issuer, authorities.signer().unwrap().name);
            assert_eq!((held.from, held.until), (now_of(held.from), held.from + LIFETIME));
        }
    }
}

/// The second of issue may have passed.
fn now_of(from: Timestamp) -> Timestamp {
    assert!(now().duration_since(from).as_secs() < 60);
    from
}

#[test]
fn damaged_files_are_missing_from_the_view() {
    let authorities = authorities();
    let good = secret(&authorities, &wanted("ml", ["shop", "iris"])[AGENT]);
    let (shop, iris) = (agent_item("shop"), agent_item("iris"));
    let damaged = |change: &dyn Fn(&mut BTreeMap<String, ByteString>)| {
        let mut secret = good.clone();
        change(secret.data.as_mut().unwrap());
        view(&secret)
    };
    let text = |text: &str| ByteString(text.as_bytes().to_vec());
    for change in [
        &|files: &mut BTreeMap<_, _>| drop(files.insert(format!("{shop}.crt"), text("no certificate"))),
        &|files: &mut BTreeMap<_, _>| {
            drop(files.insert(format!("{shop}.key"), files[&format!("{iris}.key")].clone()));
        },
        &|files: &mut BTreeMap<_, _>| drop(files.remove(&format!("{shop}.key"))),
    ] as [&dyn Fn(&mut BTreeMap<String, ByteString>); 3]
    {
        let view = damaged(change);
        assert_eq!(view.certificates.keys().collect::<Vec<_>>(), [&iris]);
        assert!(view.has_leftovers);
    }
    assert!(damaged(&|files| drop(files.insert(BUNDLE.into(), text("x")))).trusted.is_empty());
    assert!(damaged(&|files| drop(files.insert("more".into(), text("x")))).has_leftovers);
}

#[test]
fn certificates_that_stay_keep_their_files() {
    let authorities = authorities();
    let items = &wanted("ml", ["shop", "iris"])[AGENT];
    let before = secret(&authorities, items);
    let (shop, iris) = (agent_item("shop"), agent_item("iris"));
    let renew = BTreeSet::from([shop.clone()]);
    let after = files(Some(&before), &authorities, items, &renew, now(), LIFETIME).unwrap();
    let before = before.data.unwrap();
    for (item, is_same) in [(iris, true), (shop, false)] {
        for file in [format!("{item}.crt"), format!("{item}.key")] {
            assert_eq!(before[&file] == after[&file], is_same, "{file}");
        }
    }
}

#[test]
fn recovered_authorities_are_those_that_every_secret_has() {
    let (one, other) = (authorities(), authorities());
    let both = one.clone().with_next(other.signing.clone().unwrap());
    let items = wanted("ml", []);
    let secrets = [secret(&both, &items[GATEWAY]), secret(&one, &items[SCHEDULER])];
    let found = recovered(&secrets.each_ref(), now());
    assert_eq!(
        found.iter().map(|found| &found.name).collect::<Vec<_>>(),
        [&one.signing.as_ref().unwrap().name]
    );
    let lost = Authorities::default().with_retired(found);
    assert_eq!(lost.bundle().trim(), one.bundle().trim(), "as PEM");
    assert!(recovered(&secrets.each_ref(), now() + LIFETIME * 9).is_empty());
}

#[test]
fn authority_only_signs_and_leaves_have_one_use() {
    let authorities = authorities();
    let info = CertificateInfo::read_all("", authorities.bundle().as_bytes()).unwrap();
    assert!(
        info[0].subject.contains("ml ") && info[0].uris.is_empty() && info[0].hosts.is_empty(),
        "{info:?}"
    );
    let scheduler = &wanted("ml", [])[SCHEDULER][ITEM];
    assert!(scheduler.hosts.contains(&"seldon-scheduler.ml".to_owned()), "{scheduler:?}");
    let signed = sign::certificate(&authorities, scheduler, now(), LIFETIME * 100).unwrap();
    let info = CertificateInfo::read_all("", signed.certificate.as_bytes()).unwrap();
    assert_eq!(info[0].not_after, authorities.signer().unwrap().until.as_second(), "not after its authority");
}

#[test]
fn debug_output_and_messages_have_no_key() {
    let authorities = authorities();
    let signed = sign::certificate(&authorities, &operator("ml"), now(), LIFETIME).unwrap();
    let shown = format!("{authorities:?} {signed:?} {:?}", Step::Create);
    assert!(shown.contains("CN=ml"), "{shown}");
    for secret in [&signed.key, &authorities.signer().unwrap().key] {
        let line = secret.lines().nth(1).unwrap();
        assert!(!shown.contains(line));
    }
    assert!(!shown.contains("PRIVATE"), "{shown}");
    let retired = serde_json::to_string(
        &authorities.clone().with_signing(sign::authority("ml", now(), LIFETIME).unwrap()),
    );
    let key = authorities.signer().unwrap().key.lines().nth(1).unwrap().to_owned();
    assert!(!retired.unwrap().contains(&key), "the key of a retired authority is discarded");
}
