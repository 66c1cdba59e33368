//! A scheduler that sends the route events of a test and records the gateway's calls.

use super::until;
use gantry_proto::gantry::{
    DemandReport, DemandResponse, RouteAcknowledgement, RouteAcknowledgementResponse, RouteEvent,
    TrafficReport, TrafficResponse, WatchRoutesRequest,
    route_event::Event,
    routing_server::{Routing, RoutingServer},
};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

pub(crate) type Events = mpsc::Sender<Result<RouteEvent, Status>>;

#[derive(Clone, Default)]
pub(crate) struct FakeScheduler {
    pub(crate) watchers: Arc<Mutex<Vec<Events>>>,
    acknowledgements: Arc<Mutex<Vec<RouteAcknowledgement>>>,
    pub(crate) reports: Arc<Mutex<Vec<DemandReport>>>,
    /// Failed calls included.
    pub(crate) traffic: Arc<Mutex<Vec<TrafficReport>>>,
    /// This many traffic reports get no answer that counts.
    pub(crate) lost_answers: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Routing for FakeScheduler {
    type WatchRoutesStream = ReceiverStream<Result<RouteEvent, Status>>;

    async fn watch_routes(
        &self,
        _: Request<WatchRoutesRequest>,
    ) -> Result<Response<Self::WatchRoutesStream>, Status> {
        let (sender, receiver) = mpsc::channel(16);
        self.watchers.lock().unwrap().push(sender);
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn acknowledge_routes(
        &self,
        request: Request<RouteAcknowledgement>,
    ) -> Result<Response<RouteAcknowledgementResponse>, Status> {
        self.acknowledgements.lock().unwrap().push(request.into_inner());
        Ok(Response::new(RouteAcknowledgementResponse {}))
    }

    async fn report_demand(
        &self,
        request: Request<DemandReport>,
    ) -> Result<Response<DemandResponse>, Status> {
        self.reports.lock().unwrap().push(request.into_inner());
        Ok(Response::new(DemandResponse {}))
    }

    async fn report_traffic(
        &self,
        request: Request<TrafficReport>,
    ) -> Result<Response<TrafficResponse>, Status> {
        self.traffic.lock().unwrap().push(request.into_inner());
        let fewer = |left: usize| left.checked_sub(1);
        match self.lost_answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer) {
            Ok(_) => Err(Status::unavailable("the answer is lost")),
            Err(_) => Ok(Response::new(TrafficResponse {})),
        }
    }
}

impl FakeScheduler {
    pub(crate) async fn start(&self, address: SocketAddr) -> (SocketAddr, CancellationToken) {
        let listener = loop {
            if let Ok(listener) = tokio::net::TcpListener::bind(address).await {
                break listener;
            }
            tokio::task::yield_now().await;
        };
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (service, stopped) = (RoutingServer::new(self.clone()), stop.clone());
        tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::select! {
                served = server.serve_with_incoming(TcpListenerStream::new(listener)) => served.unwrap(),
                () = stopped.cancelled() => {}
            }
        });
        (address, stop)
    }

    pub(crate) async fn watcher(&self) -> Events {
        until("the gateway watches", || async { !self.watchers.lock().unwrap().is_empty() }).await;
        self.watchers.lock().unwrap().remove(0)
    }

    pub(crate) async fn acknowledged(&self, epoch: u64, applied: u64, drained: u64) {
        let wanted = (epoch, applied, drained);
        until(&format!("{wanted:?}"), || async {
            let all = self.acknowledgements.lock().unwrap();
            all.last().is_some_and(|a| a.subscriber == "gw" && (a.epoch, a.applied, a.drained) == wanted)
        })
        .await;
    }
}

pub(crate) async fn send_event(events: &Events, epoch: u64, sequence: u64, event: Event) {
    events.send(Ok(RouteEvent { epoch, event: Some(event), sequence, ..Default::default() })).await.unwrap();
}
