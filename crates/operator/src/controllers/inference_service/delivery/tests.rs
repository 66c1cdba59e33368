//! What the Deployments run in each situation of a rollout.

use super::*;
use Content::{Kept, Latest, Moved, Nothing};

const SERVING: bool = true;
const STARTING: bool = false;

/// The rollout of `stable`; other versions that it keeps, and those that failed.
const fn of<'a>(stable: &'a str, retained: &'a [&'a str], failed: &'a [&'a str]) -> Known<'a> {
    Known { stable: Some(stable), retained, failed }
}

#[test]
fn deployments_follow_the_rollout() {
    let deploying = Some(Known { stable: None, retained: &["b"], failed: &[] });
    for (situation, desired, primary, secondary, is_serving, rollout, expected) in [
        ("new service", "a", None, None, STARTING, None, (Latest, Nothing)),
        ("new service, no version ready", "b", Some("b"), None, STARTING, deploying, (Latest, Nothing)),
        (
            "no version was ever ready, another spec",
            "c",
            Some("b"),
            None,
            STARTING,
            deploying,
            (Latest, Nothing),
        ),
        ("rest", "a", Some("a"), None, SERVING, Some(of("a", &[], &[])), (Latest, Nothing)),
        ("rest, rollout unknown", "a", Some("a"), None, SERVING, None, (Latest, Nothing)),
        ("changed spec, rollout unknown", "b", Some("a"), None, SERVING, None, (Kept, Nothing)),
        ("under analysis, rollout unknown", "b", Some("a"), Some("b"), SERVING, None, (Kept, Kept)),
        (
            "changed spec, not in the rollout yet",
            "b",
            Some("a"),
            None,
            SERVING,
            Some(of("a", &[], &[])),
            (Kept, Latest),
        ),
        ("under analysis", "b", Some("a"), Some("b"), SERVING, Some(of("a", &["b"], &[])), (Kept, Latest)),
        (
            "under analysis, stable pods restart",
            "b",
            Some("a"),
            Some("b"),
            STARTING,
            Some(of("a", &["b"], &[])),
            (Kept, Latest),
        ),
        (
            "another spec, the first is rolled back",
            "c",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("a", &["b"], &[])),
            (Kept, Kept),
        ),
        (
            "another spec, the first is gone",
            "c",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("a", &["c"], &[])),
            (Kept, Latest),
        ),
        (
            "rolled back, gateways do not know yet",
            "b",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("a", &["b"], &["b"])),
            (Kept, Kept),
        ),
        ("rolled back", "b", Some("a"), Some("b"), SERVING, Some(of("a", &[], &["b"])), (Kept, Nothing)),
        (
            "spec of the stable version, cancelled",
            "a",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("a", &["b"], &[])),
            (Latest, Kept),
        ),
        (
            "spec of the stable version",
            "a",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("a", &[], &[])),
            (Latest, Nothing),
        ),
        ("promoted, bake", "b", Some("a"), Some("b"), SERVING, Some(of("b", &["a"], &[])), (Kept, Kept)),
        (
            "promoted, bake is over",
            "b",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("b", &[], &[])),
            (Latest, Kept),
        ),
        (
            "the first one starts",
            "b",
            Some("b"),
            Some("b"),
            STARTING,
            Some(of("b", &[], &[])),
            (Latest, Kept),
        ),
        (
            "the first one serves",
            "b",
            Some("b"),
            Some("b"),
            SERVING,
            Some(of("b", &[], &[])),
            (Latest, Nothing),
        ),
        (
            "another spec while the first one starts",
            "c",
            Some("b"),
            Some("b"),
            STARTING,
            Some(of("b", &["c"], &[])),
            (Kept, Kept),
        ),
        (
            "another spec when the first one serves",
            "c",
            Some("b"),
            Some("b"),
            SERVING,
            Some(of("b", &["c"], &[])),
            (Kept, Latest),
        ),
        (
            "returned in the bake",
            "b",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("a", &[], &["b"])),
            (Kept, Nothing),
        ),
        (
            "another spec in the bake",
            "c",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("b", &["a"], &[])),
            (Kept, Kept),
        ),
        (
            "another spec after the bake",
            "c",
            Some("a"),
            Some("b"),
            SERVING,
            Some(of("b", &["c"], &[])),
            (Latest, Kept),
        ),
        (
            "it is under analysis",
            "c",
            Some("c"),
            Some("b"),
            SERVING,
            Some(of("b", &["c"], &[])),
            (Latest, Kept),
        ),
        (
            "it is rolled back, gateways do not know yet",
            "c",
            Some("c"),
            Some("b"),
            SERVING,
            Some(of("b", &["c"], &["c"])),
            (Kept, Kept),
        ),
        ("it was rolled back", "c", Some("c"), Some("b"), SERVING, Some(of("b", &[], &["c"])), (Moved, Kept)),
        (
            "it was rolled back after another one",
            "d",
            Some("c"),
            Some("b"),
            SERVING,
            Some(of("b", &[], &["d"])),
            (Moved, Kept),
        ),
        ("moved, starts", "c", Some("b"), Some("b"), STARTING, Some(of("b", &[], &["c"])), (Kept, Kept)),
        ("moved, serves", "c", Some("b"), Some("b"), SERVING, Some(of("b", &[], &["c"])), (Kept, Nothing)),
        (
            "it was promoted, bake",
            "c",
            Some("c"),
            Some("b"),
            SERVING,
            Some(of("c", &["b"], &[])),
            (Latest, Kept),
        ),
        ("it was promoted", "c", Some("c"), Some("b"), SERVING, Some(of("c", &[], &[])), (Latest, Nothing)),
        (
            "stable Deployment deleted by hand",
            "a",
            None,
            None,
            STARTING,
            Some(of("a", &[], &[])),
            (Latest, Nothing),
        ),
        (
            "it was deleted during a rollout",
            "b",
            None,
            Some("b"),
            STARTING,
            Some(of("a", &["b"], &[])),
            (Latest, Latest),
        ),
    ] {
        assert_eq!(contents(desired, primary, secondary, is_serving, rollout), expected, "{situation}");
    }
}

