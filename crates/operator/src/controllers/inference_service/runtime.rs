//! Selection of the runtime that serves a model.

use gantry_api::kserve::{PredictorModel, ServingRuntimeSpec};
use std::{cmp::Reverse, collections::BTreeMap};

/// A `ServingRuntime` or `ClusterServingRuntime`.
#[derive(Clone, Debug, PartialEq)]
pub struct Runtime {
    pub name: String,
    pub is_cluster_wide: bool,
    /// Seconds since the epoch.
    pub created: i64,
    /// Annotations of the object, not of its pods.
    pub annotations: BTreeMap<String, String>,
    pub spec: ServingRuntimeSpec,
}

/// Why no runtime serves a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRuntime {
    /// KServe's reason in `modelStatus.lastFailureInfo`.
    pub reason: &'static str,
    pub message: String,
}

/// Orders protocols as KServe does.
fn protocol_rank(protocol: &str) -> u8 {
    match protocol {
        "v1" => 1,
        "v2" => 2,
        "grpc-v1" => 3,
        "grpc-v2" => 4,
        _ => 5,
    }
}

impl Runtime {
    fn is_disabled(&self) -> bool {
        self.spec.disabled == Some(true)
    }

    /// Whether it lists the model's format; automatic selection counts entries with `autoSelect` only.
    fn has_format(&self, model: &PredictorModel, is_automatic: bool) -> bool {
        let wanted = &model.model_format;
        let counts = |auto_select: Option<bool>| !is_automatic || auto_select == Some(true);
        self.spec.supported_model_formats.iter().any(|format| {
            let same_version = wanted.version.is_none() || format.version == wanted.version;
            counts(format.auto_select) && format.name == wanted.name && same_version
        })
    }

    /// A runtime without protocols supports all.
    fn has_protocol(&self, protocol: &str) -> bool {
        let protocols = &self.spec.protocol_versions;
        protocols.is_empty() || protocols.iter().any(|p| p == protocol)
    }

    fn first_protocol(&self) -> u8 {
        self.spec.protocol_versions.iter().map(|p| protocol_rank(p)).min().unwrap_or(5)
    }

    /// The protocol of a model that names none.
    pub fn default_protocol(&self) -> &str {
        let known = self.spec.protocol_versions.iter().min_by_key(|p| protocol_rank(p));
        known.map_or("v1", String::as_str)
    }

    fn priority(&self, format: &str) -> Option<i32> {
        self.spec.supported_model_formats.iter().find(|f| f.name == format)?.priority
    }

    /// Whether automatic selection may choose it.
    fn fits(&self, model: &PredictorModel, is_multi_node: bool) -> bool {
        let protocol = model.framework.protocol_version.as_deref().unwrap_or("v1");
        !self.is_disabled()
            && self.spec.multi_model != Some(true)
            && self.has_format(model, true)
            && self.has_protocol(protocol)
            && self.spec.worker_spec.is_some() == is_multi_node
    }
}

/// The runtime in use, as the status records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRuntime<'a> {
    pub name: &'a str,
    pub is_cluster_wide: bool,
}

/// The runtime of a model: the one it names, else the one in use while that fits, else the best one of its namespace,
/// else the best one of the cluster.
pub fn select<'a>(
    model: &PredictorModel,
    is_multi_node: bool,
    runtimes: &'a [Runtime],
    recorded: Option<RecordedRuntime<'_>>,
) -> Result<&'a Runtime, NoRuntime> {
    let format = format_name(model);
    if let Some(name) = model.runtime.as_deref().filter(|name| !name.is_empty()) {
        return named(model, name, runtimes);
    }
    let mut fitting: Vec<&Runtime> = runtimes.iter().filter(|r| r.fits(model, is_multi_node)).collect();
    if let Some(recorded) = recorded
        && let Some(used) =
            fitting.iter().find(|r| r.name == recorded.name && r.is_cluster_wide == recorded.is_cluster_wide)
    {
        return Ok(used);
    }
    fitting.sort_by_cached_key(|r| (r.first_protocol(), Reverse(r.created), r.name.clone()));
    // Stable: runtimes of the same priority keep the order above.
    let wanted = &model.model_format.name;
    fitting.sort_by_key(|r| (r.is_cluster_wide, Reverse(r.priority(wanted))));
    fitting.first().copied().ok_or_else(|| NoRuntime {
        reason: "NoSupportingRuntime",
        message: format!(
            "no ServingRuntime or ClusterServingRuntime supports the model format {format} with protocol {}: install one, \
             or name one in spec.predictor.model.runtime",
            model.framework.protocol_version.as_deref().unwrap_or("v1"),
        ),
    })
}

