//! The web dashboard: static pages, and the JSON that they show.
//!
//! ```text
//! browser ──▶ guard (same machine, same origin) ─▶ assets        page, embedded
//!                                               ─▶ api ─▶ inventory ◀── follow ◀──gRPC── scheduler
//!                                                     ─▶ figures   ◀── metrics of this process
//!                                                     ─▶ source    ──▶ gateway (one request of the form)
//! ```
//!
//! The scheduler's statuses are followed while a page is open. Pages get what they show: lists are searched, sorted and cut
//! here, so that ten thousand models cost a page no more than ten.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

mod actions;
mod api;
mod assets;
mod events;
mod explain;
mod figures;
mod follow;
mod graph;
pub mod guard;
mod inventory;
mod manifest;
pub mod metrics_text;
mod rows;
mod scheduler;

use axum::Router;
use bytes::Bytes;
use explain::Explanations;
use figures::Sampler;
use follow::Follower;
use futures::future::BoxFuture;
use http::{Request, Response};
use scheduler::Scheduler;
use serde_json::Value;
use std::sync::Arc;
use tonic::transport::Channel;

/// What the process that serves the pages knows itself.
pub trait Source: Send + Sync + 'static {
    /// Its metrics in the text format of Prometheus.
    fn metrics(&self) -> String;
    /// Latencies of the models that it runs, as served at `/top`.
    fn latencies(&self) -> Value;
    /// Processes of servers that it supervises, as served at `/servers`.
    fn processes(&self) -> Value;
    /// The last runs of a pipeline.
    fn runs(&self, pipeline: &str) -> Option<Value>;
    /// Sends a request to the inference port of this process, with its authentication and limits.
    fn infer(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Bytes>, String>>;
}

/// What the pages show and may do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where clients send inference requests, such as `127.0.0.1:9000`; for the snippets.
    pub inference: String,
    /// Whether the pages may change objects.
    pub actions: bool,
    /// Whether requests need a credential.
    pub auth_required: bool,
    /// Whether other machines may read the pages.
    pub remote: bool,
}

/// The routes of the dashboard: pages at `/`, their data below `/api`.
pub fn router(channel: Channel, source: Arc<dyn Source>, settings: Settings) -> Router {
    let scheduler = Scheduler::new(channel);
    let remote = settings.remote;
    let state = Arc::new(Dashboard {
        follower: Follower::new(scheduler.clone()),
        explanations: Explanations::new(scheduler.clone()),
        sampler: Sampler::default(),
        scheduler,
        source,
        settings,
    });
    assets::routes()
        .merge(api::routes(state))
        .layer(axum::middleware::from_fn_with_state(remote, guard::check))
}

pub(crate) struct Dashboard {
    pub(crate) follower: Follower,
    pub(crate) explanations: Explanations,
    pub(crate) sampler: Sampler,
    pub(crate) scheduler: Scheduler,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) settings: Settings,
}
