//! Generates a scenario from a seed.
//!
//! A scenario draws the kinds of faults it contains, so that some have many of one kind. Steps come in bursts, because
//! bugs appear when events coincide.

use super::{
    Action, Artifact, DesiredExperiment, DesiredModel, DesiredPipeline, DesiredService, Scenario, ServerSpec,
    Step,
};
use crate::rng::{self, chance};
use fastrand::Rng;

const CAPABILITIES: [&str; 3] = ["onnx", "xgboost", "lightgbm"];

const PIPELINES: u64 = 3;
const EXPERIMENTS: u64 = 3;
const SERVICES: u64 = 2;

const FAULTS: [&str; 16] = [
    "leave",
    "crash_replica",
    "crash_agent",
    "restart_server",
    "crash_gateway",
    "crash_scheduler",
    "block",
    "cut",
    "freeze",
    "lose_replies",
    "slow",
    "full_disk",
    "broken_disk",
    "stall_disk",
    "lose_state",
    "lose_node",
];

/// `length` in virtual milliseconds.
pub(crate) fn generate(seed: u64, length: u64) -> Scenario {
    let mut rng = rng::seeded(seed, "plan");
    let servers = servers(&mut rng);
    let gateways = u32::try_from(rng.u64(1..=3)).unwrap_or(1);
    let models: Vec<String> = (0..rng.u64(2..=9)).map(|i| format!("m{i}")).collect();
    let mut generator = Generator { rng, servers, gateways, models, next_content: 0 };
    // One scenario in four has no faults: there every request has to succeed.
    let kinds: Vec<&str> = match generator.rng.u64(..4) {
        0 => Vec::new(),
        _ => FAULTS.into_iter().filter(|_| chance(&mut generator.rng, 40)).collect(),
    };
    let mut steps = Vec::new();
    // Every model is desired for early, so that there is something to break.
    let within = *generator.rng.choice(&[150, 600, 3000]).unwrap_or(&3000);
    for model in generator.models.clone() {
        let at = generator.rng.u64(100..=within);
        steps.push(Step { at, action: generator.load(model) });
    }
    for pipeline in 0..generator.rng.u64(..=PIPELINES) {
        let at = generator.rng.u64(100..=within);
        steps.push(Step { at, action: generator.load_pipeline(format!("p{pipeline}")) });
    }
    for experiment in 0..generator.rng.u64(..=EXPERIMENTS) {
        let at = generator.rng.u64(100..=within);
        steps.push(Step { at, action: generator.start_experiment(format!("e{experiment}")) });
    }
    let bursts = generator.rng.u64(length / 240_000 + 2..=length / 60_000 + 4);
    for _ in 0..bursts {
        let begins = generator.rng.u64(2000..=length.saturating_sub(1000).max(2000));
        let within = *generator.rng.choice(&[20, 300, 3000, 30_000]).unwrap_or(&300);
        for _ in 0..generator.rng.u64(1..=5) {
            let at = begins + generator.rng.u64(..within);
            let action = if chance(&mut generator.rng, 45) && !kinds.is_empty() {
                generator.fault(&kinds)
            } else {
                generator.work()
            };
            steps.push(Step { at, action });
        }
    }
    steps.extend(services(seed, length));
    steps.sort_by_key(|s| s.at);
    Scenario { seed, length, gateways: generator.gateways, servers: generator.servers, steps }
}

/// From a generator of their own: they influence nothing else.
fn services(seed: u64, length: u64) -> Vec<Step> {
    let mut rng = rng::seeded(seed, "services");
    let step = |_| {
        let service = format!("svc{}", rng.u64(..SERVICES));
        let action = if chance(&mut rng, 30) {
            Action::DeleteService { service }
        } else {
            Action::PutService { service, desired: DesiredService { pods: rng.u32(..4) } }
        };
        Step { at: rng.u64(100..=length.max(100)), action }
    };
    (0..length / 30_000 + 4).map(step).collect()
}