fn named<'a>(model: &PredictorModel, name: &str, runtimes: &'a [Runtime]) -> Result<&'a Runtime, NoRuntime> {
    let error = |reason, message| Err(NoRuntime { reason, message });
    let mut of_name: Vec<&Runtime> = runtimes.iter().filter(|r| r.name == name).collect();
    of_name.sort_by_key(|r| r.is_cluster_wide);
    let Some(runtime) = of_name.first().copied() else {
        let message = format!(
            "no ServingRuntime or ClusterServingRuntime has the name {name}: create it, or change spec.predictor.model.runtime"
        );
        return error("RuntimeNotRecognized", message);
    };
    if runtime.is_disabled() {
        return error(
            "RuntimeDisabled",
            format!("runtime {name} is disabled: enable it, or use another one"),
        );
    }
    if let Some(protocol) = model.framework.protocol_version.as_deref()
        && !runtime.has_protocol(protocol)
    {
        let known = runtime.spec.protocol_versions.join(", ");
        let message = format!("runtime {name} does not support protocol {protocol}: it supports {known}");
        return error("NoSupportingRuntime", message);
    }
    if !runtime.has_format(model, false) {
        let format = format_name(model);
        let message = format!("runtime {name} does not support the model format {format}: use another one");
        return error("NoSupportingRuntime", message);
    }
    Ok(runtime)
}

