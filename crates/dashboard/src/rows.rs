//! Objects as lists show them.

use gantry_api::INFERENCE_SERVICE;
use gantry_proto::{
    gantry::RolloutStatus,
    scheduler::{self as pb, model_status::ModelState, pipeline_version_state::PipelineStatus},
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum State {
    /// Stays so until its definition, its files or a server change.
    Failed,
    Progressing,
    /// Scaled to zero: the next request wakes it.
    Idle,
    Ready,
}

/// A row of any kind: what search, filters and events need.
pub(crate) trait Row: Clone + Send + Sync + 'static {
    /// As in explanations and commands.
    const KIND: &'static str;
    fn name(&self) -> &str;
    fn state(&self) -> State;
    /// One sentence.
    fn message(&self) -> &str;
    fn since_ms(&self) -> Option<u64>;
    /// Text beside the name that a search finds.
    fn matches(&self, _word: &str) -> bool {
        false
    }
    fn version(&self) -> u32 {
        0
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModelRow {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) message: String,
    pub(crate) version: u32,
    pub(crate) server: String,
    pub(crate) available: u32,
    pub(crate) desired: u32,
    pub(crate) since_ms: Option<u64>,
    pub(crate) requirements: Vec<String>,
    pub(crate) memory_bytes: Option<u64>,
    /// Of an InferenceService.
    pub(crate) namespace: Option<String>,
    pub(crate) owner: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerRow {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) message: String,
    pub(crate) available: i32,
    pub(crate) expected: i32,
    pub(crate) models: i32,
    pub(crate) memory_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) replicas: Vec<ReplicaRow>,
    pub(crate) owner: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicaRow {
    pub(crate) replica: u32,
    pub(crate) models: i32,
    pub(crate) memory_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) over_commit_percentage: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PipelineRow {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) message: String,
    pub(crate) version: u32,
    pub(crate) steps: Vec<String>,
    pub(crate) since_ms: Option<u64>,
    pub(crate) owner: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExperimentRow {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) message: String,
    /// The name that clients use.
    pub(crate) target: String,
    /// `model` or `pipeline`.
    pub(crate) of: &'static str,
    pub(crate) candidates: Vec<CandidateRow>,
    pub(crate) mirror: Option<CandidateRow>,
    pub(crate) sticky: bool,
    pub(crate) owner: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CandidateRow {
    pub(crate) name: String,
    /// Percentage of the requests.
    pub(crate) share: f64,
}

/// A rollout; its name is that of the model, `pipeline/NAME` or `isvc/NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RolloutRow {
    pub(crate) name: String,
    pub(crate) status: RolloutStatus,
}

impl Row for ModelRow {
    const KIND: &'static str = "model";
    fn name(&self) -> &str {
        &self.name
    }
    fn state(&self) -> State {
        self.state
    }
    fn message(&self) -> &str {
        &self.message
    }
    fn since_ms(&self) -> Option<u64> {
        self.since_ms
    }
    fn matches(&self, word: &str) -> bool {
        self.server.contains(word) || self.requirements.iter().any(|r| r.contains(word))
    }
    fn version(&self) -> u32 {
        self.version
    }
}

impl Row for ServerRow {
    const KIND: &'static str = "server";
    fn name(&self) -> &str {
        &self.name
    }
    fn state(&self) -> State {
        self.state
    }
    fn message(&self) -> &str {
        &self.message
    }
    fn since_ms(&self) -> Option<u64> {
        None
    }
}

impl Row for PipelineRow {
    const KIND: &'static str = "pipeline";
    fn name(&self) -> &str {
        &self.name
    }
    fn state(&self) -> State {
        self.state
    }
    fn message(&self) -> &str {
        &self.message
    }
    fn since_ms(&self) -> Option<u64> {
        self.since_ms
    }
    fn matches(&self, word: &str) -> bool {
        self.steps.iter().any(|step| step.contains(word))
    }
    fn version(&self) -> u32 {
        self.version
    }
}

impl Row for ExperimentRow {
    const KIND: &'static str = "experiment";
    fn name(&self) -> &str {
        &self.name
    }
    fn state(&self) -> State {
        self.state
    }
    fn message(&self) -> &str {
        &self.message
    }
    fn since_ms(&self) -> Option<u64> {
        None
    }
    fn matches(&self, word: &str) -> bool {
        self.target.contains(word) || self.candidates.iter().any(|c| c.name.contains(word))
    }
}

impl Row for RolloutRow {
    const KIND: &'static str = "rollout";
    fn name(&self) -> &str {
        &self.name
    }
    fn state(&self) -> State {
        match self.status.phase.as_str() {
            "RollingBack" | "Reverting" => State::Failed,
            _ if self.status.candidate.is_some() => State::Progressing,
            _ => State::Ready,
        }
    }
    fn message(&self) -> &str {
        &self.status.message
    }
    fn since_ms(&self) -> Option<u64> {
        None
    }
}

pub(crate) fn millis(at: Option<prost_types::Timestamp>) -> Option<u64> {
    let at = at.filter(|at| at.seconds > 0)?;
    u64::try_from(at.seconds)
        .ok()?
        .checked_mul(1000)?
        .checked_add(u64::from(at.nanos.unsigned_abs()) / 1_000_000)
}

