//! Models that need several nodes: a head, which serves, and workers in a Deployment of their own.

use super::{
    pod::{MODEL_DIR, add_env, name_of, set},
    runtime::Runtime,
    template::Placeholders,
};
use crate::{cluster::Key, workload::merge};
use gantry_api::kserve::WorkerSpec;
use serde_json::{Map, Value, json};

const WORKER: &str = "worker-container";
/// Label of the pods, with the generation of the service: a head finds the workers of its own generation.
pub(super) const GENERATION: &str = "isvc.generation";
/// Label of the Services, `head` or `worker`.
pub(super) const ROLE: &str = "multinode/role";
/// Annotation of the service: `mp`, else Ray.
pub(super) const BACKEND: &str = "multinode/executor-backend";
/// Annotation of the service with further GPU resources, as a JSON array.
pub(super) const GPU_TYPES: &str = "serving.kserve.io/gpu-resource-types";
const GPUS: [&str; 4] = ["nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu", "habana.ai/gaudi"];
const MIG: &str = "nvidia.com/mig";
/// Of one model: more is a mistake.
const MAX_NODES: u32 = 1_000;
/// Variables that sizes of the spec set.
const SIZES: [&str; 2] = ["PIPELINE_PARALLEL_SIZE", "TENSOR_PARALLEL_SIZE"];

/// The workers of a predictor.
#[derive(Clone, Debug)]
pub(super) struct Workers {
    pub key: Key,
    pub replicas: u32,
    pub pod: Value,
    /// Names of the headless Services.
    pub head_service: String,
    pub worker_service: String,
}

/// Why they cannot be built: reason and message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MultiNodeError {
    pub reason: &'static str,
    pub message: String,
}

fn error(reason: &'static str, message: impl Into<String>) -> MultiNodeError {
    MultiNodeError { reason, message: message.into() }
}

/// A predictor with `workerSpec`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MultiNode<'a> {
    pub service: &'a Key,
    pub generation: i64,
    pub spec: &'a WorkerSpec,
    pub runtime: &'a Runtime,
    pub placeholders: &'a Placeholders<'a>,
    /// GPU resources beside the well-known ones.
    pub gpu_types: &'a [String],
    /// Python's multiprocessing instead of Ray.
    pub is_mp: bool,
}

