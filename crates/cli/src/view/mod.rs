//! What the scheduler's answers mean, in the words and shapes that people and scripts read.

mod model;
mod server;

pub(crate) use model::{ModelView, Readiness, VersionView};
pub(crate) use server::{ServerView, count};