fn servers(rng: &mut Rng) -> Vec<ServerSpec> {
    let mut servers = Vec::new();
    let tight = chance(rng, 35);
    for (index, name) in ["alpha", "beta", "gamma"].into_iter().enumerate() {
        if index > 0 && chance(rng, 40) {
            continue;
        }
        let replicas = u32::try_from(rng.u64(1..=if tight { 2 } else { 4 })).unwrap_or(1);
        // Some have ample memory, some too little.
        let memory = if tight { rng.u64(40..=90) } else { *rng.choice(&[120, 250, 100_000]).unwrap_or(&250) };
        let offered: Vec<String> = CAPABILITIES
            .iter()
            .enumerate()
            .filter(|(i, _)| *i == index || chance(rng, 60))
            .map(|(_, c)| (*c).to_owned())
            .collect();
        // The agent always registers its server as shared.
        let shared = true;
        servers.push(ServerSpec { name: name.into(), replicas, memory, capabilities: offered, shared });
    }
    servers
}

struct Generator {
    rng: Rng,
    servers: Vec<ServerSpec>,
    gateways: u32,
    models: Vec<String>,
    next_content: u32,
}

impl Generator {
    fn model(&mut self) -> String {
        self.rng.choice(&self.models).cloned().unwrap_or_default()
    }

    fn load(&mut self, model: String) -> Action {
        // Often the same content: then only the number of replicas differs.
        if self.next_content == 0 || chance(&mut self.rng, 75) {
            self.next_content += 1;
        }
        let artifact = match self.rng.u64(..20) {
            0..=1 => Artifact::Broken,
            2..=3 => Artifact::Flaky,
            4..=5 => Artifact::Slow,
            _ => Artifact::Good,
        };
        let requirement = match self.rng.u64(..12) {
            0 => "fortran",
            n => CAPABILITIES.get(n as usize % 3).copied().unwrap_or("onnx"),
        };
        let replicas = *self.rng.choice(&[0, 1, 1, 1, 2, 2, 3, 4]).unwrap_or(&1);
        let min = u32::from(replicas > 1 && chance(&mut self.rng, 50));
        let server = if chance(&mut self.rng, 15) { self.server().map(|s| s.name) } else { None };
        let desired = DesiredModel {
            content: self.next_content,
            artifact,
            memory: self.rng.u64(1..=40),
            requirement: requirement.into(),
            replicas,
            min,
            server,
        };
        Action::Load { model, desired }
    }

    fn load_pipeline(&mut self, pipeline: String) -> Action {
        let mut steps = self.models.clone();
        self.rng.shuffle(&mut steps);
        steps.truncate(self.rng.u64(1..=3) as usize);
        Action::LoadPipeline {
            pipeline,
            desired: DesiredPipeline { steps, window: self.rng.u64(1..=3) as u32 },
        }
    }

    fn start_experiment(&mut self, experiment: String) -> Action {
        let of_pipelines = chance(&mut self.rng, 40);
        let mut names = if of_pipelines {
            (0..PIPELINES).map(|i| format!("p{i}")).collect()
        } else {
            self.models.clone()
        };
        self.rng.shuffle(&mut names);
        let mirror = if chance(&mut self.rng, 30) { names.pop() } else { None };
        names.truncate(self.rng.u64(1..=2) as usize);
        let candidates = names.into_iter().map(|name| (name, self.rng.u64(1..=100) as u32)).collect();
        let desired = DesiredExperiment { of_pipelines, candidates, mirror };
        Action::StartExperiment { experiment, desired }
    }

    fn server(&mut self) -> Option<ServerSpec> {
        self.rng.choice(&self.servers).cloned()
    }

    fn replica(&mut self) -> (String, u32) {
        let server = self.server();
        let replicas = server.as_ref().map_or(1, |s| s.replicas);
        let replica = u32::try_from(self.rng.u64(..u64::from(replicas))).unwrap_or(0);
        (server.map(|s| s.name).unwrap_or_default(), replica)
    }

