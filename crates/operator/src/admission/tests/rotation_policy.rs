//! Rotation steps under a simulated clock.

use super::*;
use crate::admission::rotation_policy::propagation_delay;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

const LIFETIME: Duration = Duration::from_hours(90 * 24);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn days(days: i64) -> Timestamp {
    at(days * 86_400)
}

/// A certificate without cryptography: its CA is its number.
fn certificate(number: usize, from: Timestamp, lifetime: Duration) -> IssuedCertificate {
    IssuedCertificate {
        authority: format!("ca{number}"),
        certificate: format!("cert{number}"),
        key: String::new(),
        names: vec!["w".into()],
        from,
        until: from + k8s_openapi::jiff::SignedDuration::try_from(lifetime).unwrap(),
    }
}

fn next(
    stored: Option<&StoredCertificates>,
    bundle: &str,
    since: Option<Timestamp>,
    now: Timestamp,
) -> RotationStep {
    next_step(&RotationState { stored, bundle, since, names: &["w".into()], now })
}

#[test]
fn next_ca_is_published_before_its_certificate_is_served() {
    assert_eq!(next(None, "", None, days(0)), RotationStep::Issue);
    let first = StoredCertificates::new(certificate(1, days(0), LIFETIME));
    assert_eq!(next(Some(&first), "", None, days(0)), RotationStep::PublishBundle("ca1\n".into()));
    assert_eq!(next(Some(&first), "ca1\n", Some(days(0)), days(0)), RotationStep::Wait);
    assert_eq!(next(Some(&first), "ca1\n", Some(days(0)), days(59)), RotationStep::Wait);
    assert_eq!(next(Some(&first), "ca1\n", Some(days(0)), days(60)), RotationStep::PrepareNext);
    // The next CA is published before its certificate is served.
    let both = first.with_next(certificate(2, days(60), LIFETIME));
    assert_eq!(both.serving.certificate, "cert1");
    assert_eq!(
        next(Some(&both), "ca1\n", Some(days(0)), days(60)),
        RotationStep::PublishBundle("ca1\nca2\n".into())
    );
    assert_eq!(next(Some(&both), "ca1\nca2\n", None, days(60)), RotationStep::Wait);
    assert_eq!(next(Some(&both), "ca1\nca2\n", Some(days(60)), at(60 * 86_400 + 59)), RotationStep::Wait);
    assert_eq!(next(Some(&both), "ca1\nca2\n", Some(days(60)), at(60 * 86_400 + 60)), RotationStep::Promote);
    // The old CA stays published until its certificate expires.
    let second = both.promoted();
    assert_eq!((second.serving.certificate.as_str(), &second.next), ("cert2", &None));
    assert_eq!(
        next(Some(&second), "ca1\nca2\n", Some(days(60)), days(61)),
        RotationStep::PublishBundle("ca2\nca1\n".into())
    );
    assert_eq!(next(Some(&second), "ca2\nca1\n", Some(days(61)), days(89)), RotationStep::Wait);
    assert_eq!(
        next(Some(&second), "ca2\nca1\n", Some(days(61)), days(90)),
        RotationStep::PublishBundle("ca2\n".into())
    );
    assert_eq!(next(Some(&second), "ca2\n", Some(days(90)), days(90)), RotationStep::PruneRetired);
    let pruned = second.pruned(days(90));
    assert_eq!(pruned.retired, []);
    assert_eq!(next(Some(&pruned), "ca2\n", Some(days(90)), days(90)), RotationStep::Wait);
}

#[test]
fn invalid_certificate_is_replaced_immediately() {
    let ended = StoredCertificates::new(certificate(1, days(0), LIFETIME));
    assert_eq!(next(Some(&ended), "ca1\n", Some(days(0)), days(90)), RotationStep::Issue);
    let prepared = ended.clone().with_next(certificate(2, days(60), LIFETIME));
    assert_eq!(next(Some(&prepared), "ca1\n", None, days(90)), RotationStep::Promote);
    assert_eq!(next(Some(&prepared), "ca1\n", None, days(200)), RotationStep::Issue, "both have expired");
    // The host name has changed.
    let seen = RotationState {
        stored: Some(&ended),
        bundle: "ca1\n",
        since: None,
        names: &["other".into()],
        now: days(1),
    };
    assert_eq!(next_step(&seen), RotationStep::Issue);
    // The CA was removed from the webhook configuration.
    assert_eq!(next(Some(&ended), "", Some(days(0)), days(1)), RotationStep::PublishBundle("ca1\n".into()));
}

