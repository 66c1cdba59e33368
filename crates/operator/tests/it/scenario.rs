//! Days in the life of a namespace, step by step; what breaks in between is the test's business.

use crate::world::{CONFIGS, Comings, NAMESPACE, Picture, World};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A day: what somebody asks for, one step after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Day {
    /// Models come, change, and go.
    Models,
    /// A runtime and a server come, change, and go.
    Workloads,
}

/// How a day went.
pub(crate) struct Course {
    /// What was there after each step.
    pub(crate) pictures: Vec<Picture>,
    /// What came and went.
    pub(crate) comings: Comings,
    /// How often the operator wrote.
    pub(crate) writes: usize,
}

pub(crate) fn model(name: &str) -> Value {
    json!({ "storageUri": format!("gs://models/{name}"), "requirements": ["onnx"], "memory": "1Mi" })
}

pub(crate) fn pod(name: &str, image: &str) -> Value {
    json!({ "containers": [{ "name": name, "image": image, "env": [{ "name": "SELDON_SERVER_CAPABILITIES", "value": "onnx" }] }] })
}

/// A `SeldonConfig` with a scheduler and a gateway; the gateway reads a setting.
pub(crate) async fn configure(world: &World) {
    let mut gateway = pod("gateway", "gantry:1");
    gateway["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "seldon-tracing" } }]);
    let components = json!({ "components": [
        { "name": "seldon-scheduler", "podSpec": pod("scheduler", "gantry:1"),
          "volumeClaimTemplates": [{ "name": "state", "spec": { "accessModes": ["ReadWriteOnce"] } }] },
        { "name": "seldon-gateway", "podSpec": gateway },
    ]});
    world.create(CONFIGS, "SeldonConfig", "default", components).await;
    world.create(CONFIGS, "ServerConfig", "builtin", json!({ "podSpec": pod("agent", "gantry:1") })).await;
}

/// A runtime and a Server of as many replicas, at rest.
pub(crate) async fn settled(replicas: u32) -> World {
    let world = World::begun().await;
    configure(&world).await;
    world.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
    let spec = json!({ "serverConfig": "builtin", "replicas": replicas });
    world.create(NAMESPACE, "Server", "gantry", spec).await;
    world.rest().await;
    world
}

impl Day {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Models, Self::Workloads];

    /// How many steps it has.
    pub(crate) const fn steps(self) -> usize {
        match self {
            Self::Models => 6,
            Self::Workloads => 9,
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
    pub(crate) async fn live(self, world: &World) -> Course {
        let mut pictures = Vec::new();
        for number in 0..self.steps() {
            self.step(world, number).await;
            world.rest().await;
            pictures.push(world.picture().await);
        }
        Course { pictures, comings: world.comings(), writes: world.writes() }
    }

    /// The same, and each step must end as it once did.
    pub(crate) async fn relive(self, world: &World, course: &Course, what: &str) {
        for number in 0..self.steps() {
            self.step(world, number).await;
            world.rest().await;
            self.compare(world, course, number, what).await;
        }
        course.came_and_went(world, what);
    }

    /// What is there after a step must be what once was.
    pub(crate) async fn compare(self, world: &World, course: &Course, number: usize, what: &str) {
        let found = world.picture().await;
        let differ = differences(&course.pictures[number], &found);
        let lines = || world.kube.trace().lines().join("\n");
        assert!(differ.is_empty(), "{self:?}, step {number}, {what}\n{}\n\n{}", differ.join("\n"), lines());
    }
}

impl Course {
    /// Nothing came or went more often than once it did.
    pub(crate) fn came_and_went(&self, world: &World, what: &str) {
        let lines = || world.kube.trace().lines().join("\n");
        assert_eq!(world.comings(), self.comings, "{what}\n{}", lines());
    }
}

/// What differs, for people.
pub(crate) fn differences(expected: &Picture, found: &Picture) -> Vec<String> {
    let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let differ = keys.into_iter().filter(|key| expected.get(*key) != found.get(*key));
    let shown = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
    differ
        .map(|key| format!("{key}\n  is {}\n  was {}", shown(found.get(key)), shown(expected.get(key))))
        .collect()
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
            configure(world).await;
            world.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
        }
        1 => {
            let over = json!({ "nodeSelector": { "disk": "ssd" } });
            let spec = json!({ "serverConfig": "builtin", "replicas": 2, "podSpec": over });
            world.create(NAMESPACE, "Server", "gantry", spec).await;
        }
        2 => world.change("Server", "gantry", json!({ "replicas": 1 })).await,
        3 => {
            let mut without = pod("agent", "gantry:2");
            without["containers"][0]["env"] = Value::Null;
            world.change_in(CONFIGS, "ServerConfig", "builtin", json!({ "podSpec": without })).await;
        }
        4 => {
            let tracing = json!({ "tracingConfig": { "otelExporterEndpoint": "collector:4317" } });
            let overrides = json!([{ "name": "seldon-gateway", "disable": true }]);
            let spec = json!({ "overrides": overrides, "config": tracing });
            world.change("SeldonRuntime", "seldon", spec).await;
        }
        5 => {
            let overrides = json!([{ "name": "seldon-gateway", "replicas": 2 }]);
            world.change("SeldonRuntime", "seldon", json!({ "overrides": overrides })).await;
        }
        // Made anew before all that belonged to the first is gone.
        6 => {
            world.delete("Server", "gantry").await;
            world.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
        }
        7 => world.delete("Server", "gantry").await,
        8 => world.delete("SeldonRuntime", "seldon").await,
        _ => unreachable!("there are no more steps"),
    }
}
