//! Requests of a sequence go to one replica.

use crate::support::{FakeLocal, FakeRemote, Running, config, remote_endpoint, route};
use gantry_proto::inference::{
    InferParameter, ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
    infer_parameter::ParameterChoice,
};
use std::sync::Arc;
use tonic::transport::Channel;

struct Cluster {
    running: Running,
    replicas: Vec<Arc<FakeLocal>>,
    remotes: Vec<FakeRemote>,
    grpc: GrpcInferenceServiceClient<Channel>,
}

impl Cluster {
    async fn start() -> Self {
        let running = Running::start(config(), |_| {});
        let replicas: Vec<_> = (0..4).map(|_| FakeLocal::new()).collect();
        let mut remotes = Vec::new();
        for replica in &replicas {
            remotes.push(FakeRemote::start(Arc::clone(replica)).await);
        }
        let grpc = GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
        let started = Self { running, replicas, remotes, grpc };
        started.serve_on(&[0, 1, 2, 3]);
        started
    }

    fn serve_on(&self, indices: &[u32]) {
        let endpoint = |i: &u32| remote_endpoint("s", *i, self.remotes[*i as usize].address);
        let endpoints: Vec<_> = indices.iter().map(endpoint).collect();
        self.running.route(route("m", &[(1, 1, &endpoints)]));
    }

    fn arrived(&self) -> Vec<usize> {
        self.replicas.iter().map(|r| r.arrived()).collect()
    }

    async fn rest(&self, headers: &[(&str, &str)], body: String) {
        let answer = self.running.client().send("POST", "/v2/models/m/infer", headers, body).await;
        assert_eq!(answer.status, 200);
    }

    /// The replica that gets all requests of a sequence, sent in every supported form.
    async fn replica_of(&mut self, id: u64) -> usize {
        let before = self.arrived();
        for flag in ["sequence_start", "sequence_end"] {
            let body = format!(r#"{{"inputs":[],"parameters":{{"sequence_id":{id},"{flag}":true}}}}"#);
            self.rest(&[], body).await;
        }
        self.rest(&[("gantry-sequence-id", &id.to_string())], " ".repeat(200_000)).await;
        let parameter = InferParameter {
            parameter_choice: Some(ParameterChoice::Int64Param(i64::try_from(id).unwrap())),
        };
        for size in [1, 200_000] {
            let request = ModelInferRequest {
                model_name: "m".into(),
                parameters: [("sequence_id".to_owned(), parameter.clone())].into(),
                raw_input_contents: vec![vec![1; size].into()],
                ..Default::default()
            };
            self.grpc.model_infer(request).await.unwrap();
        }
        let gained: Vec<_> = self.arrived().iter().zip(&before).map(|(a, b)| a - b).collect();
        gained.iter().position(|n| *n == 5).unwrap_or_else(|| panic!("sequence {id} went to {gained:?}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sequence_keeps_to_one_replica_until_that_leaves() {
    let mut cluster = Cluster::start().await;
    let mut of = Vec::new();
    for id in 1..=20 {
        of.push(cluster.replica_of(id).await);
    }
    assert!((0..4).all(|i| of.contains(&i)), "sequences spread: {of:?}");
    cluster.serve_on(&[0, 1, 3]);
    for (id, before) in (1..).zip(of) {
        let after = cluster.replica_of(id).await;
        assert!(if before == 2 { after != 2 } else { after == before }, "only sequences of replica 2 move");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_sequence_are_balanced() {
    let cluster = Cluster::start().await;
    for body in ["{}", r#"{"parameters":{"sequence_id":0}}"#] {
        let before = cluster.arrived();
        for _ in 0..40 {
            cluster.rest(&[], body.to_owned()).await;
        }
        let used = cluster.arrived().iter().zip(&before).filter(|(a, b)| a > b).count();
        assert!(used >= 3, "{used} replicas");
    }
}