/// Whatever the Deployments run, the version that serves is never replaced while it is the only one of its kind.
#[test]
fn stable_version_is_never_replaced_by_another_one() {
    let slots = [None, Some("a"), Some("b"), Some("c")];
    for desired in ["a", "b", "c"] {
        for (primary, secondary) in slots.iter().flat_map(|a| slots.iter().map(move |b| (*a, *b))) {
            for retained in [&[][..], &["b"], &["c"], &["b", "c"]] {
                for (failed, is_serving) in [(&[][..], true), (&["b"], true), (&["c"], false), (&[], false)] {
                    let (first, second) =
                        contents(desired, primary, secondary, is_serving, Some(of("a", retained, failed)));
                    let keeps = |slot: Option<&str>, content| {
                        slot == Some("a") && (content == Kept || (content == Latest && desired == "a"))
                    };
                    let had = primary == Some("a") || secondary == Some("a");
                    let has = keeps(primary, first) || keeps(secondary, second);
                    let what = format!("{desired} {primary:?} {secondary:?} {retained:?} {failed:?}");
                    assert!(!had || has, "{what}: {first:?} {second:?}");
                }
            }
        }
    }
}

#[test]
fn version_of_an_annotation_is_read_back() {
    let version = Version { number: 7, revision: "1a2b3c4d5e".into() };
    assert_eq!(version.to_string(), "7-1a2b3c4d5e");
    assert_eq!(Version::parse("7-1a2b3c4d5e"), Some(version));
    for text in ["", "7", "7-", "x-1a", "7-1a-2", "-1a", "7-xyz"] {
        assert_eq!(Version::parse(text), None, "{text}");
    }
}
