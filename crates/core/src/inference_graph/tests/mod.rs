//! Conditions, validation, and requests through graphs.

mod paths;
mod requests;
mod validation;

use super::{Definition, Node, Router, Step, Target};

pub(super) fn step(target: &str) -> Step {
    let target = match target.split_once(':') {
        Some(("node", name)) => Target::Node(name.into()),
        Some(_) => Target::Url(target.into()),
        None => Target::Service(target.into()),
    };
    Step {
        name: None,
        target,
        takes_response: false,
        maps_predictions: false,
        weight: None,
        condition: None,
        is_hard: false,
    }
}

impl Step {
    fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    fn hard(mut self) -> Self {
        self.is_hard = true;
        self
    }

    fn of_response(mut self) -> Self {
        self.takes_response = true;
        self
    }

    fn mapped(mut self) -> Self {
        self.maps_predictions = true;
        self
    }

    fn weight(mut self, weight: i64) -> Self {
        self.weight = Some(weight);
        self
    }

    fn when(mut self, condition: &str) -> Self {
        self.condition = Some(condition.into());
        self
    }
}

pub(super) fn definition(nodes: Vec<(&str, Router, Vec<Step>)>) -> Definition {
    let nodes = nodes.into_iter().map(|(name, router, steps)| (name.to_owned(), Node { router, steps }));
    Definition { nodes: nodes.collect() }
}
