//! proto3 JSON: camelCase names, enums by name, 64-bit numbers as strings, RFC 3339 timestamps, defaults omitted.

use super::error;
use crate::error::CommandError;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, ReflectMessage as _,
    SerializeOptions, Value,
};
use std::sync::OnceLock;

/// Gantry's own fields start at this number and are not printed.
const FIRST_GANTRY_FIELD: u32 = 1000;

pub(super) const SCHEDULER: &str = "seldon.mlops.scheduler";
pub(super) const INFERENCE: &str = "inference";

fn descriptor(package: &str, name: &str) -> Result<MessageDescriptor, CommandError> {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    let pool = if let Some(pool) = POOL.get() {
        pool
    } else {
        let pool = DescriptorPool::decode(gantry_proto::DESCRIPTORS)
            .map_err(|e| error::failed(format!("invalid protobuf descriptors: {e}")))?;
        POOL.get_or_init(|| pool)
    };
    let full = format!("{package}.{name}");
    pool.get_message_by_name(&full).ok_or_else(|| error::failed(format!("unknown protobuf message {full}")))
}

/// Serializes a message on one line.
pub(super) fn write(package: &str, name: &str, message: &impl Message) -> Result<String, CommandError> {
    let failed = |e: &dyn std::fmt::Display| error::failed(format!("cannot serialize {name}: {e}"));
    let mut dynamic = DynamicMessage::decode(descriptor(package, name)?, message.encode_to_vec().as_slice())
        .map_err(|e| failed(&e))?;
    clear_gantry_fields(&mut dynamic);
    let mut text = Vec::new();
    dynamic
        .serialize_with_options(&mut serde_json::Serializer::new(&mut text), &SerializeOptions::new())
        .map_err(|e| failed(&e))?;
    String::from_utf8(text).map_err(|e| failed(&e))
}

/// Parses a message; field names may be camelCase or snake_case, unknown ones are rejected.
pub(super) fn read<M: Message + Default>(package: &str, name: &str, text: &[u8]) -> Result<M, CommandError> {
    let wrong = |e: &dyn std::fmt::Display| error::usage(format!("proto: {e}"));
    let mut json = serde_json::Deserializer::from_slice(text);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let dynamic = DynamicMessage::deserialize_with_options(descriptor(package, name)?, &mut json, &options)
        .map_err(|e| wrong(&e))?;
    json.end().map_err(|e| wrong(&e))?;
    dynamic.transcode_to().map_err(|e| wrong(&e))
}

fn clear_gantry_fields(message: &mut DynamicMessage) {
    let fields: Vec<_> = message.descriptor().fields().collect();
    for field in fields {
        if field.number() >= FIRST_GANTRY_FIELD {
            message.clear_field(&field);
        } else if message.has_field(&field) {
            clear_gantry_fields_in(message.get_field_mut(&field));
        }
    }
}

fn clear_gantry_fields_in(value: &mut Value) {
    match value {
        Value::Message(inner) => clear_gantry_fields(inner),
        Value::List(items) => items.iter_mut().for_each(clear_gantry_fields_in),
        Value::Map(entries) => entries.values_mut().for_each(clear_gantry_fields_in),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::{inference, scheduler as pb};

    #[test]
    fn write_matches_seldon_status_json() {
        let at = Some(prost_types::Timestamp { seconds: 1_668_247_215, nanos: 844_121_227 });
        let state = pb::ModelStatus {
            state: pb::model_status::ModelState::ModelAvailable as i32,
            available_replicas: 1,
            last_change_timestamp: at,
            reason_code: "Ready".into(),
            ..Default::default()
        };
        let replica = pb::ModelReplicaStatus {
            state: pb::model_replica_status::ModelReplicaState::Available as i32,
            last_change_timestamp: at,
            ..Default::default()
        };
        let definition = pb::Model {
            meta: Some(pb::MetaData {
                name: "iris".into(),
                kubernetes_meta: Some(pb::KubernetesMeta::default()),
                ..Default::default()
            }),
            model_spec: Some(pb::ModelSpec {
                uri: "gs://m/iris".into(),
                requirements: vec!["sklearn".into()],
                memory_bytes: Some(102_400),
                ..Default::default()
            }),
            deployment_spec: Some(pb::DeploymentSpec { replicas: 1, ..Default::default() }),
            ..Default::default()
        };
        let status = pb::ModelStatusResponse {
            model_name: "iris".into(),
            versions: vec![pb::ModelVersionStatus {
                version: 1,
                server_name: "mlserver".into(),
                kubernetes_meta: None,
                model_replica_state: [(0, replica)].into(),
                state: Some(state),
                model_defn: Some(definition),
            }],
            manager: "cli".into(),
            timestamp: 7,
            ..Default::default()
        };
        let text = write(SCHEDULER, "ModelStatusResponse", &status).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"modelName":"iris","versions":[{"version":1,"serverName":"mlserver","#,
                r#""modelReplicaState":{"0":{"state":"Available","lastChangeTimestamp":"2022-11-12T10:00:15.844121227Z"}},"#,
                r#""state":{"state":"ModelAvailable","availableReplicas":1,"lastChangeTimestamp":"2022-11-12T10:00:15.844121227Z"},"#,
                r#""modelDefn":{"meta":{"name":"iris","kubernetesMeta":{}},"modelSpec":{"uri":"gs://m/iris","#,
                r#""requirements":["sklearn"],"memoryBytes":"102400"},"deploymentSpec":{"replicas":1}}}],"timestamp":"7"}"#,
            )
        );
        assert_eq!(write(SCHEDULER, "LoadModelResponse", &pb::LoadModelResponse {}).unwrap(), "{}");
    }

    #[test]
    fn read_accepts_both_spellings_and_rejects_unknown_fields() {
        for text in [
            r#"{"model_name":"iris","inputs":[{"name":"x","contents":{"fp32_contents":[1,2.5]},"datatype":"FP32","shape":[1,2]}]}"#,
            r#"{"modelName":"iris","inputs":[{"name":"x","contents":{"fp32Contents":[1,2.5]},"datatype":"FP32","shape":["1","2"]}]}"#,
        ] {
            let request: inference::ModelInferRequest =
                read(INFERENCE, "ModelInferRequest", text.as_bytes()).unwrap();
            assert_eq!((request.model_name.as_str(), &request.inputs[0].shape), ("iris", &vec![1, 2]));
            assert_eq!(request.inputs[0].contents.as_ref().unwrap().fp32_contents, [1.0, 2.5]);
        }
        for (text, expected) in
            [(r#"{"modle":1}"#, "modle"), ("{", "EOF"), ("[]", "invalid type"), ("{} {}", "trailing")]
        {
            let read = read::<inference::ModelInferRequest>(INFERENCE, "ModelInferRequest", text.as_bytes());
            let message = read.unwrap_err().message;
            assert!(message.starts_with("Error: proto: ") && message.contains(expected), "{message}");
        }
    }
}