/// An event in an operator with several replicas.
#[derive(Clone, Debug)]
enum Event {
    /// Advance time by thousandths of a lifetime.
    Advance(u32),
    /// A replica reconciles.
    Reconcile(usize),
    /// Another replica becomes leader, without state.
    Elect(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_u32..20).prop_map(Event::Advance),
        8 => (0_usize..3).prop_map(Event::Reconcile),
        1 => (0_usize..3).prop_map(Event::Elect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// API servers accept every unexpired certificate that a replica serves, also when either side lags behind.
    #[test]
    fn served_certificate_is_always_trusted(events in prop::collection::vec(event(), 0..400), late in 0_u32..=1000) {
        let lifetime = Duration::from_hours(900);
        let late = propagation_delay(lifetime).mul_f64(f64::from(late) / 1000.0);
        let mut now = at(0);
        let mut issued = 0;
        let mut stored: Option<StoredCertificates> = None;
        let mut bundles: Vec<(Timestamp, String)> = vec![(now, String::new())];
        let mut observed: Option<(String, Timestamp)> = None;
        let mut served: [Option<IssuedCertificate>; 3] = [None, None, None];
        let mut leader = 0;
        let mut known_since: Option<Timestamp> = None;
        for event in events {
            match event {
                Event::Advance(part) => now += k8s_openapi::jiff::SignedDuration::try_from(lifetime * part / 1000).unwrap(),
                Event::Elect(replica) => { leader = replica; observed = None; }
                Event::Reconcile(replica) => {
                    if replica == leader {
                        let bundle = bundles.last().unwrap().1.clone();
                        let since = match &observed { Some((known, since)) if *known == bundle => *since, _ => now };
                        observed = Some((bundle.clone(), since));
                        let seen = RotationState { stored: stored.as_ref(), bundle: &bundle, since: Some(since), names: &["w".into()], now };
                        let decided = next_step(&seen);
                        let mut issue = || { issued += 1; certificate(issued, now, lifetime) };
                        stored = match (decided, stored) {
                            (RotationStep::PublishBundle(bundle), stored) => { bundles.push((now, bundle)); stored }
                            (RotationStep::Wait, stored) => stored,
                            (RotationStep::PrepareNext, Some(s)) => Some(s.with_next(issue())),
                            (RotationStep::Promote, Some(s)) => {
                                // The served certificate has expired: same as a new start.
                                if s.serving.until <= now { known_since = None; }
                                Some(s.promoted())
                            }
                            (RotationStep::PruneRetired, Some(s)) => Some(s.pruned(now)),
                            (RotationStep::Issue, _) => { known_since = None; Some(StoredCertificates::new(issue())) }
                            (other, None) => panic!("{other:?} without stored certificates"),
                        };
                    }
                    served[replica] = stored.as_ref().map(|s| s.serving.clone());
                }
            }
            // Only after the first certificate is there a window without trust.
            let latest = &bundles.last().unwrap().1;
            if known_since.is_none() && stored.as_ref().is_some_and(|s| latest.contains(&s.serving.authority)) {
                known_since = Some(now);
            }
            let Some(begun) = known_since else { continue };
            let then = now - k8s_openapi::jiff::SignedDuration::try_from(late).unwrap();
            if then < begun { continue }
            let seen_late = &bundles.iter().rev().find(|(since, _)| *since <= then).unwrap().1;
            for pair in served.iter().flatten().filter(|p| now < p.until) {
                for bundle in [latest, seen_late] {
                    prop_assert!(bundle.lines().any(|l| l == pair.authority), "{pair:?} is not in {bundle:?} at {now}");
                }
            }
        }
    }
}
