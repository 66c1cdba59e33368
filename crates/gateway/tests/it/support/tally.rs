//! Sums of traffic figures by model or pipeline, generation and version.

use super::{Running, until};
use gantry_proto::gantry::{ModelTraffic, Route};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    pub(crate) client_errors: u64,
    pub(crate) server_errors: u64,
    pub(crate) timeouts: u64,
    pub(crate) connection_errors: u64,
    /// Requests in the latency histogram.
    pub(crate) latencies: u64,
    /// Of the observed tensor.
    pub(crate) values: u64,
    /// Answers to copies.
    pub(crate) compared: u64,
    pub(crate) differing: u64,
}

impl Figures {
    pub(crate) fn successes(count: u64) -> Self {
        Self { requests: count, latencies: count, ..Self::default() }
    }
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) by_version: BTreeMap<(String, u64, u32), Figures>,
}

impl Tally {
    pub(crate) fn add(&mut self, models: &[ModelTraffic]) {
        for model in models {
            for version in &model.versions {
                let name = match model.pipeline.as_str() {
                    "" => model.model.clone(),
                    pipeline => format!("{pipeline}.pipeline"),
                };
                let key = (name, model.generation, version.version);
                let sum = self.by_version.entry(key).or_default();
                sum.requests += version.requests;
                sum.client_errors += version.client_errors;
                sum.server_errors += version.server_errors;
                sum.timeouts += version.timeouts;
                sum.connection_errors += version.connection_errors;
                sum.latencies += version.latency.iter().sum::<u64>();
                sum.compared += version.compared;
                sum.differing += version.differing;
                sum.values += version.value_counts.iter().sum::<u64>();
            }
        }
    }

    /// Of all versions.
    pub(crate) fn requests(&self) -> u64 {
        self.by_version.values().map(|figures| figures.requests).sum()
    }

    pub(crate) fn of(&self, model: &str, generation: u64, version: u32) -> Figures {
        self.by_version.get(&(model.to_owned(), generation, version)).copied().unwrap_or_default()
    }

    /// The figures of a gateway without a reporter, once they contain this many requests: a client may see the response before
    /// its request is recorded.
    pub(crate) async fn taken(running: &Running, requests: u64) -> Self {
        let mut tally = Self::default();
        until(&format!("{requests} requests are counted"), || {
            tally.add(&running.routes.take_traffic().1);
            let is_complete = tally.requests() >= requests;
            async move { is_complete }
        })
        .await;
        tally.add(&running.routes.take_traffic().1);
        assert_eq!(tally.requests(), requests, "{:?}", tally.by_version);
        tally
    }
}

/// The route with a rollout.
pub(crate) fn rolled_out(generation: u64, route: Route) -> Route {
    Route { rollout_generation: generation, ..route }
}
