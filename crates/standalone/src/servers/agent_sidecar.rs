//! An agent for each ready replica, as a task of this process.

use super::supervisor::{Replica, ShutdownMode, StartAgent};
use gantry_agent::{
    Connect, Kind, Limits, Ports, RequestLimits, Scaling, ServerEnvironment, Settings, Source,
};
use gantry_trace::Tracer;
use std::{net::IpAddr, sync::Arc, time::Duration};

/// Limit for the first connection to the server, which was ready a moment ago.
const SERVER_STARTUP_TIMEOUT: Duration = Duration::from_mins(1);
/// Limit for moving models away when a replica is stopped.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
const PARALLEL_LOADS: usize = 4;
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) fn agents(
    connect: Arc<dyn Connect>,
    source: Arc<dyn Source>,
    inference: String,
    tracer: Tracer,
) -> StartAgent {
    Arc::new(move |replica: Replica, shutdown: ShutdownMode| {
        let (connect, source, inference) = (connect.clone(), source.clone(), inference.clone());
        let tracer = tracer.clone();
        tokio::spawn(async move {
            let (server, index) = (replica.server.clone(), replica.index);
            loop {
                let settings = match settings(&replica, connect.clone(), source.clone(), &inference, &tracer)
                {
                    Ok(settings) => settings,
                    Err(reason) => {
                        tracing::error!(%server, replica = index, %reason, "failed to start agent");
                        return;
                    }
                };
                let started = tokio::select! {
                    started = gantry_agent::start(settings) => started,
                    () = shutdown.requested() => return,
                };
                match started {
                    Ok(running) => {
                        let drained = async {
                            shutdown.drain.cancelled().await;
                            running.stop().await;
                        };
                        // Without its server there is nothing to drain.
                        tokio::select! {
                            () = drained => {}
                            () = shutdown.immediate.cancelled() => {}
                        }
                        return;
                    }
                    Err(reason) => {
                        tracing::warn!(%server, replica = index, %reason, "failed to start agent; retrying");
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(RETRY_INTERVAL) => {}
                    () = shutdown.requested() => return,
                }
            }
        })
    })
}

fn settings(
    replica: &Replica,
    connect: Arc<dyn Connect>,
    source: Arc<dyn Source>,
    inference: &str,
    tracer: &Tracer,
) -> Result<Settings, String> {
    let spec = &replica.spec;
    let kind: Kind = spec.kind.parse()?;
    let mut capabilities = spec.capabilities.clone();
    if capabilities.is_empty() {
        capabilities = kind.capabilities().iter().map(|c| (*c).to_owned()).collect();
    }
    let local = IpAddr::from([127, 0, 0, 1]);
    Ok(Settings {
        server: replica.server.clone(),
        replica: replica.index,
        kind,
        server_http: format!("{local}:{}", replica.allocation.http_port),
        server_grpc: format!("{local}:{}", replica.allocation.grpc_port),
        listen: local,
        ports: Ports { http: 0, grpc: 0, debug: 0, metrics: 0, drainer: 0, readiness: 0 },
        advertised: local.to_string(),
        capabilities,
        memory_bytes: spec.memory,
        over_commit: spec.over_commit,
        models_dir: replica.allocation.models_dir.clone(),
        records_dir: replica.directory.join("records"),
        environment: ServerEnvironment { inference: inference.to_owned(), ..ServerEnvironment::default() },
        limits: Limits::default(),
        requests: RequestLimits::default(),
        scaling: Scaling::default(),
        server_startup_timeout: SERVER_STARTUP_TIMEOUT,
        drain_time: DRAIN_TIMEOUT,
        drain_calls: 1,
        parallel: PARALLEL_LOADS,
        connect,
        source,
        tracer: tracer.clone(),
    })
}
