//! Request load of models, summed over gateways.
//!
//! Models missing from a gateway's report are idle there.

use gantry_core::scheduling::Command;
use gantry_proto::gantry::ModelDemand;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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