impl MultiNode<'_> {
    /// The workers of a head, whose pod gets the variables and GPUs of its node.
    pub(super) fn build(&self, head: &mut Value, name: &str) -> Result<Workers, MultiNodeError> {
        let Some(of_runtime) = &self.runtime.spec.worker_spec else {
            let message = format!(
                "spec.predictor.workerSpec needs a runtime with workerSpec, which {} has not: name another one in \
                 spec.predictor.model.runtime",
                self.runtime.name
            );
            return Err(error("InvalidWorkerSpecNotSet", message));
        };
        let mut worker_pod = self.pod(of_runtime)?;
        let size = |own: Option<i32>, of_runtime: Option<i32>| {
            own.or(of_runtime).and_then(|size| u32::try_from(size).ok()).unwrap_or(1).max(1)
        };
        let pipeline = size(self.spec.pipeline_parallel_size, of_runtime.pipeline_parallel_size);
        let tensor = size(self.spec.tensor_parallel_size, of_runtime.tensor_parallel_size);
        let of_head = head.pointer("/containers/0").and_then(|container| self.gpus(container));
        let of_worker = worker_pod.pointer("/containers/0").and_then(|container| self.gpus(container));
        let count = |gpus: &Option<(String, u32)>| gpus.as_ref().map(|(_, count)| *count);
        let nodes = nodes(pipeline, tensor, count(&of_head), count(&of_worker), self.is_mp)
            .map_err(|message| error("InvalidGPUAllocation", message))?;
        let kind = of_head.or(of_worker).map_or_else(|| GPUS[0].to_owned(), |(kind, _)| kind);
        let (head_service, worker_service) = (
            format!("{}-head-{}", self.service.name, self.generation),
            format!("{}-workers-{}", self.service.name, self.generation),
        );
        let common = [
            (SIZES[0], pipeline.to_string()),
            (SIZES[1], tensor.to_string()),
            ("RAY_NODE_COUNT", nodes.count.to_string()),
            ("ISVC_NAME", self.service.name.clone()),
            ("HEAD_SVC", head_service.clone()),
            ("WORKER_SVC", worker_service.clone()),
        ];
        for (pod, gpus) in [(&mut *head, nodes.head_gpus), (&mut worker_pod, nodes.worker_gpus)] {
            let Some(container) = pod.pointer_mut("/containers/0") else { continue };
            if let Some(variable) = SIZES.iter().find(|name| has_env(container, name)) {
                let message = format!(
                    "container {} has the variable {variable}: set pipelineParallelSize and tensorParallelSize of workerSpec",
                    name_of(container)
                );
                return Err(error("InvalidPredictorSpec", message));
            }
            for (name, value) in &common {
                add_env(container, name, value);
            }
            add_env(container, "REQUEST_GPU_COUNT", &gpus.to_string());
            let amount = json!({ kind.clone(): gpus.to_string() });
            let resources = json!({ "resources": { "limits": amount, "requests": amount } });
            *container = merge(&resources, container);
        }
        if let Some(main) = head.pointer_mut("/containers/0") {
            add_env(main, "MODEL_NAME", &self.service.name);
            add_env(main, "MODEL_DIR", MODEL_DIR);
        }
        let key = Key::new(self.service.namespace.clone(), format!("{name}-worker"));
        let replicas = nodes.count.saturating_sub(1);
        Ok(Workers { key, replicas, pod: worker_pod, head_service, worker_service })
    }

    /// The pod of a worker: that of the runtime with the changes of the service.
    fn pod(&self, of_runtime: &WorkerSpec) -> Result<Value, MultiNodeError> {
        let Some(base) = of_runtime.containers.first() else {
            let message = format!("workerSpec of runtime {} has no container", self.runtime.name);
            return Err(error("InvalidWorkerSpecNotSet", message));
        };
        let invalid = |problem: String| {
            let message = format!("container {WORKER} of runtime {}: {problem}", self.runtime.name);
            error("InvalidPredictorSpec", message)
        };
        let own = self.spec.containers.first().cloned().unwrap_or_else(|| json!({}));
        let args =
            |container: &Value| container.get("args").and_then(Value::as_array).cloned().unwrap_or_default();
        let joined: Vec<Value> = args(base).into_iter().chain(args(&own)).collect();
        let mut container = merge(base, &own);
        set(&mut container, "args", if joined.is_empty() { Value::Null } else { joined.into() });
        set(&mut container, "name", WORKER.into());
        let container = self.placeholders.fill_value(&container).map_err(invalid)?;
        let object = |pod: &Map<String, Value>| Value::Object(pod.clone());
        let mut pod = merge(&object(&of_runtime.pod), &object(&self.spec.pod));
        set(&mut pod, "containers", json!([container]));
        Ok(pod)
    }

    /// Kind and number of the GPUs that a container names.
    fn gpus(&self, container: &Value) -> Option<(String, u32)> {
        let is_gpu = |name: &str| {
            GPUS.contains(&name) || name.starts_with(MIG) || self.gpu_types.iter().any(|known| known == name)
        };
        ["/resources/limits", "/resources/requests"].into_iter().find_map(|at| {
            let amounts = container.pointer(at)?.as_object()?;
            let (name, amount) = amounts.iter().find(|(name, _)| is_gpu(name))?;
            let count = amount.as_u64().or_else(|| amount.as_str()?.parse().ok())?;
            Some((name.clone(), u32::try_from(count).ok()?))
        })
    }
}

fn has_env(container: &Value, name: &str) -> bool {
    let env = container.get("env").and_then(Value::as_array);
    env.into_iter().flatten().any(|variable| name_of(variable) == name)
}