    fn work(&mut self) -> Action {
        match self.rng.u64(..28) {
            0..=11 => {
                let model = self.model();
                self.load(model)
            }
            12..=14 => Action::Unload { model: self.model() },
            15 => Action::InvalidLoad { model: self.model(), kind: self.rng.u64(..5) as u32 },
            16 => {
                let replicas = self.rng.u64(1..=5) as u32;
                Action::Announce { server: self.replica().0, replicas }
            }
            17 => {
                let (server, replica) = self.replica();
                Action::Drain { server, replica, down: self.rng.u64(1000..=60_000) }
            }
            18 => {
                let hour = 3_600_000;
                Action::Jump { by: *self.rng.choice(&[hour, -hour, 5000, -5000]).unwrap_or(&hour) }
            }
            20..=22 => {
                let pipeline = format!("p{}", self.rng.u64(..PIPELINES));
                self.load_pipeline(pipeline)
            }
            23 => Action::UnloadPipeline { pipeline: format!("p{}", self.rng.u64(..PIPELINES)) },
            24..=25 => {
                let experiment = format!("e{}", self.rng.u64(..EXPERIMENTS));
                self.start_experiment(experiment)
            }
            26 => Action::StopExperiment { experiment: format!("e{}", self.rng.u64(..EXPERIMENTS)) },
            19 => Action::StalledSubscriber { lasts: self.rng.u64(1000..=120_000) },
            _ => {
                let gateway = self.rng.u64(..u64::from(self.gateways)) as u32;
                Action::SlowRequest { gateway, model: self.model(), lasts: self.rng.u64(5000..=180_000) }
            }
        }
    }

    /// Two connected hosts.
    fn link(&mut self) -> (String, String) {
        let peer = match self.rng.u64(..10) {
            0..=4 => {
                let (server, replica) = self.replica();
                format!("{server}-{replica}")
            }
            5..=8 => format!("gateway-{}", self.rng.u64(..u64::from(self.gateways))),
            _ => "user".into(),
        };
        if chance(&mut self.rng, 50) { (peer, "scheduler".into()) } else { ("scheduler".into(), peer) }
    }

    fn fault(&mut self, kinds: &[&str]) -> Action {
        let kind = self.rng.choice(kinds).copied().unwrap_or("cut");
        let down = *self.rng.choice(&[1, 200, 3000, 20_000, 90_000]).unwrap_or(&3000);
        let down = self.rng.u64(down / 2..=down * 2);
        let silent = chance(&mut self.rng, 40);
        let ((server, replica), (a, b)) = (self.replica(), self.link());
        match kind {
            "leave" => Action::Leave { server, replica, down },
            "crash_replica" => Action::CrashReplica { server, replica, silent, down },
            "crash_agent" => Action::CrashAgent { server, replica, down },
            "restart_server" => Action::RestartServer { server, replica },
            "crash_gateway" => {
                let gateway = self.rng.u64(..u64::from(self.gateways)) as u32;
                Action::CrashGateway { gateway, silent, down }
            }
            "crash_scheduler" => Action::CrashScheduler { silent, down: down.min(30_000) },
            "block" => Action::Block { from: a, to: b, lasts: down },
            "freeze" => Action::Freeze { a, b },
            "lose_replies" => Action::LoseReplies { a, b, ends_after: down.min(5000) },
            "slow" => Action::Slow { a, b, by: self.rng.u64(10..=2000), lasts: down },
            "full_disk" => Action::FullDisk { lasts: down },
            "broken_disk" => Action::BrokenDisk { lasts: down },
            "lose_state" => Action::LoseState { silent, down: down.min(30_000) },
            "lose_node" => Action::LoseNode { server, replica, down: down.max(60_000) },
            "stall_disk" => Action::StallDisk { lasts: self.rng.u64(100..=70_000) },
            _ => Action::Cut { a, b },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_draws_every_kind_of_step() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..300 {
            for step in generate(seed, 3_600_000).steps {
                let json = serde_json::to_value(&step.action).unwrap();
                seen.insert(json["do"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(seen.len(), FAULTS.len() + 14, "{seen:?}");
    }
}
