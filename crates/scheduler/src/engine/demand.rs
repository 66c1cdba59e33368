//! Request load of models, summed over gateways.
//!
//! Models missing from a gateway's report are idle there.

use gantry_core::scheduling::Command;
use gantry_proto::gantry::ModelDemand;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Services with requests that wait, by gateway. That there were requests is reported each time.
#[derive(Debug, Default)]
pub(super) struct ServiceDemand(BTreeMap<Arc<str>, BTreeSet<Arc<str>>>);

impl ServiceDemand {
    /// As [`Demand::report`]. A component of a service is named `<namespace>/<name>/<role>`, which no model is.
    pub(super) fn report(
        &mut self,
        gateway: &Arc<str>,
        demands: &[ModelDemand],
        find: impl Fn(&str) -> Option<Arc<str>>,
    ) -> Vec<Command> {
        let service = |demand: &ModelDemand| demand.model.rsplit_once('/').and_then(|(name, _)| find(name));
        let mut active: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut now: BTreeSet<Arc<str>> = BTreeSet::new();
        for demand in demands {
            let Some(name) = service(demand) else { continue };
            if demand.waiting {
                now.insert(name.clone());
            }
            active.insert(name);
        }
        let before = self.0.remove(gateway).unwrap_or_default();
        let elsewhere = |name: &Arc<str>| self.0.values().any(|names| names.contains(name));
        let ended = before.into_iter().filter(|name| !now.contains(name) && !elsewhere(name));
        let ended: Vec<Arc<str>> = ended.filter(|name| !active.contains(name)).collect();
        let ended =
            ended.into_iter().map(|name| Command::ServiceDemanded { name, waiting: false, is_active: false });
        let demanded = active.iter().map(|name| Command::ServiceDemanded {
            name: name.clone(),
            waiting: now.contains(name) || elsewhere(name),
            is_active: true,
        });
        let commands = ended.chain(demanded).collect();
        if !now.is_empty() {
            self.0.insert(gateway.clone(), now);
        }
        commands
    }
}

/// Mean requests in flight, times 1,000, by model and gateway.
#[derive(Debug, Default)]
pub(super) struct Demand {
    by_model: BTreeMap<Arc<str>, BTreeMap<Arc<str>, u64>>,
    by_gateway: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
}

impl Demand {
    /// Merges a gateway's report and returns the commands for core. `find` resolves model names.
    pub(super) fn report(
        &mut self,
        gateway: &Arc<str>,
        models: Vec<ModelDemand>,
        find: impl Fn(&str) -> Option<Arc<str>>,
    ) -> Vec<Command> {
        let mut idle = self.by_gateway.remove(gateway).unwrap_or_default();
        let mut named = BTreeSet::new();
        let mut commands = Vec::with_capacity(models.len());
        for demand in models {
            let Some(model) = find(&demand.model) else { continue };
            idle.remove(&model);
            self.set(&model, gateway, demand.in_flight_milli);
            named.insert(model.clone());
            commands.push(self.seen(model, demand.answered, demand.waiting));
        }
        for model in idle {
            self.set(&model, gateway, 0);
            commands.push(self.seen(model, 0, false));
        }
        if !named.is_empty() {
            self.by_gateway.insert(gateway.clone(), named);
        }
        commands
    }

    /// Drops the load of a disconnected gateway.
    pub(super) fn forget(&mut self, gateway: &Arc<str>) -> Vec<Command> {
        self.report(gateway, Vec::new(), |_| None)
    }

    fn set(&mut self, model: &Arc<str>, gateway: &Arc<str>, in_flight: u64) {
        let gateways = self.by_model.entry(model.clone()).or_default();
        if in_flight > 0 {
            gateways.insert(gateway.clone(), in_flight);
        } else {
            gateways.remove(gateway);
        }
        if gateways.is_empty() {
            self.by_model.remove(model);
        }
    }

    fn seen(&self, model: Arc<str>, answered: u64, waiting: bool) -> Command {
        let all = self.by_model.get(&model).into_iter().flat_map(BTreeMap::values);
        let in_flight_milli = all.fold(0, |sum: u64, next| sum.saturating_add(*next));
        Command::DemandReported { model, in_flight_milli, answered, waiting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(model: &str, in_flight_milli: u64) -> ModelDemand {
        ModelDemand { model: model.into(), in_flight_milli, answered: 1, waiting: false }
    }

    fn seen(commands: &[Command]) -> Vec<(&str, u64)> {
        let mut seen = Vec::new();
        for command in commands {
            if let Command::DemandReported { model, in_flight_milli, .. } = command {
                seen.push((&**model, *in_flight_milli));
            }
        }
        seen
    }

    #[test]
    fn service_is_in_demand_while_requests_wait_at_a_gateway() {
        let find = |name: &str| (name == "ns/a").then(|| Arc::<str>::from(name));
        let waits = |model: &str, waiting| ModelDemand { waiting, ..demand(model, 0) };
        let told =
            |waiting, is_active| vec![Command::ServiceDemanded { name: "ns/a".into(), waiting, is_active }];
        let (a, b) = (Arc::<str>::from("a"), Arc::<str>::from("b"));
        let mut demands = ServiceDemand::default();
        for unknown in ["m", "", "/", "ns/b/predictor", "ns/a", "ns/a/x/predictor"] {
            assert_eq!(demands.report(&a, &[waits(unknown, true)], find), []);
        }
        assert_eq!(demands.report(&a, &[waits("ns/a/predictor", false)], find), told(false, true));
        let both = [waits("ns/a/predictor", true), waits("ns/a/transformer", true)];
        assert_eq!(demands.report(&a, &both, find), told(true, true));
        assert_eq!(demands.report(&b, &both, find), told(true, true));
        let done = [waits("ns/a/predictor", false)];
        assert_eq!(demands.report(&a, &done, find), told(true, true), "the other gateway has some");
        assert_eq!(demands.report(&a, &[], find), []);
        assert_eq!(demands.report(&b, &[], find), told(false, false));
        assert!(demands.0.is_empty());
    }

    #[test]
    fn demand_is_summed_over_gateways_until_unreported() {
        let find = |name: &str| (name != "gone").then(|| Arc::<str>::from(name));
        let (a, b) = (Arc::<str>::from("a"), Arc::<str>::from("b"));
        let mut demands = Demand::default();
        assert_eq!(
            seen(&demands.report(&a, vec![demand("m", 1000), demand("gone", 9)], find)),
            [("m", 1000)]
        );
        assert_eq!(
            seen(&demands.report(&b, vec![demand("m", 500), demand("n", 1)], find)),
            [("m", 1500), ("n", 1)]
        );
        assert_eq!(seen(&demands.report(&a, vec![], find)), [("m", 500)]);
        assert_eq!(seen(&demands.report(&a, vec![], find)), []);
        assert_eq!(seen(&demands.forget(&b)), [("m", 0), ("n", 0)]);
        assert!(demands.by_model.is_empty() && demands.by_gateway.is_empty());
    }
}