/// GPU resources that the annotation of a service adds.
pub(super) fn annotated_gpu_types(text: Option<&str>) -> Result<Vec<String>, MultiNodeError> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let types: Option<Vec<String>> = serde_json::from_str(text).ok();
    types.filter(|types| types.iter().all(|name| !name.is_empty())).ok_or_else(|| {
        let message = format!(
            r#"the annotation {GPU_TYPES} is {text}: write a JSON array such as ["example.com/gpu"]"#
        );
        error("InvalidGPUAllocation", message)
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Nodes {
    /// The head included.
    count: u32,
    head_gpus: u32,
    worker_gpus: u32,
}

/// The nodes of a model on `pipeline` times `tensor` GPUs. With Ray, the GPUs per node of the containers count: one per node
/// without them.
fn nodes(
    pipeline: u32,
    tensor: u32,
    head: Option<u32>,
    worker: Option<u32>,
    is_mp: bool,
) -> Result<Nodes, String> {
    if is_mp {
        if pipeline > MAX_NODES {
            return Err(format!(
                "pipelineParallelSize is {pipeline}, at most {MAX_NODES} nodes are possible: lower it"
            ));
        }
        return Ok(Nodes { count: pipeline, head_gpus: tensor, worker_gpus: tensor });
    }
    let total = pipeline.saturating_mul(tensor);
    let (head_gpus, worker_gpus) = match (head.filter(|n| *n > 0), worker.filter(|n| *n > 0)) {
        (None, None) => (1, 1),
        (Some(one), None) | (None, Some(one)) => (one, one),
        (Some(head), Some(worker)) if total < head.saturating_add(worker) => {
            return Err(format!(
                "pipelineParallelSize {pipeline} times tensorParallelSize {tensor} is {total} GPUs, less than the {head} of the \
                 head and {worker} of a worker: raise the sizes, or lower the GPUs of the containers"
            ));
        }
        (Some(head), Some(worker)) => (head, worker),
    };
    let count = total.saturating_sub(head_gpus).div_ceil(worker_gpus).saturating_add(1);
    if count > MAX_NODES {
        return Err(format!(
            "{total} GPUs would need {count} nodes, at most {MAX_NODES} are possible: lower the sizes"
        ));
    }
    Ok(Nodes { count, head_gpus, worker_gpus })
}

/// A headless Service that finds pods before they are ready.
pub(super) fn service_spec(app: &str, generation: &str) -> Value {
    json!({
        "clusterIP": "None",
        "publishNotReadyAddresses": true,
        "selector": { "app": app, GENERATION: generation },
    })
}

/// Whether this is the name of a head's or workers' Service of a service, of any generation.
pub(super) fn is_node_service(service: &str, name: &str) -> bool {
    let generation = |role: &str| name.strip_prefix(service)?.strip_prefix(role);
    ["-head-", "-workers-"].into_iter().filter_map(generation).any(|text| text.parse::<i64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_follow_from_sizes_and_gpus() {
        for ((pipeline, tensor, head, worker, is_mp), expected) in [
            ((2, 1, None, None, false), Some((2, 1, 1))),
            ((2, 4, None, None, false), Some((8, 1, 1))),
            ((2, 4, Some(4), None, false), Some((2, 4, 4))),
            ((2, 4, None, Some(2), false), Some((4, 2, 2))),
            ((2, 4, Some(4), Some(4), false), Some((2, 4, 4))),
            ((3, 3, Some(4), Some(2), false), Some((4, 4, 2))),
            ((1, 4, Some(4), Some(4), false), None),
            ((1, 1, None, None, false), Some((1, 1, 1))),
            ((3, 2, Some(8), Some(8), true), Some((3, 2, 2))),
            ((u32::MAX, 2, None, Some(1), false), None),
            ((1_001, 1, None, None, true), None),
        ] {
            let found = nodes(pipeline, tensor, head, worker, is_mp).ok();
            let found = found.map(|nodes| (nodes.count, nodes.head_gpus, nodes.worker_gpus));
            assert_eq!(found, expected, "{pipeline} {tensor} {head:?} {worker:?} {is_mp}");
        }
    }

    #[test]
    fn services_of_nodes_have_a_generation() {
        for (name, expected) in [
            ("a-head-1", true),
            ("a-workers-12", true),
            ("a-head-x", false),
            ("a-predictor", false),
            ("b-head-1", false),
        ] {
            assert_eq!(is_node_service("a", name), expected, "{name}");
        }
    }

    #[test]
    fn annotation_adds_gpu_types() {
        assert_eq!(annotated_gpu_types(None), Ok(Vec::new()));
        assert_eq!(annotated_gpu_types(Some(r#"["a.b/c"]"#)), Ok(vec!["a.b/c".into()]));
        for text in ["", "a", r#"{"a": 1}"#, r#"[""]"#, "[1]"] {
            assert_eq!(annotated_gpu_types(Some(text)).unwrap_err().reason, "InvalidGPUAllocation", "{text}");
        }
    }
}
