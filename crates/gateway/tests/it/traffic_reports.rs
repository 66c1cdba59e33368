//! Traffic reports to a fake scheduler.

use crate::support::{
    FakeLocal, FakeRemote, FakeScheduler, Figures, Running, Tally, local_endpoint, remote_endpoint,
    rolled_out, route, send, until, unused_address,
};
use gantry_gateway::control;
use gantry_oip::{Error, server::rest_error};
use gantry_proto::gantry::TrafficReport;
use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

/// A gateway that reports.
struct Reporting {
    running: Running,
    reporter: JoinHandle<()>,
    shutdown: CancellationToken,
}

impl Reporting {
    /// Version 2 of each model fails.
    fn start(scheduler: SocketAddr) -> Self {
        let local = FakeLocal::new();
        local.respond_by(|request| {
            let internal = request.headers().get("seldon-internal-model")?.to_str().ok()?;
            internal.ends_with("_2").then(|| rest_error(&Error::internal("out of memory")))
        });
        let running = Running::with_iris(&local);
        let channel = Endpoint::from_shared(format!("http://{scheduler}")).unwrap().connect_lazy();
        let shutdown = CancellationToken::new();
        let reporting =
            control::report_traffic(channel, "gw".into(), running.routes.clone(), shutdown.clone());
        Self { running, reporter: tokio::spawn(reporting), shutdown }
    }

    fn route(&self, generation: u64, weights: (u32, u32)) {
        let here = [local_endpoint("builtin", 0)];
        let wanted = route("m", &[(1, weights.0, &here), (2, weights.1, &here)]);
        self.running.route(rolled_out(generation, wanted));
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.reporter.await.unwrap();
    }
}

/// The figures that the scheduler has, repeated reports once.
fn tally(scheduler: &FakeScheduler) -> Tally {
    let reports = scheduler.traffic.lock().unwrap();
    let mut tally = Tally::default();
    let mut last: Option<&TrafficReport> = None;
    for report in &*reports {
        if let Some(last) = last.filter(|last| last.sequence == report.sequence) {
            assert_eq!(last, report, "a repeated report is unchanged");
        } else {
            assert_eq!(report.sequence, last.map_or(0, |last| last.sequence) + 1);
            assert_eq!(report.subscriber, "gw");
            assert!(!report.models.is_empty(), "nothing is reported without requests");
            tally.add(&report.models);
        }
        last = Some(report);
    }
    tally
}