/// A row, or the name of an object that is gone.
pub(crate) type Observed<R> = Result<R, String>;

pub(crate) fn model(status: pb::ModelStatusResponse) -> Observed<ModelRow> {
    use ModelState as S;
    let name = status.model_name;
    let Some(version) = status.versions.into_iter().max_by_key(|version| version.version) else {
        return Err(name);
    };
    let state = version.state.clone().unwrap_or_default();
    let is_gone = matches!(state.state(), S::ModelTerminating | S::ModelTerminated | S::ModelTerminate);
    if status.deleted || is_gone {
        return Err(name);
    }
    let definition = version.model_defn.unwrap_or_default();
    let meta = definition.meta.unwrap_or_default();
    let spec = definition.model_spec.unwrap_or_default();
    let is_service = meta.kind.as_deref() == Some(INFERENCE_SERVICE);
    let number = version.version;
    let message = match (state.reason.as_str(), state.state()) {
        ("", S::ModelAvailable) => format!("serving version {number}"),
        ("", S::ModelScaledDown) => "scaled to zero; the next request wakes it".to_owned(),
        ("", S::ModelProgressing) if !version.server_name.is_empty() => {
            format!("loading version {number} on {}", version.server_name)
        }
        ("", _) => format!("waiting to place version {number}"),
        (reason, _) => reason.to_owned(),
    };
    Ok(ModelRow {
        state: match state.state() {
            S::ModelAvailable => State::Ready,
            S::ModelScaledDown => State::Idle,
            S::ModelFailed | S::ScheduleFailed | S::ModelTerminateFailed => State::Failed,
            _ => State::Progressing,
        },
        message,
        version: number,
        server: version.server_name,
        available: state.available_replicas,
        desired: state.available_replicas.saturating_add(state.unavailable_replicas),
        since_ms: millis(state.last_change_timestamp),
        requirements: spec.requirements,
        memory_bytes: spec.memory_bytes,
        namespace: meta.kubernetes_meta.filter(|_| is_service).map(|meta| meta.namespace),
        owner: status.manager,
        name,
    })
}

pub(crate) fn server(status: pb::ServerStatusResponse) -> Observed<ServerRow> {
    let (expected, available) = (status.expected_replicas, status.available_replicas);
    if expected == 0 && available == 0 {
        return Err(status.server_name);
    }
    let replicas = |count: i32| if count == 1 { "1 replica".to_owned() } else { format!("{count} replicas") };
    let (state, message) = match () {
        () if expected == 0 => (State::Progressing, "draining: no replica is expected".to_owned()),
        () if available >= expected => (State::Ready, format!("{} joined", replicas(available))),
        () if available == 0 => (State::Failed, format!("none of {} joined", replicas(expected))),
        () => (State::Progressing, format!("{available} of {} joined", replicas(expected))),
    };
    let mut rows: Vec<ReplicaRow> = status
        .resources
        .iter()
        .map(|resources| ReplicaRow {
            replica: resources.replica_idx,
            models: resources.num_loaded_models,
            memory_bytes: resources.total_memory_bytes,
            free_bytes: resources.available_memory_bytes,
            over_commit_percentage: resources.over_commit_percentage,
        })
        .collect();
    rows.sort_by_key(|row| row.replica);
    Ok(ServerRow {
        name: status.server_name,
        state,
        message,
        available,
        expected,
        models: status.num_loaded_model_replicas,
        memory_bytes: rows.iter().map(|row| row.memory_bytes).fold(0, u64::saturating_add),
        free_bytes: rows.iter().map(|row| row.free_bytes).fold(0, u64::saturating_add),
        replicas: rows,
        owner: status.manager,
    })
}

pub(crate) fn pipeline(status: pb::PipelineStatusResponse) -> Observed<PipelineRow> {
    use PipelineStatus as S;
    let name = status.pipeline_name;
    let number = |version: &pb::PipelineWithState| version.state.as_ref().map_or(0, |s| s.pipeline_version);
    let Some(latest) = status.versions.into_iter().max_by_key(number) else { return Err(name) };
    let (definition, state) = (latest.pipeline.unwrap_or_default(), latest.state.unwrap_or_default());
    if matches!(state.status(), S::PipelineTerminate | S::PipelineTerminating | S::PipelineTerminated) {
        return Err(name);
    }
    let is_ready = state.status() == S::PipelineReady
        && state.models_ready
        && state.pipeline_gw_status() == S::PipelineReady;
    let is_failed = matches!(state.status(), S::PipelineFailed | S::PipelineFailedTerminating);
    let version = state.pipeline_version;
    let message = if is_ready {
        format!("serving version {version}")
    } else if !state.models_ready && !state.reason.is_empty() {
        state.reason.clone()
    } else if !state.pipeline_gw_reason.is_empty() {
        state.pipeline_gw_reason.clone()
    } else if !state.reason.is_empty() {
        state.reason.clone()
    } else {
        format!("creating version {version}")
    };
    Ok(PipelineRow {
        name,
        state: match (is_ready, is_failed) {
            (true, _) => State::Ready,
            (false, true) => State::Failed,
            (false, false) => State::Progressing,
        },
        message,
        version,
        steps: definition.steps.into_iter().map(|step| step.name).collect(),
        since_ms: millis(state.last_change_timestamp),
        owner: status.manager,
    })
}

