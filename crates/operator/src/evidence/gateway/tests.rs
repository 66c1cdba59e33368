//! Windows are differences of readings, whatever happens to the counters.

use super::*;
use crate::evidence::RevisionObjectives;
use gantry_api::{EvidenceSource, MetricQueries};
use proptest::prelude::*;

const STABLE: &str = "00000001aa";
const CANARY: &str = "00000002bb";

fn request(counts_once: bool, window: u64) -> EvidenceRequest {
    EvidenceRequest {
        key: Key::new("ml", "reco"),
        uid: "u".into(),
        source: EvidenceSource::Gateway,
        queries: MetricQueries::default(),
        stable: STABLE.into(),
        candidate: Some(CANARY.into()),
        generation: 3,
        interval: Duration::from_secs(30),
        window: Duration::from_secs(window),
        counts_once,
        objectives: RevisionObjectives { success: 0.99, latency_limit_ms: None },
        drift_metric: None,
    }
}

fn version(version: u32, requests: u64, server_errors: u64) -> VersionTraffic {
    VersionTraffic { version, requests, server_errors, latency: vec![0, 0, requests], ..Default::default() }
}

/// Totals since `age_ms`, in an epoch of the scheduler.
fn totals(epoch: u64, age_ms: u64, versions: &[(u32, u64, u64)]) -> ServiceTraffic {
    let versions = versions.iter().map(|(v, requests, errors)| version(*v, *requests, *errors)).collect();
    ServiceTraffic { state_id: 1, epoch, age_ms, versions }
}

struct Measured(Windows, Instant);

impl Measured {
    fn new() -> Self {
        Self(Windows::default(), Instant::now())
    }

    /// Requests to both revisions in the window that ends at this second.
    fn at(&self, second: u64, request: &EvidenceRequest, traffic: ServiceTraffic) -> Option<(u64, u64)> {
        let now = self.1 + Duration::from_secs(second);
        let counts = self.0.window(request, traffic, now)?;
        let measured = measurement(request, &counts)?;
        assert_eq!(measured.candidate.latency.total(), measured.candidate.requests);
        Some((measured.stable.requests, measured.candidate.requests))
    }
}

#[test]
fn window_is_the_difference_of_readings() {
    let (measured, request) = (Measured::new(), request(false, 60));
    let at = |second, age: u64, stable, canary| {
        measured.at(second, &request, totals(1, age * 1000, &[(1, stable, 0), (2, canary, 0)]))
    };
    assert_eq!(at(27, 20, 80, 20), Some((80, 20)), "everything since the weights are in effect");
    assert_eq!(at(57, 50, 160, 40), Some((160, 40)), "less than a window is all there is");
    assert_eq!(at(87, 80, 240, 60), Some((160, 40)), "since second 27");
    assert_eq!(at(117, 110, 240, 60), Some((80, 20)));
    assert_eq!(at(147, 140, 240, 60), None, "no requests are no data");
    assert_eq!(at(177, 170, 300, 70), Some((60, 10)));
}

#[test]
fn sequential_tests_count_each_request_once() {
    let (measured, request) = (Measured::new(), request(true, 30));
    let at = |second, canary| measured.at(second, &request, totals(1, 5_000, &[(1, 9, 0), (2, canary, 0)]));
    assert_eq!(at(27, 20), Some((9, 20)));
    // Less than an interval later, and more.
    assert_eq!(at(56, 30), Some((0, 10)));
    assert_eq!(at(100, 70), Some((0, 40)));
}

#[test]
fn counters_of_another_start_or_object_are_not_mixed() {
    let (measured, first) = (Measured::new(), request(false, 60));
    let old = |epoch| totals(epoch, 3_600_000, &[(1, 1000, 0), (2, 500, 0)]);
    assert_eq!(measured.at(0, &first, old(1)), None, "another operator may have counted them");
    assert_eq!(measured.at(30, &first, totals(1, 3_630_000, &[(1, 1010, 0), (2, 505, 0)])), Some((10, 5)));
    assert_eq!(measured.at(60, &first, old(2)), None, "another start of the scheduler");
    assert_eq!(measured.at(90, &first, totals(2, 9_000_000, &[(1, 1, 0), (2, 1, 0)])), None, "they shrank");
    let other = EvidenceRequest { uid: "v".into(), ..first.clone() };
    assert_eq!(measured.at(120, &other, old(2)), None, "another object of the name");
    let later = EvidenceRequest { generation: 4, ..first };
    assert_eq!(measured.at(150, &later, old(2)), None, "other weights");
    assert_eq!(measured.at(180, &later, totals(3, 2_000, &[(1, 4, 0), (2, 2, 0)])), Some((4, 2)), "new ones");
}

#[test]
fn figures_are_those_of_the_window() {
    let request = request(false, 60);
    let counts = |list: &[(u32, u64, u64)]| {
        list.iter().map(|(v, requests, errors)| decoded(version(*v, *requests, *errors))).collect::<Counts>()
    };
    let found = measurement(&request, &counts(&[(1, 200, 2), (2, 50, 5)])).unwrap();
    assert_eq!((found.figures.requests, found.figures.success_rate), (Some(50.0), Some(0.9)));
    assert_eq!(found.figures.baseline_success_rate, Some(0.99));
    assert!(found.figures.latency_ms.is_some_and(|latency| latency < 1.0));
    assert_eq!(found.candidate.errors.failures(), 5);
    assert_eq!(measurement(&request, &counts(&[(1, 200, 2)])), None, "none to the revision under analysis");
    let watched = EvidenceRequest { candidate: None, ..request };
    let found = measurement(&watched, &counts(&[(1, 200, 2)])).unwrap();
    assert_eq!((found.stable.requests, found.figures.baseline_success_rate), (200, None));
}

#[test]
fn version_is_a_number_of_the_revision() {
    assert_eq!((version_of("0000000aff"), version_of("ffffffff00")), (10, u32::MAX));
    assert_eq!((version_of("0000000011"), version_of("x")), (1, 1), "0 is no version");
}

proptest! {
    /// Whatever the delays, windows that count once add up to the totals.
    #[test]
    fn windows_that_count_once_add_up(steps in prop::collection::vec((1_u64..200, 0_u64..50), 1..40)) {
        let (measured, request) = (Measured::new(), request(true, 30));
        let (mut now, mut total, mut sum) = (0, 1, 0);
        measured.at(0, &request, totals(1, 0, &[]));
        for (delay, requests) in steps {
            now += delay;
            total += requests;
            let found = measured.at(now, &request, totals(1, now * 1000, &[(2, total, 0)]));
            sum += found.map_or(0, |(_, canary)| canary);
        }
        prop_assert_eq!(sum, total);
    }

    /// Overlapping windows are at least as long as configured once there are readings of that age, and bounded in number.
    #[test]
    fn overlapping_windows_cover_their_time(delays in prop::collection::vec(1_u64..40, 1..300), window in 30_u64..3600) {
        let (measured, request) = (Measured::new(), request(false, window));
        measured.at(0, &request, totals(1, 0, &[]));
        let mut now = 0;
        for delay in delays {
            now += delay;
            // One request per second.
            let found = measured.at(now, &request, totals(1, now * 1000, &[(2, now, 0)]));
            let (_, covered) = found.unwrap();
            prop_assert!(covered >= window.min(now) && covered <= window + window / 60 + 40, "{covered} s of {window}");
            let kept = measured.0.0.lock().unwrap().values().map(|r| r.taken.len()).sum::<usize>();
            prop_assert!(kept <= 130, "{kept}");
        }
    }
}
