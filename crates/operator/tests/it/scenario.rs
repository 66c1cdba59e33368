//! Days in the life of a namespace, step by step; what breaks in between is the test's business.

use crate::world::{CONFIGS, NAMESPACE, World};
use serde_json::{Value, json};

/// A day: what somebody asks for, one step after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Day {
    /// Models come, change, and go.
    Models,
    /// A runtime and a server come, change, and go.
    Workloads,
}

pub(crate) fn model(name: &str) -> Value {
    json!({ "storageUri": format!("gs://models/{name}"), "requirements": ["onnx"], "memory": "1Mi" })
}

fn pod(name: &str, image: &str) -> Value {
    json!({ "containers": [{ "name": name, "image": image, "env": [{ "name": "SELDON_SERVER_CAPABILITIES", "value": "onnx" }] }] })
}

impl Day {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Models, Self::Workloads];

    /// How many steps it has.
    pub(crate) const fn steps(self) -> usize {
        match self {
            Self::Models => 6,
            Self::Workloads => 8,
        }
    }

    /// What somebody asks for in one step.
    pub(crate) async fn step(self, world: &World, number: usize) {
        match self {
            Self::Models => models(world, number).await,
            Self::Workloads => workloads(world, number).await,
        }
    }

    /// All steps, with rest after each.
    pub(crate) async fn live(self, world: &World) {
        for number in 0..self.steps() {
            self.step(world, number).await;
            world.rest().await;
        }
    }
}

async fn models(world: &World, number: usize) {
    match number {
        0 => {
            world.create(NAMESPACE, "Model", "iris", model("iris")).await;
            world.create(NAMESPACE, "Model", "wine", model("wine")).await;
        }
        1 => {
            let spec = json!({"storageUri": "gs://x", "requirements": ["none"]});
            world.create(NAMESPACE, "Model", "lost", spec).await;
        }
        2 => world.change("Model", "iris", json!({"storageUri": "gs://models/better"})).await,
        3 => world.change("Model", "wine", json!({"replicas": 2, "minReplicas": 1})).await,
        4 => world.delete("Model", "iris").await,
        5 => {
            world.delete("Model", "lost").await;
            world.create(NAMESPACE, "Model", "iris", model("again")).await;
        }
        _ => unreachable!("there are no more steps"),
    }
}

async fn workloads(world: &World, number: usize) {
    match number {
        0 => {
            let components = json!({ "components": [
                { "name": "seldon-scheduler", "podSpec": pod("scheduler", "gantry:1"),
                  "volumeClaimTemplates": [{ "name": "state", "spec": { "accessModes": ["ReadWriteOnce"] } }] },
                { "name": "seldon-gateway", "podSpec": pod("gateway", "gantry:1") },
            ]});
            world.create(CONFIGS, "SeldonConfig", "default", components).await;
            world
                .create(CONFIGS, "ServerConfig", "builtin", json!({ "podSpec": pod("agent", "gantry:1") }))
                .await;
            world.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
        }
        1 => {
            let spec = json!({ "serverConfig": "builtin", "replicas": 2 });
            world.create(NAMESPACE, "Server", "gantry", spec).await;
        }
        2 => world.change("Server", "gantry", json!({ "replicas": 1 })).await,
        3 => {
            let spec = json!({ "podSpec": pod("agent", "gantry:2") });
            world.change_in(CONFIGS, "ServerConfig", "builtin", spec).await;
        }
        4 => {
            let overrides = json!([{ "name": "seldon-gateway", "disable": true }]);
            world.change("SeldonRuntime", "seldon", json!({ "overrides": overrides })).await;
        }
        5 => {
            let overrides = json!([{ "name": "seldon-gateway", "replicas": 2 }]);
            world.change("SeldonRuntime", "seldon", json!({ "overrides": overrides })).await;
        }
        6 => world.delete("Server", "gantry").await,
        7 => world.delete("SeldonRuntime", "seldon").await,
        _ => unreachable!("there are no more steps"),
    }
}
