//! The steps of a rotation, by a clock that is told.

use super::*;
use crate::admission::keeping::wait;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

const LIFETIME: Duration = Duration::from_hours(90 * 24);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn days(days: i64) -> Timestamp {
    at(days * 86_400)
}

/// A certificate without any cryptography: its authority is its number.
fn pair(number: usize, from: Timestamp, lifetime: Duration) -> Pair {
    Pair {
        authority: format!("ca{number}"),
        certificate: format!("cert{number}"),
        key: String::new(),
        names: vec!["w".into()],
        from,
        until: from + k8s_openapi::jiff::SignedDuration::try_from(lifetime).unwrap(),
    }
}

fn next(stored: Option<&Stored>, bundle: &str, since: Option<Timestamp>, now: Timestamp) -> Step {
    step(&Seen { stored, bundle, since, names: &["w".into()], now })
}

#[test]
fn one_certificate_follows_another() {
    assert_eq!(next(None, "", None, days(0)), Step::Begin);
    let first = Stored::new(pair(1, days(0), LIFETIME));
    assert_eq!(next(Some(&first), "", None, days(0)), Step::Announce("ca1\n".into()));
    assert_eq!(next(Some(&first), "ca1\n", Some(days(0)), days(0)), Step::Rest);
    assert_eq!(next(Some(&first), "ca1\n", Some(days(0)), days(59)), Step::Rest);
    assert_eq!(next(Some(&first), "ca1\n", Some(days(0)), days(60)), Step::Prepare);
    // The next authority is known before anything is signed by it.
    let both = first.preparing(pair(2, days(60), LIFETIME));
    assert_eq!(both.serving.certificate, "cert1");
    assert_eq!(next(Some(&both), "ca1\n", Some(days(0)), days(60)), Step::Announce("ca1\nca2\n".into()));
    assert_eq!(next(Some(&both), "ca1\nca2\n", None, days(60)), Step::Rest);
    assert_eq!(next(Some(&both), "ca1\nca2\n", Some(days(60)), at(60 * 86_400 + 59)), Step::Rest);
    assert_eq!(next(Some(&both), "ca1\nca2\n", Some(days(60)), at(60 * 86_400 + 60)), Step::Promote);
    // The old one stays known until its certificate has ended.
    let second = both.promoted();
    assert_eq!((second.serving.certificate.as_str(), &second.next), ("cert2", &None));
    assert_eq!(
        next(Some(&second), "ca1\nca2\n", Some(days(60)), days(61)),
        Step::Announce("ca2\nca1\n".into())
    );
    assert_eq!(next(Some(&second), "ca2\nca1\n", Some(days(61)), days(89)), Step::Rest);
    assert_eq!(next(Some(&second), "ca2\nca1\n", Some(days(61)), days(90)), Step::Announce("ca2\n".into()));
    assert_eq!(next(Some(&second), "ca2\n", Some(days(90)), days(90)), Step::Forget);
    let tidy = second.tidied(days(90));
    assert_eq!(tidy.retired, []);
    assert_eq!(next(Some(&tidy), "ca2\n", Some(days(90)), days(90)), Step::Rest);
}

#[test]
fn what_cannot_be_used_is_replaced_at_once() {
    let ended = Stored::new(pair(1, days(0), LIFETIME));
    assert_eq!(next(Some(&ended), "ca1\n", Some(days(0)), days(90)), Step::Begin);
    let prepared = ended.clone().preparing(pair(2, days(60), LIFETIME));
    assert_eq!(next(Some(&prepared), "ca1\n", None, days(90)), Step::Promote);
    assert_eq!(next(Some(&prepared), "ca1\n", None, days(200)), Step::Begin, "both have ended");
    // API servers call by another name now.
    let seen =
        Seen { stored: Some(&ended), bundle: "ca1\n", since: None, names: &["other".into()], now: days(1) };
    assert_eq!(step(&seen), Step::Begin);
    // Somebody took the authority out of the configuration.
    assert_eq!(next(Some(&ended), "", Some(days(0)), days(1)), Step::Announce("ca1\n".into()));
}

/// Something that happens in a cluster with an operator of several replicas.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes, in thousandths of a lifetime.
    Pass(u32),
    /// A replica looks; the leader also does what is next.
    Look(usize),
    /// Another replica leads, which remembers nothing.
    Elect(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_u32..20).prop_map(Event::Pass),
        8 => (0_usize..3).prop_map(Event::Look),
        1 => (0_usize..3).prop_map(Event::Elect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever a replica shows that has not ended, API servers accept: also those that learn of a change late, and also
    /// from a replica that learns of a change late.
    #[test]
    fn what_is_shown_is_known(events in prop::collection::vec(event(), 0..400), late in 0_u32..=1000) {
        let lifetime = Duration::from_hours(900);
        let late = wait(lifetime).mul_f64(f64::from(late) / 1000.0);
        let mut now = at(0);
        let mut made = 0;
        let mut stored: Option<Stored> = None;
        let mut bundles: Vec<(Timestamp, String)> = vec![(now, String::new())];
        let mut recent_failures: Option<(String, Timestamp)> = None;
        let mut shown: [Option<Pair>; 3] = [None, None, None];
        let mut leader = 0;
        let mut known_since: Option<Timestamp> = None;
        for event in events {
            match event {
                Event::Pass(part) => now += k8s_openapi::jiff::SignedDuration::try_from(lifetime * part / 1000).unwrap(),
                Event::Elect(who) => { leader = who; recent_failures = None; }
                Event::Look(who) => {
                    if who == leader {
                        let bundle = bundles.last().unwrap().1.clone();
                        let since = match &recent_failures { Some((known, since)) if *known == bundle => *since, _ => now };
                        recent_failures = Some((bundle.clone(), since));
                        let seen = Seen { stored: stored.as_ref(), bundle: &bundle, since: Some(since), names: &["w".into()], now };
                        let decided = step(&seen);
                        let mut issue = || { made += 1; pair(made, now, lifetime) };
                        stored = match (decided, stored) {
                            (Step::Announce(bundle), stored) => { bundles.push((now, bundle)); stored }
                            (Step::Rest, stored) => stored,
                            (Step::Prepare, Some(s)) => Some(s.preparing(issue())),
                            (Step::Promote, Some(s)) => {
                                // Nobody looked for so long that what was shown has ended: as good as a beginning.
                                if s.serving.until <= now { known_since = None; }
                                Some(s.promoted())
                            }
                            (Step::Forget, Some(s)) => Some(s.tidied(now)),
                            (Step::Begin, _) => { known_since = None; Some(Stored::new(issue())) }
                            (other, None) => panic!("{other:?} of nothing"),
                        };
                    }
                    shown[who] = stored.as_ref().map(|s| s.serving.clone());
                }
            }
            // After a beginning there is a moment in which nobody can know; from then on there is none.
            let latest = &bundles.last().unwrap().1;
            if known_since.is_none() && stored.as_ref().is_some_and(|s| latest.contains(&s.serving.authority)) {
                known_since = Some(now);
            }
            let Some(begun) = known_since else { continue };
            let then = now - k8s_openapi::jiff::SignedDuration::try_from(late).unwrap();
            if then < begun { continue }
            let seen_late = &bundles.iter().rev().find(|(since, _)| *since <= then).unwrap().1;
            for pair in shown.iter().flatten().filter(|p| now < p.until) {
                for bundle in [latest, seen_late] {
                    prop_assert!(bundle.lines().any(|l| l == pair.authority), "{pair:?} is not in {bundle:?} at {now}");
                }
            }
        }
    }
}
