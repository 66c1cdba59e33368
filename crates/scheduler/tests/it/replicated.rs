//! A scheduler whose store is in etcd: what callers and agents see when it ceases to lead.

use crate::harness::{Agent, client, model, serve, within};
use gantry_proto::agent::model_operation_message::Operation;
use gantry_scheduler::{Config, Running};
use gantry_store::{
    Table,
    etcd::{
        Candidate, Leadership, Location, Settings,
        fake::{FakeEtcd, Fault},
    },
};
use std::time::Duration;
use tonic::Code;

struct Setup {
    etcd: FakeEtcd,
    endpoint: String,
}

impl Setup {
    async fn start() -> Self {
        let etcd = FakeEtcd::default();
        let endpoint = etcd.serve().await.unwrap().to_string();
        Self { etcd, endpoint }
    }

    fn candidate(&self, name: &str) -> Candidate {
        let location = Location { endpoints: vec![self.endpoint.clone()], prefix: "/test".into() };
        let lease = Duration::from_secs(2);
        Candidate::start(Settings { location, tls: None, credentials: None, name: name.into(), lease })
            .unwrap()
    }

    async fn leader(&self) -> (Running, Leadership) {
        let (store, leadership) = within(self.candidate("one").campaign()).await.unwrap();
        (serve(Config::new(store)).await, leadership)
    }

    /// Names of the models that the next leader finds.
    async fn stored(&self) -> Vec<String> {
        self.etcd.heal();
        self.etcd.expire_leases();
        let (store, _leadership) = within(self.candidate("two").campaign()).await.unwrap();
        let read = tokio::task::spawn_blocking(move || store.read(Table::Models).unwrap());
        read.await.unwrap().into_iter().map(|(name, _)| name).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unknown_outcome_is_neither_success_nor_failure() {
    for (fault, stored) in [(Fault::Down, false), (Fault::AnswerLost, true)] {
        let setup = Setup::start().await;
        let (running, leadership) = setup.leader().await;
        let mut client = client(&running).await;
        let mut agent = Agent::join(&running).await;
        client.load_model(model("first", "/a")).await.unwrap();
        assert_eq!(agent.order().await, ("first".into(), 1, Operation::LoadModel));
        // Its answer is lost, and then there is none any more.
        setup.etcd.fail([fault, Fault::Down]);
        let error = within(client.load_model(model("second", "/b"))).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.message().contains("it is not known whether the change is stored"), "{error}");
        within(leadership.ended()).await;
        // The stream ends without an order: the change may not be stored.
        assert!(!matches!(within(agent.orders.message()).await, Ok(Some(_))));
        assert_eq!(setup.stored().await.contains(&"second".to_owned()), stored, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leader_whose_lease_lapsed_sends_no_order() {
    let setup = Setup::start().await;
    let (running, leadership) = setup.leader().await;
    let mut client = client(&running).await;
    client.load_model(model("first", "/a")).await.unwrap();
    leadership.stop_renewing();
    within(leadership.ended()).await;
    // An agent that joins would get the order to load.
    let joined = tokio::time::timeout(Duration::from_secs(10), async {
        let mut client = gantry_proto::agent::agent_service_client::AgentServiceClient::connect(format!(
            "http://{}",
            running.agents
        ))
        .await?;
        let orders = client.subscribe(crate::harness::subscribe_request(0, &[])).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(orders.into_inner().message().await?)
    });
    if let Ok(Ok(Some(order))) = joined.await {
        panic!("an order of a scheduler that does not lead: {order:?}");
    }
    let error = within(client.load_model(model("second", "/b"))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(setup.stored().await, ["first"]);
}
