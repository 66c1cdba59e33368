//! Commands of clients: models, servers and their ownership.

mod model;
mod server;