async fn reported(scheduler: &FakeScheduler, requests: u64) -> Tally {
    until(&format!("{requests} requests are reported"), || async { tally(scheduler).requests() >= requests })
        .await;
    tally(scheduler)
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_canary_is_reported() {
    let scheduler = FakeScheduler::default();
    let (address, stop) = scheduler.start("127.0.0.1:0".parse().unwrap()).await;
    let reporting = Reporting::start(address);
    reporting.route(4, (8000, 2000));
    let mut connection = reporting.running.client().connect().await;
    let mut failed = 0;
    for _ in 0..200 {
        let answer = send(&mut connection, "POST", "/v2/models/m/infer", &[], "{}").await;
        failed += u64::from(answer.status == 500);
    }
    // A share of 20 % of 200 has a standard deviation of 5.7.
    assert!((10..=80).contains(&failed), "{failed}");
    let tally = reported(&scheduler, 200).await;
    assert_eq!(tally.of("m", 4, 1), Figures::successes(200 - failed));
    assert_eq!(tally.of("m", 4, 2), Figures { server_errors: failed, ..Figures::successes(failed) });
    reporting.stop().await;
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_report_is_repeated_before_newer_figures() {
    let scheduler = FakeScheduler::default();
    scheduler.lost_answers.store(3, Ordering::SeqCst);
    let (address, stop) = scheduler.start("127.0.0.1:0".parse().unwrap()).await;
    let reporting = Reporting::start(address);
    reporting.route(1, (1, 0));
    let client = reporting.running.client();
    assert_eq!(client.infer("m").await.status, 200);
    until("the first report arrives", || async { !scheduler.traffic.lock().unwrap().is_empty() }).await;
    for _ in 0..5 {
        assert_eq!(client.infer("m").await.status, 200);
    }
    let tally = reported(&scheduler, 6).await;
    assert_eq!(tally.of("m", 1, 1), Figures::successes(6));
    let sequences: Vec<u64> = scheduler.traffic.lock().unwrap().iter().map(|r| r.sequence).collect();
    assert_eq!(sequences[..4], [1, 1, 1, 1], "{sequences:?}");
    assert_eq!(sequences[4], 2, "{sequences:?}");
    reporting.stop().await;
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_requests_under_a_rollout_are_reported() {
    let scheduler = FakeScheduler::default();
    let (address, stop) = scheduler.start("127.0.0.1:0".parse().unwrap()).await;
    let reporting = Reporting::start(address);
    let client = reporting.running.client();
    reporting.route(0, (1, 0));
    for _ in 0..10 {
        assert_eq!(client.infer("m").await.status, 200);
        assert_eq!(client.infer("iris").await.status, 200);
    }
    reporting.route(1, (1, 0));
    assert_eq!(client.infer("m").await.status, 200);
    reported(&scheduler, 1).await;
    // The rollout ends.
    reporting.route(0, (1, 0));
    assert_eq!(client.infer("m").await.status, 200);
    reporting.route(2, (1, 0));
    assert_eq!(client.infer("m").await.status, 200);
    let tally = reported(&scheduler, 2).await;
    assert_eq!(tally.of("m", 1, 1), Figures::successes(1));
    assert_eq!(tally.of("m", 2, 1), Figures::successes(1));
    assert_eq!(tally.by_version.len(), 2, "{:?}", tally.by_version);
    reporting.stop().await;
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_each_generation_are_reported_apart() {
    let scheduler = FakeScheduler::default();
    let address = unused_address();
    // The scheduler is unreachable: the figures of both generations add up.
    let reporting = Reporting::start(address);
    let client = reporting.running.client();
    reporting.route(1, (1, 0));
    for _ in 0..30 {
        assert_eq!(client.infer("m").await.status, 200);
    }
    reporting.route(2, (0, 1));
    for _ in 0..20 {
        assert_eq!(client.infer("m").await.status, 500);
    }
    let (_, stop) = scheduler.start(address).await;
    let tally = reported(&scheduler, 50).await;
    assert_eq!(tally.of("m", 1, 1), Figures::successes(30));
    assert_eq!(tally.of("m", 2, 2), Figures { server_errors: 20, ..Figures::successes(20) });
    assert_eq!(tally.by_version.len(), 2, "{:?}", tally.by_version);
    reporting.stop().await;
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn request_in_flight_at_a_new_generation_is_reported_under_its_own() {
    let scheduler = FakeScheduler::default();
    let (address, stop) = scheduler.start("127.0.0.1:0".parse().unwrap()).await;
    let reporting = Reporting::start(address);
    let held = FakeLocal::held();
    let remote = FakeRemote::start(Arc::clone(&held)).await;
    let there = [remote_endpoint("s", 0, remote.address)];
    for generation in [6, 7] {
        reporting.running.route(rolled_out(generation, route("slow", &[(1, 1, &there)])));
        let client = reporting.running.client();
        let pending = tokio::spawn(async move { client.infer("slow").await.status.as_u16() });
        until("it arrives", || async { held.arrived() == generation as usize - 5 }).await;
        drop(pending);
    }
    held.gate.add_permits(2);
    let tally = reported(&scheduler, 2).await;
    for generation in [6, 7] {
        assert_eq!(tally.of("slow", generation, 1), Figures::successes(1));
    }
    reporting.stop().await;
    stop.cancel();
}
