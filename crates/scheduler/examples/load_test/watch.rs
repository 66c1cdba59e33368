//! Status subscribers and snapshots.

use crate::options::Subscriber;
use gantry_proto::scheduler::{
    ModelReference, ModelStatusRequest, ModelSubscriptionRequest, ServerStatusRequest,
    model_status::ModelState, scheduler_client::SchedulerClient,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tonic::transport::Channel;

pub(crate) async fn states(client: &mut SchedulerClient<Channel>) -> BTreeMap<String, ModelState> {
    let mut stream = client.model_status(ModelStatusRequest::default()).await.unwrap().into_inner();
    let mut states = BTreeMap::new();
    while let Some(status) = stream.message().await.unwrap() {
        states.insert(status.model_name, status.versions[0].state.as_ref().unwrap().state());
    }
    states
}

/// Subscribes until `count` models are in a state.
pub(crate) async fn until(address: String, wanted: ModelState, count: usize, from: watch::Sender<usize>) {
    let mut client = SchedulerClient::connect(address).await.unwrap();
    let mut stream =
        client.subscribe_model_status(ModelSubscriptionRequest::default()).await.unwrap().into_inner();
    let mut states = BTreeMap::new();
    let mut there = 0;
    while let Ok(Some(status)) = stream.message().await {
        let now = status.versions[0].state.as_ref().unwrap().state() == wanted;
        let before = states.insert(status.model_name, now).unwrap_or(false);
        there = there + usize::from(now) - usize::from(before);
        from.send_replace(there);
        if there >= count {
            return;
        }
    }
}

pub(crate) async fn read(address: String, speed: Subscriber) {
    let mut client = SchedulerClient::connect(address).await.unwrap();
    let mut stream =
        client.subscribe_model_status(ModelSubscriptionRequest::default()).await.unwrap().into_inner();
    loop {
        match speed {
            Subscriber::Fast => {}
            Subscriber::Slow => tokio::time::sleep(Duration::from_millis(5)).await,
            Subscriber::Never => std::future::pending().await,
        }
        if !matches!(stream.message().await, Ok(Some(_))) {
            return;
        }
    }
}

/// Requests statuses until stopped; returns the latencies.
pub(crate) async fn ask(address: String, mut stop: watch::Receiver<bool>) -> Vec<Duration> {
    let mut client = SchedulerClient::connect(address).await.unwrap();
    let mut took = Vec::new();
    while !*stop.borrow_and_update() {
        let start = Instant::now();
        let model = Some(ModelReference { name: "m0".into(), version: None });
        let request = ModelStatusRequest { model, ..ModelStatusRequest::default() };
        if let Ok(stream) = client.model_status(request).await {
            stream.into_inner().message().await.unwrap();
        }
        let servers = client.server_status(ServerStatusRequest::default()).await.unwrap();
        let _ = servers.into_inner().message().await.unwrap();
        took.push(start.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took
}

pub(crate) fn percentile(values: &mut [Duration], of_hundred: usize) -> Duration {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    values.get((values.len() * of_hundred / 100).min(last)).copied().unwrap_or_default()
}