fn format_name(model: &PredictorModel) -> String {
    let format = &model.model_format;
    format.version.as_ref().map_or_else(|| format.name.clone(), |v| format!("{} {v}", format.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn runtime(name: &str, is_cluster_wide: bool, created: i64, spec: Value) -> Runtime {
        let mut spec = spec;
        spec.as_object_mut().unwrap().entry("containers").or_insert(json!([{ "name": "kserve-container" }]));
        let spec = serde_json::from_value(spec).unwrap();
        Runtime { name: name.into(), is_cluster_wide, created, annotations: BTreeMap::new(), spec }
    }

    fn model(spec: Value) -> PredictorModel {
        serde_json::from_value(spec).unwrap()
    }

    fn onnx(extra: &Value) -> Value {
        let mut spec = json!({ "supportedModelFormats": [{ "name": "onnx", "autoSelect": true }] });
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    }

    /// Title, runtimes, model, and the selected name or the reason.
    type Case = (&'static str, Vec<Runtime>, Value, Result<&'static str, &'static str>);

    /// Runtimes as (name, cluster-wide, created, spec), the model, and the selected name or the reason.
    #[test]
    fn selection_follows_the_rules_of_kserve() {
        let priority = |p: i32| json!({ "supportedModelFormats": [{ "name": "onnx", "autoSelect": true, "priority": p }] });
        let any = json!({ "modelFormat": { "name": "onnx" } });
        let cases: Vec<Case> = vec![
            ("none", vec![], any.clone(), Err("NoSupportingRuntime")),
            ("one", vec![runtime("a", true, 1, onnx(&json!({})))], any.clone(), Ok("a")),
            (
                "namespace before cluster, whatever the priority",
                vec![runtime("c", true, 9, priority(9)), runtime("n", false, 1, priority(1))],
                any.clone(),
                Ok("n"),
            ),
            (
                "higher priority first",
                vec![runtime("a", true, 9, priority(1)), runtime("b", true, 1, priority(5))],
                any.clone(),
                Ok("b"),
            ),
            (
                "a priority before none",
                vec![runtime("a", true, 9, onnx(&json!({}))), runtime("b", true, 1, priority(1))],
                any.clone(),
                Ok("b"),
            ),
            (
                "newer first",
                vec![runtime("a", true, 1, onnx(&json!({}))), runtime("b", true, 2, onnx(&json!({})))],
                any.clone(),
                Ok("b"),
            ),
            (
                "by name at last",
                vec![runtime("b", true, 1, onnx(&json!({}))), runtime("a", true, 1, onnx(&json!({})))],
                any.clone(),
                Ok("a"),
            ),
            (
                "lower protocol first",
                vec![
                    runtime("a", true, 9, onnx(&json!({ "protocolVersions": ["v1", "grpc-v2"] }))),
                    runtime("b", true, 1, onnx(&json!({}))),
                ],
                any.clone(),
                Ok("a"),
            ),
            (
                "a disabled one never",
                vec![runtime("a", true, 1, onnx(&json!({ "disabled": true })))],
                any.clone(),
                Err("NoSupportingRuntime"),
            ),
            (
                "several models never",
                vec![runtime("a", true, 1, onnx(&json!({ "multiModel": true })))],
                any.clone(),
                Err("NoSupportingRuntime"),
            ),
            (
                "without autoSelect never",
                vec![runtime("a", true, 1, json!({ "supportedModelFormats": [{ "name": "onnx" }] }))],
                any.clone(),
                Err("NoSupportingRuntime"),
            ),
            (
                "without autoSelect by name",
                vec![runtime("a", true, 1, json!({ "supportedModelFormats": [{ "name": "onnx" }] }))],
                json!({ "modelFormat": { "name": "onnx" }, "runtime": "a" }),
                Ok("a"),
            ),
            (
                "protocol v1 is wanted by default",
                vec![runtime("a", true, 1, onnx(&json!({ "protocolVersions": ["v2"] })))],
                any.clone(),
                Err("NoSupportingRuntime"),
            ),
            (
                "protocol of the model",
                vec![runtime("a", true, 1, onnx(&json!({ "protocolVersions": ["v2"] })))],
                json!({ "modelFormat": { "name": "onnx" }, "protocolVersion": "v2" }),
                Ok("a"),
            ),
            (
                "version of the format",
                vec![runtime("a", true, 1, onnx(&json!({})))],
                json!({ "modelFormat": { "name": "onnx", "version": "1" } }),
                Err("NoSupportingRuntime"),
            ),
            (
                "unknown name",
                vec![],
                json!({ "modelFormat": { "name": "onnx" }, "runtime": "x" }),
                Err("RuntimeNotRecognized"),
            ),
            (
                "disabled by name",
                vec![runtime("x", true, 1, onnx(&json!({ "disabled": true })))],
                json!({ "modelFormat": { "name": "onnx" }, "runtime": "x" }),
                Err("RuntimeDisabled"),
            ),
            (
                "format by name",
                vec![runtime("x", true, 1, onnx(&json!({})))],
                json!({ "modelFormat": { "name": "pmml" }, "runtime": "x" }),
                Err("NoSupportingRuntime"),
            ),
            (
                "the namespace's runtime of a name first",
                vec![
                    runtime("x", true, 1, onnx(&json!({ "disabled": true }))),
                    runtime("x", false, 1, onnx(&json!({}))),
                ],
                json!({ "modelFormat": { "name": "onnx" }, "runtime": "x" }),
                Ok("x"),
            ),
            (
                "worker nodes only where they are wanted",
                vec![runtime("a", true, 1, onnx(&json!({ "workerSpec": {} })))],
                any.clone(),
                Err("NoSupportingRuntime"),
            ),
        ];
        for (title, runtimes, spec, expected) in cases {
            let selected = select(&model(spec), false, &runtimes, None);
            let selected = selected.map(|r| r.name.as_str()).map_err(|e| e.reason);
            assert_eq!(selected, expected, "{title}");
        }
    }

    #[test]
    fn runtime_in_use_stays_while_it_fits() {
        let old = runtime("old", true, 1, onnx(&json!({})));
        let new = runtime("new", true, 2, onnx(&json!({})));
        let model = model(json!({ "modelFormat": { "name": "onnx" } }));
        let recorded = Some(RecordedRuntime { name: "old", is_cluster_wide: true });
        let both = [old.clone(), new.clone()];
        assert_eq!(select(&model, false, &both, recorded).unwrap().name, "old");
        let mut disabled = old;
        disabled.spec.disabled = Some(true);
        assert_eq!(select(&model, false, &[disabled, new], recorded).unwrap().name, "new");
    }
}
