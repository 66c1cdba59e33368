//! Reports statistics per version of models and pipelines with a rollout to the scheduler.

use crate::Routes;
use gantry_proto::gantry::{TrafficReport, routing_client::RoutingClient};
use gantry_transport::Backoff;
use std::{collections::VecDeque, time::Duration};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, transport::Channel};

const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Longest delay until a failed report is sent again.
const MAX_DELAY: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Keeps a report far below the size limit of a gRPC message.
const MAX_MODELS: usize = 500;

/// Reports statistics over `channel` until `shutdown` is cancelled, under the subscriber name of
/// [`subscribe_routes`](super::subscribe_routes).
///
/// A report that failed is sent again unchanged, so that the scheduler counts it once; meanwhile figures add up in the
/// counters.
pub async fn report_traffic(
    channel: Channel,
    subscriber: String,
    routes: Routes,
    shutdown: CancellationToken,
) {
    let (client, reports) = (RoutingClient::new(channel), Reports::new(subscriber));
    let reporting = Reporter { client, reports, has_warned: false };
    shutdown.run_until_cancelled_owned(reporting.run(&routes)).await;
}

struct Reporter {
    client: RoutingClient<Channel>,
    reports: Reports,
    /// A rejection has been logged; others follow ten times per second.
    has_warned: bool,
}

impl Reporter {
    async fn run(mut self, routes: &Routes) {
        let mut backoff = Backoff::new(REPORT_INTERVAL, MAX_DELAY);
        let mut delay = REPORT_INTERVAL;
        loop {
            if self.reports.unsent.is_empty() {
                routes.rollout_started().await;
            }
            tokio::time::sleep(delay).await;
            delay = match self.send_all(routes).await {
                Ok(()) => {
                    backoff.reset();
                    REPORT_INTERVAL
                }
                Err(status) => {
                    tracing::debug!(%status, "failed to report traffic");
                    backoff.next_delay()
                }
            };
        }
    }

    async fn send_all(&mut self, routes: &Routes) -> Result<(), Status> {
        self.reports.collect(routes);
        while let Some(report) = self.reports.next(routes) {
            let mut request = tonic::Request::new(report);
            request.set_timeout(CALL_TIMEOUT);
            let sent = tokio::time::timeout(CALL_TIMEOUT, self.client.report_traffic(request)).await;
            let sent = sent.unwrap_or_else(|_| Err(Status::deadline_exceeded("no response in time")));
            match sent {
                Ok(_) => {}
                Err(status) if is_rejected(&status) => {
                    if !std::mem::replace(&mut self.has_warned, true) {
                        tracing::warn!(%status, "the scheduler rejects traffic reports; rollouts lack their figures");
                    }
                }
                Err(status) => return Err(status),
            }
            self.reports.done();
        }
        Ok(())
    }
}

/// The same report would be rejected again.
fn is_rejected(status: &Status) -> bool {
    matches!(status.code(), Code::Unimplemented | Code::InvalidArgument | Code::OutOfRange)
}

/// Reports in the order of their sequence numbers. New figures are collected only after the last report is done.
struct Reports {
    subscriber: String,
    /// Of this start of the gateway.
    instance: u64,
    /// Number of the last report.
    sequence: u64,
    /// The state of the scheduler that the reports belong to.
    state_id: u64,
    unsent: VecDeque<TrafficReport>,
}

impl Reports {
    fn new(subscriber: String) -> Self {
        let instance = fastrand::u64(1..);
        Self { subscriber, instance, sequence: 0, state_id: 0, unsent: VecDeque::new() }
    }

    fn collect(&mut self, routes: &Routes) {
        if !self.unsent.is_empty() {
            return;
        }
        let (state_id, models) = routes.take_traffic();
        self.state_id = state_id;
        let mut models = models.into_iter();
        loop {
            let models: Vec<_> = models.by_ref().take(MAX_MODELS).collect();
            if models.is_empty() {
                return;
            }
            self.sequence += 1;
            let (subscriber, sequence) = (self.subscriber.clone(), self.sequence);
            let instance = self.instance;
            self.unsent.push_back(TrafficReport { subscriber, sequence, models, instance });
        }
    }

    /// The report to send. Those of a lost state are dropped: another one has other generations.
    fn next(&mut self, routes: &Routes) -> Option<TrafficReport> {
        if routes.traffic_state() != self.state_id {
            self.unsent.clear();
        }
        self.unsent.front().cloned()
    }

    fn done(&mut self) {
        self.unsent.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::gantry::{Endpoint, Route, RouteEvent, RouteVersion, route_event::Event};

    fn routed(models: usize) -> Routes {
        let routes = Routes::default();
        for number in 0..models {
            let endpoints = vec![Endpoint { server: "s".into(), ..Endpoint::default() }];
            let versions = vec![RouteVersion { version: 1, weight: 1, endpoints }];
            let model = format!("m{number}");
            let route = Route { model, versions, rollout_generation: 1, ..Route::default() };
            let event = Some(Event::Upsert(route));
            routes.apply(RouteEvent { state_id: 1, epoch: 1, event, ..RouteEvent::default() });
        }
        routes
    }

    fn request(routes: &Routes, model: usize) {
        routes.start_test_request(&format!("m{model}"), 0).unwrap().succeed();
    }

    #[test]
    fn report_is_collected_only_with_requests_and_after_the_last_one() {
        let (routes, mut reports) = (routed(1), Reports::new("gw".into()));
        reports.collect(&routes);
        assert_eq!(reports.next(&routes), None);
        request(&routes, 0);
        reports.collect(&routes);
        let first = reports.next(&routes).unwrap();
        assert_eq!((first.sequence, first.subscriber.as_str()), (1, "gw"));
        request(&routes, 0);
        request(&routes, 0);
        reports.collect(&routes);
        assert_eq!(reports.next(&routes), Some(first), "until it is done");
        reports.done();
        assert_eq!(reports.next(&routes), None);
        reports.collect(&routes);
        let second = reports.next(&routes).unwrap();
        assert_eq!((second.sequence, second.models[0].versions[0].requests), (2, 2));
        reports.done();
        reports.collect(&routes);
        assert_eq!(reports.next(&routes), None);
    }

    #[test]
    fn many_models_are_reported_in_parts() {
        let (routes, mut reports) = (routed(MAX_MODELS + 1), Reports::new("gw".into()));
        (0..=MAX_MODELS).for_each(|model| request(&routes, model));
        reports.collect(&routes);
        for (sequence, models) in [(1, MAX_MODELS), (2, 1)] {
            let report = reports.next(&routes).unwrap();
            assert_eq!((report.sequence, report.models.len()), (sequence, models));
            reports.done();
        }
        assert_eq!(reports.next(&routes), None);
    }

    #[test]
    fn unsent_report_of_a_lost_state_is_dropped() {
        let (routes, mut reports) = (routed(1), Reports::new("gw".into()));
        request(&routes, 0);
        reports.collect(&routes);
        assert!(reports.next(&routes).is_some());
        let reset = Some(Event::Reset(gantry_proto::gantry::Reset {}));
        routes.apply(RouteEvent { state_id: 2, epoch: 1, event: reset, ..RouteEvent::default() });
        assert_eq!(reports.next(&routes), None);
    }
}
