//! An agent beside each replica that answers.

use super::supervisor::{Beside, Farewell, Replica};
use gantry_agent::{Connect, Kind, Limits, Ports, RequestLimits, Scaling, Settings, Source, Surroundings};
use gantry_trace::Tracer;
use std::{net::IpAddr, sync::Arc, time::Duration};

/// How long the server may take until the agent reaches it; it answered a moment ago.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long moving models away may take when a replica is stopped.
const DRAIN: Duration = Duration::from_secs(30);
/// Models that are fetched and loaded at the same time.
const AT_ONCE: usize = 4;
/// How long to wait before an agent that did not start is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// Starts agents in this process.
pub(crate) fn agents(
    connect: Arc<dyn Connect>,
    source: Arc<dyn Source>,
    inference: String,
    tracer: Tracer,
) -> Beside {
    Arc::new(move |replica: Replica, farewell: Farewell| {
        let (connect, source, inference) = (connect.clone(), source.clone(), inference.clone());
        let tracer = tracer.clone();
        tokio::spawn(async move {
            let (server, index) = (replica.server.clone(), replica.index);
            loop {
                let settings = match settings(&replica, connect.clone(), source.clone(), &inference, &tracer)
                {
                    Ok(settings) => settings,
                    Err(reason) => {
                        tracing::error!(%server, replica = index, %reason, "no agent can stand beside it");
                        return;
                    }
                };
                let started = tokio::select! {
                    started = gantry_agent::start(settings) => started,
                    () = farewell.any() => return,
                };
                match started {
                    // With its server gone there is nothing to move away from it, and nobody to wait for.
                    Ok(running) => {
                        let leaving = async {
                            farewell.leave.cancelled().await;
                            running.stop().await;
                        };
                        tokio::select! {
                            () = leaving => {}
                            () = farewell.gone.cancelled() => {}
                        }
                        return;
                    }
                    Err(reason) => {
                        tracing::warn!(%server, replica = index, %reason, "the agent beside it did not start");
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(AGAIN) => {}
                    () = farewell.any() => return,
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
    let kind: Kind = replica.recipe.kind.parse()?;
    let mut capabilities = replica.recipe.capabilities.clone();
    if capabilities.is_empty() {
        capabilities = kind.capabilities().iter().map(|c| (*c).to_owned()).collect();
    }
    let local = IpAddr::from([127, 0, 0, 1]);
    Ok(Settings {
        server: replica.server.clone(),
        replica: replica.index,
        kind,
        server_http: format!("{local}:{}", replica.place.http_port),
        server_grpc: format!("{local}:{}", replica.place.grpc_port),
        listen: local,
        ports: Ports { http: 0, grpc: 0, debug: 0, metrics: 0, drainer: 0, readiness: 0 },
        advertised: local.to_string(),
        capabilities,
        memory_bytes: replica.recipe.memory,
        over_commit: replica.recipe.over_commit,
        models_dir: replica.place.models_dir.clone(),
        records_dir: replica.directory.join("records"),
        surroundings: Surroundings { inference: inference.to_owned(), ..Surroundings::default() },
        limits: Limits::default(),
        requests: RequestLimits::default(),
        scaling: Scaling::default(),
        server_patience: PATIENCE,
        drain_time: DRAIN,
        parallel: AT_ONCE,
        connect,
        source,
        tracer: tracer.clone(),
    })
}
