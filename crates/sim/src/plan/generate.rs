//! From a seed to a plan.
//!
//! Not every plan has every kind of trouble: a plan draws which kinds it has, so that some have one kind in plenty.
//! Steps come in bursts, because what goes wrong goes wrong between two things that happen at once.

use super::{Action, Artifact, Asked, Plan, ServerPlan, Step};
use crate::rng::Rng;

const CAPABILITIES: [&str; 3] = ["onnx", "xgboost", "lightgbm"];

/// What a plan's trouble is drawn from.
const TROUBLE: [&str; 13] = [
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
];

/// The plan of a seed; things happen for so many virtual milliseconds.
pub(crate) fn generate(seed: u64, length: u64) -> Plan {
    let mut rng = Rng::of(seed, "plan");
    let servers = servers(&mut rng);
    let gateways = u32::try_from(rng.between(1, 3)).unwrap_or(1);
    let models: Vec<String> = (0..rng.between(2, 9)).map(|i| format!("m{i}")).collect();
    let mut drawn = Draw { rng, servers, gateways, models, next_content: 0 };
    // One plan in four has no fault at all: there every request must be answered.
    let kinds: Vec<&str> = match drawn.rng.below(4) {
        0 => Vec::new(),
        _ => TROUBLE.into_iter().filter(|_| drawn.rng.chance(40)).collect(),
    };
    let mut steps = Vec::new();
    // Every model is asked for early, so that there is something to break.
    for model in drawn.models.clone() {
        let at = drawn.rng.between(100, 3000);
        steps.push(Step { at, action: drawn.load(model) });
    }
    let bursts = drawn.rng.between(length / 240_000 + 2, length / 60_000 + 4);
    for _ in 0..bursts {
        let begins = drawn.rng.between(2000, length.saturating_sub(1000).max(2000));
        let within = *drawn.rng.pick(&[20, 300, 3000, 30_000]).unwrap_or(&300);
        for _ in 0..drawn.rng.between(1, 5) {
            let at = begins + drawn.rng.below(within);
            let action =
                if drawn.rng.chance(45) && !kinds.is_empty() { drawn.fault(&kinds) } else { drawn.work() };
            steps.push(Step { at, action });
        }
    }
    steps.sort_by_key(|s| s.at);
    Plan { seed, length, gateways: drawn.gateways, servers: drawn.servers, steps }
}

fn servers(rng: &mut Rng) -> Vec<ServerPlan> {
    let mut servers = Vec::new();
    for (index, name) in ["alpha", "beta", "gamma"].into_iter().enumerate() {
        if index > 0 && rng.chance(40) {
            continue;
        }
        let replicas = u32::try_from(rng.between(1, 4)).unwrap_or(1);
        // Some have more than enough for every model, some must say no.
        let memory = *rng.pick(&[60, 120, 250, 100_000]).unwrap_or(&250);
        let offered: Vec<String> = CAPABILITIES
            .iter()
            .enumerate()
            .filter(|(i, _)| *i == index || rng.chance(60))
            .map(|(_, c)| (*c).to_owned())
            .collect();
        let shared = index == 0 || rng.chance(80);
        servers.push(ServerPlan { name: name.into(), replicas, memory, capabilities: offered, shared });
    }
    servers
}

struct Draw {
    rng: Rng,
    servers: Vec<ServerPlan>,
    gateways: u32,
    models: Vec<String>,
    next_content: u32,
}

impl Draw {
    fn model(&mut self) -> String {
        self.rng.pick(&self.models).cloned().unwrap_or_default()
    }

