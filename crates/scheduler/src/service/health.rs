//! `grpc.health.v1.Health` and Seldon's `HealthCheckService`; both report the engine's liveness.

use super::{Stream, WINDOW, deliver};
use crate::engine::Handle;
use gantry_proto::health::{
    HealthCheckRequest, HealthCheckResponse, health_check_service_server::HealthCheckService,
};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};
use tonic_health::pb::{self, health_check_response::ServingStatus, health_server};

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The empty name is the whole server.
const SERVICES: [&str; 6] = [
    "",
    "seldon.mlops.scheduler.Scheduler",
    "seldon.mlops.agent.AgentService",
    "seldon.mlops.health.HealthCheckService",
    "gantry.v1.Routing",
    "gantry.v1.Control",
];

#[derive(Clone)]
pub(crate) struct Health {
    pub(crate) engine: Handle,
}

fn status(engine: &Handle) -> i32 {
    let status = if engine.liveness().is_live() { ServingStatus::Serving } else { ServingStatus::NotServing };
    status as i32
}

#[tonic::async_trait]
impl health_server::Health for Health {
    type WatchStream = Stream<pb::HealthCheckResponse>;

    async fn check(
        &self,
        request: Request<pb::HealthCheckRequest>,
    ) -> Result<Response<pb::HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !SERVICES.contains(&service.as_str()) {
            return Err(Status::not_found(format!("unknown service {service}")));
        }
        Ok(Response::new(pb::HealthCheckResponse { status: status(&self.engine) }))
    }

    async fn watch(
        &self,
        request: Request<pb::HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        // The protocol requires watching unknown services: they may be added later.
        let known = SERVICES.contains(&request.into_inner().service.as_str());
        let engine = self.engine.clone();
        let (sender, receiver) = mpsc::channel(WINDOW);
        tokio::spawn(async move {
            let mut last = None;
            loop {
                let now = if known { status(&engine) } else { ServingStatus::ServiceUnknown as i32 };
                if last != Some(now) && !deliver(&sender, pb::HealthCheckResponse { status: now }).await {
                    return;
                }
                last = Some(now);
                tokio::select! {
                    biased;
                    () = sender.closed() => return,
                    () = engine.stop.cancelled() => return,
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
        });
        Ok(Response::new(Stream::new(receiver)))
    }
}

#[tonic::async_trait]
impl HealthCheckService for Health {
    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(HealthCheckResponse { ok: self.engine.liveness().is_live() }))
    }
}
