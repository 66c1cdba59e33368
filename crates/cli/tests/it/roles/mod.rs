//! Scheduler and gateway as processes of their own, over mutual TLS.

mod certificates;
mod process;
mod separate;
mod together;
mod tracing;
