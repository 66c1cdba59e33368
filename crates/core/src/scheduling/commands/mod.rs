//! Commands of clients: models, servers, pipelines, experiments and their ownership.

mod experiment;
mod model;
mod pipeline;
mod server;
