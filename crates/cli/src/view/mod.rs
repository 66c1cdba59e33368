//! Model and server status as commands print them.

mod model;
mod server;

pub(crate) use model::{ModelView, Readiness, VersionView};
pub(crate) use server::ServerView;