pub(crate) fn experiment(status: pb::ExperimentStatusResponse) -> Observed<ExperimentRow> {
    let name = status.experiment_name;
    if status.deleted {
        return Err(name);
    }
    let definition = status.definition.unwrap_or_default();
    let target = definition.default.clone().unwrap_or_else(|| format!("{name}.experiment"));
    let total: u64 = definition.candidates.iter().map(|c| u64::from(c.weight)).sum();
    let share = |weight: u32| if total == 0 { 0.0 } else { f64::from(weight) * 100.0 / total as f64 };
    let message = match (status.active, status.status_description.as_str()) {
        (true, _) => format!("splitting {target}"),
        (false, "") => "waiting for its candidates".to_owned(),
        (false, reason) => reason.to_owned(),
    };
    Ok(ExperimentRow {
        state: if status.active { State::Ready } else { State::Progressing },
        message,
        of: match definition.resource_type() {
            pb::ResourceType::Model => "model",
            pb::ResourceType::Pipeline => "pipeline",
        },
        sticky: definition.config.is_some_and(|config| config.sticky_sessions),
        candidates: definition
            .candidates
            .iter()
            .map(|c| CandidateRow { name: c.name.clone(), share: share(c.weight) })
            .collect(),
        mirror: definition
            .mirror
            .as_ref()
            .map(|m| CandidateRow { name: m.name.clone(), share: f64::from(m.percent) }),
        target,
        owner: status.manager,
        name,
    })
}

pub(crate) fn rollout(status: RolloutStatus) -> RolloutRow {
    let name = match (status.pipeline.as_str(), status.service.as_str()) {
        ("", "") => status.model.clone(),
        (pipeline, "") => format!("pipeline/{pipeline}"),
        (_, service) => format!("isvc/{service}"),
    };
    RolloutRow { name, status }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model_status(state: ModelState, reason: &str) -> pb::ModelStatusResponse {
        pb::ModelStatusResponse {
            model_name: "iris".into(),
            versions: vec![pb::ModelVersionStatus {
                version: 2,
                server_name: "builtin".into(),
                state: Some(pb::ModelStatus {
                    state: state.into(),
                    reason: reason.into(),
                    available_replicas: 1,
                    unavailable_replicas: 1,
                    ..pb::ModelStatus::default()
                }),
                ..pb::ModelVersionStatus::default()
            }],
            ..pb::ModelStatusResponse::default()
        }
    }

    #[test]
    fn state_and_message_follow_the_status() {
        for (state, reason, expected, message) in [
            (ModelState::ModelAvailable, "", State::Ready, "serving version 2"),
            (ModelState::ModelProgressing, "", State::Progressing, "loading version 2 on builtin"),
            (ModelState::ScheduleFailed, "no server", State::Failed, "no server"),
            (ModelState::ModelScaledDown, "", State::Idle, "scaled to zero; the next request wakes it"),
        ] {
            let row = model(model_status(state, reason)).unwrap();
            assert_eq!((row.state, row.message.as_str(), row.desired), (expected, message, 2));
        }
    }

    #[test]
    fn deleted_objects_have_no_row() {
        assert_eq!(model(model_status(ModelState::ModelTerminating, "")), Err("iris".into()));
        let gone =
            pb::ServerStatusResponse { server_name: "s".into(), ..pb::ServerStatusResponse::default() };
        assert_eq!(server(gone), Err("s".into()));
        let stopped =
            pb::ExperimentStatusResponse { experiment_name: "e".into(), deleted: true, ..Default::default() };
        assert_eq!(experiment(stopped), Err("e".into()));
    }

    #[test]
    fn server_without_a_replica_has_failed() {
        for (expected, available, state) in [
            (2, 2, State::Ready),
            (2, 1, State::Progressing),
            (2, 0, State::Failed),
            (0, 1, State::Progressing),
        ] {
            let status = pb::ServerStatusResponse {
                server_name: "s".into(),
                expected_replicas: expected,
                available_replicas: available,
                ..pb::ServerStatusResponse::default()
            };
            assert_eq!(server(status).unwrap().state, state);
        }
    }

    #[test]
    fn shares_are_percentages_of_all_weights() {
        let candidate = |name: &str, weight| pb::ExperimentCandidate { name: name.into(), weight };
        let row = experiment(pb::ExperimentStatusResponse {
            experiment_name: "half".into(),
            active: true,
            definition: Some(pb::Experiment {
                candidates: vec![candidate("a", 1), candidate("b", 3)],
                ..Default::default()
            }),
            ..pb::ExperimentStatusResponse::default()
        });
        let row = row.unwrap();
        assert_eq!(row.target, "half.experiment");
        assert_eq!(row.candidates.iter().map(|c| c.share).collect::<Vec<_>>(), [25.0, 75.0]);
    }
}
