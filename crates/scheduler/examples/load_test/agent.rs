//! An agent that executes every order at once.

use futures::StreamExt as _;
use gantry_proto::{
    agent::{
        AgentSubscribeRequest, ModelEventMessage, ModelVersion, ReplicaConfig,
        agent_service_client::AgentServiceClient, model_event_message::Event,
        model_operation_message::Operation,
    },
    scheduler::{MetaData, Model},
};
use tokio_stream::wrappers::ReceiverStream;

const MEMORY: u64 = 1 << 40;
/// Concurrent reports.
const CONCURRENT_REPORTS: usize = 64;

/// Subscribes with `loaded` models and executes orders until the connection ends.
pub(crate) async fn run(address: String, loaded: Vec<(String, u32)>) {
    let mut client = AgentServiceClient::connect(address).await.unwrap();
    let loaded = loaded
        .into_iter()
        .map(|(name, version)| ModelVersion {
            model: Some(Model { meta: Some(MetaData { name, ..MetaData::default() }), ..Model::default() }),
            version,
        })
        .collect();
    let request = AgentSubscribeRequest {
        server_name: "big".into(),
        shared: true,
        replica_idx: 0,
        replica_config: Some(ReplicaConfig {
            inference_svc: "127.0.0.1".into(),
            inference_http_port: 8080,
            inference_grpc_port: 9500,
            memory_bytes: MEMORY,
            capabilities: vec!["onnx".into()],
            over_commit_percentage: 0,
        }),
        loaded_models: loaded,
        available_memory_bytes: MEMORY,
    };
    let mut orders = client.subscribe(request).await.unwrap().into_inner();
    let (sender, receiver) = tokio::sync::mpsc::channel(1024);
    let reporting = tokio::spawn(
        ReceiverStream::new(receiver)
            .map(move |report: ModelEventMessage| {
                let mut client = client.clone();
                async move { client.agent_event(report).await.is_ok() }
            })
            .buffer_unordered(CONCURRENT_REPORTS)
            .for_each(|_| async {}),
    );
    while let Ok(Some(order)) = orders.message().await {
        let loads = order.operation() == Operation::LoadModel;
        let version = order.model_version.unwrap();
        let report = ModelEventMessage {
            server_name: "big".into(),
            replica_idx: 0,
            model_name: version.model.unwrap().meta.unwrap().name,
            model_version: version.version,
            event: if loads { Event::Loaded } else { Event::Unloaded } as i32,
            message: String::new(),
            available_memory_bytes: MEMORY,
            runtime_info: None,
        };
        if sender.send(report).await.is_err() {
            break;
        }
    }
    drop(sender);
    let _ = reporting.await;
}
