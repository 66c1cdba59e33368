//! What the pods of a component report.

use crate::cluster::{OwnedObject, strip_metadata};
use serde_json::{Value, json};

const INIT: &str = "storage-initializer";
pub(super) const UNSCHEDULABLE: &str = "Unschedulable";

/// Removes everything but identity and status.
pub fn strip_pod(pod: OwnedObject) -> OwnedObject {
    let status = pod.data.get("status").cloned().unwrap_or_default();
    let mut metadata = strip_metadata(pod).metadata;
    metadata.annotations = None;
    OwnedObject { metadata, data: json!({ "status": status }) }
}

/// Why a pod does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodFailure {
    pub pod: String,
    /// Such as `ImagePullBackOff`, `CrashLoopBackOff` or `Unschedulable`.
    pub reason: String,
    pub message: String,
    pub exit_code: Option<i32>,
    /// Whether the artifact could not be downloaded.
    pub is_download: bool,
}

impl PodFailure {
    /// Whether the container had started, so that the model is the cause.
    pub(super) const fn has_run(&self) -> bool {
        self.is_download || self.exit_code.is_some()
    }
}

/// Whether a pod is running and ready.
pub(in crate::controllers) fn is_ready(pod: &OwnedObject) -> bool {
    let ready = |c: &Value| {
        c.get("type").and_then(Value::as_str) == Some("Ready")
            && c.get("status").and_then(Value::as_str) == Some("True")
    };
    pod.metadata.deletion_timestamp.is_none() && list(pod, "conditions").iter().any(ready)
}

/// Whether the artifact is being downloaded.
pub(super) fn is_downloading(pod: &OwnedObject) -> bool {
    let of_init = list(pod, "initContainerStatuses").iter();
    of_init.filter(|s| name(s) == INIT).any(|s| s.pointer("/state/running").is_some())
}

fn list<'a>(pod: &'a OwnedObject, field: &str) -> &'a [Value] {
    let found = pod.data.get("status").and_then(|status| status.get(field)).and_then(Value::as_array);
    found.map(Vec::as_slice).unwrap_or_default()
}

fn name(status: &Value) -> &str {
    text(status, "/name")
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The failure of a pod, with the message of its container.
pub(super) fn failure(pod: &OwnedObject) -> Option<PodFailure> {
    let failure = |reason: &str, message: String, exit_code, is_download| PodFailure {
        pod: pod.metadata.name.clone().unwrap_or_default(),
        reason: reason.to_owned(),
        message,
        exit_code,
        is_download,
    };
    let all = list(pod, "initContainerStatuses").iter().chain(list(pod, "containerStatuses"));
    for status in all {
        let is_download = name(status) == INIT;
        let ended =
            ["/state/terminated", "/lastState/terminated"].into_iter().find_map(|at| status.pointer(at));
        let ended = ended.filter(|ended| ended.get("exitCode").and_then(Value::as_i64).unwrap_or(0) != 0);
        let exit_code = ended.and_then(|e| e.get("exitCode")?.as_i64()).and_then(|c| i32::try_from(c).ok());
        let last_words = ended.map(|e| text(e, "/message").trim()).filter(|m| !m.is_empty());
        let waiting = text(status, "/state/waiting/reason");
        let is_failing = waiting.contains("BackOff")
            || waiting.starts_with("Err")
            || [
                "CreateContainerConfigError",
                "CreateContainerError",
                "InvalidImageName",
                "RunContainerError",
            ]
            .contains(&waiting);
        if is_failing || (ended.is_some() && status.pointer("/state/terminated").is_some()) {
            let container = name(status);
            let reason = if waiting.is_empty() { "Error" } else { waiting };
            let cause = last_words.unwrap_or_else(|| text(status, "/state/waiting/message"));
            let code = exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
            let message = format!("container {container} failed{code}: {cause}");
            return Some(failure(
                reason,
                message.trim_end_matches([':', ' ']).to_owned(),
                exit_code,
                is_download,
            ));
        }
    }
    let unscheduled = list(pod, "conditions").iter().find(|c| {
        text(c, "/type") == "PodScheduled"
            && text(c, "/status") == "False"
            && text(c, "/reason") == UNSCHEDULABLE
    })?;
    Some(failure(UNSCHEDULABLE, text(unscheduled, "/message").to_owned(), None, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &Value) -> OwnedObject {
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "status": status })).unwrap()
    }

    #[test]
    fn failure_has_the_message_of_its_container() {
        let waiting =
            |reason: &str, message: &str| json!({ "waiting": { "reason": reason, "message": message } });
        let ended =
            |code: i32, message: &str| json!({ "terminated": { "exitCode": code, "message": message } });
        for (status, expected) in [
            (json!({}), None),
            (
                json!({ "containerStatuses": [{ "name": "c", "state": waiting("ContainerCreating", "") }] }),
                None,
            ),
            (json!({ "containerStatuses": [{ "name": "c", "state": { "running": {} } }] }), None),
            (
                json!({ "containerStatuses": [{ "name": "c", "state": waiting("ImagePullBackOff", "no such image") }] }),
                Some(("ImagePullBackOff", "container c failed: no such image", None, false)),
            ),
            (
                json!({ "containerStatuses": [
                    { "name": "c", "state": waiting("CrashLoopBackOff", "back-off"), "lastState": ended(3, "bad model\n") }] }),
                Some(("CrashLoopBackOff", "container c failed with exit code 3: bad model", Some(3), false)),
            ),
            // A crash without a last state.
            (
                json!({ "containerStatuses": [{ "name": "c", "state": waiting("CrashLoopBackOff", "back-off") }] }),
                Some(("CrashLoopBackOff", "container c failed: back-off", None, false)),
            ),
            (
                json!({ "initContainerStatuses": [{ "name": INIT, "state": ended(1, "s3://b/x: not found") }] }),
                Some((
                    "Error",
                    "container storage-initializer failed with exit code 1: s3://b/x: not found",
                    Some(1),
                    true,
                )),
            ),
            (json!({ "initContainerStatuses": [{ "name": INIT, "state": ended(0, "") }] }), None),
            (
                json!({ "conditions": [
                    { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: Insufficient nvidia.com/gpu" }] }),
                Some(("Unschedulable", "0/3 nodes: Insufficient nvidia.com/gpu", None, false)),
            ),
        ] {
            let found = failure(&pod(&status));
            let found =
                found.as_ref().map(|f| (f.reason.as_str(), f.message.as_str(), f.exit_code, f.is_download));
            assert_eq!(found, expected, "{status}");
        }
    }

    #[test]
    fn stripped_pod_keeps_labels_and_status() {
        let whole = json!({
            "metadata": { "name": "p", "labels": { "a": "1" }, "annotations": { "b": "2" } },
            "spec": { "containers": [] },
            "status": { "phase": "Running" },
        });
        let stripped = strip_pod(serde_json::from_value(whole).unwrap());
        assert_eq!(stripped.data, json!({ "status": { "phase": "Running" } }));
        assert!(stripped.metadata.annotations.is_none() && stripped.metadata.labels.is_some());
    }
}
