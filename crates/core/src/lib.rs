//! Pure decisions: scheduling, leader election, pipelines, rollouts and traffic splits. No IO, no clock, no randomness.
//!
//! Everything is a function of its arguments, so that property tests and the simulator can replay it.

#![allow(missing_docs, reason = "internal: names carry the meaning, comments only what names cannot")]

pub mod inference_graph;
pub mod leader_election;
pub mod pipeline;
pub mod quantity;
pub mod rollout;
pub mod scheduling;
pub mod traffic;