    fn load(&mut self, model: String) -> Action {
        // Often the same content again: then only the number of replicas may differ.
        if self.next_content == 0 || self.rng.chance(75) {
            self.next_content += 1;
        }
        let artifact = match self.rng.below(20) {
            0..=1 => Artifact::Broken,
            2..=3 => Artifact::Flaky,
            4..=5 => Artifact::Slow,
            _ => Artifact::Good,
        };
        let requirement = match self.rng.below(12) {
            0 => "fortran",
            n => CAPABILITIES.get(n as usize % 3).copied().unwrap_or("onnx"),
        };
        let replicas = *self.rng.pick(&[0, 1, 1, 1, 2, 2, 3, 4]).unwrap_or(&1);
        let min = if replicas > 1 && self.rng.chance(50) { 1 } else { 0 };
        let server = if self.rng.chance(15) { self.server().map(|s| s.name) } else { None };
        let asked = Asked {
            content: self.next_content,
            artifact,
            memory: self.rng.between(1, 40),
            requirement: requirement.into(),
            replicas,
            min,
            server,
        };
        Action::Load { model, asked }
    }

    fn server(&mut self) -> Option<ServerPlan> {
        self.rng.pick(&self.servers).cloned()
    }

    fn replica(&mut self) -> (String, u32) {
        let server = self.server();
        let replicas = server.as_ref().map_or(1, |s| s.replicas);
        let replica = u32::try_from(self.rng.below(u64::from(replicas))).unwrap_or(0);
        (server.map(|s| s.name).unwrap_or_default(), replica)
    }

    fn work(&mut self) -> Action {
        match self.rng.below(20) {
            0..=11 => {
                let model = self.model();
                self.load(model)
            }
            12..=14 => Action::Unload { model: self.model() },
            15 => Action::Nonsense { model: self.model(), kind: self.rng.below(5) as u32 },
            16 => {
                let replicas = self.rng.between(1, 5) as u32;
                Action::Announce { server: self.replica().0, replicas }
            }
            17 => {
                let (server, replica) = self.replica();
                Action::Drain { server, replica, down: self.rng.between(1000, 60_000) }
            }
            18 => {
                let hour = 3_600_000;
                Action::Jump { by: *self.rng.pick(&[hour, -hour, 5000, -5000]).unwrap_or(&hour) }
            }
            _ => Action::DeafSubscriber { lasts: self.rng.between(1000, 120_000) },
        }
    }

    /// Two hosts that talk to each other.
    fn link(&mut self) -> (String, String) {
        let peer = match self.rng.below(10) {
            0..=4 => {
                let (server, replica) = self.replica();
                format!("{server}-{replica}")
            }
            5..=8 => format!("gateway-{}", self.rng.below(u64::from(self.gateways))),
            _ => "user".into(),
        };
        if self.rng.chance(50) { (peer, "scheduler".into()) } else { ("scheduler".into(), peer) }
    }

    fn fault(&mut self, kinds: &[&str]) -> Action {
        let kind = self.rng.pick(kinds).copied().unwrap_or("cut");
        let down = *self.rng.pick(&[1, 200, 3000, 20_000, 90_000]).unwrap_or(&3000);
        let down = self.rng.between(down / 2, down * 2);
        let silent = self.rng.chance(40);
        let ((server, replica), (a, b)) = (self.replica(), self.link());
        match kind {
            "leave" => Action::Leave { server, replica, down },
            "crash_replica" => Action::CrashReplica { server, replica, silent, down },
            "crash_agent" => Action::CrashAgent { server, replica, down },
            "restart_server" => Action::RestartServer { server, replica },
            "crash_gateway" => {
                let gateway = self.rng.below(u64::from(self.gateways)) as u32;
                Action::CrashGateway { gateway, silent, down }
            }
            "crash_scheduler" => Action::CrashScheduler { silent, down: down.min(30_000) },
            "block" => Action::Block { from: a, to: b, lasts: down },
            "freeze" => Action::Freeze { a, b },
            "lose_replies" => Action::LoseReplies { a, b, ends_after: down.min(5000) },
            "slow" => Action::Slow { a, b, by: self.rng.between(10, 2000), lasts: down },
            "full_disk" => Action::FullDisk { lasts: down },
            "broken_disk" => Action::BrokenDisk { lasts: down },
            _ => Action::Cut { a, b },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_step_is_drawn() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..300 {
            for step in generate(seed, 3_600_000).steps {
                let json = serde_json::to_value(&step.action).unwrap();
                seen.insert(json["do"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(seen.len(), TROUBLE.len() + 7, "{seen:?}");
    }
}
