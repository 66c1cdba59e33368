//! Certificates of the control plane: issued and rotated by the operator, one authority for each namespace.
//!
//! ```text
//! caches ──▶ wanted ──▶ policy: next step ──▶ sign ──▶ Secret of the operator: authorities with their keys
//!              ▲          ▲                      ├───▶ Secrets of the namespace: certificates for the pods
//!              └─ secrets ┘ view                 └───▶ clients: the operator's own certificates, in memory only
//! ```
//!
//! The Secret of the operator is written before anything that depends on it, so every prefix of the writes is a state to
//! continue from.

pub mod authorities;
mod clients;
mod issuer;
pub mod policy;
mod secrets;
mod server_time;
pub mod sign;
#[cfg(test)]
mod tests;
mod wanted;

pub use clients::{IssuedClients, SchedulerTls};
pub(crate) use issuer::run;
pub use issuer::{CertificateSettings, MIN_LIFETIME};
pub use secrets::{certificate_file, key_file};
pub use wanted::{AGENT, BUNDLE, GATEWAY, ITEM, SCHEDULER, SECRETS, agent_item, operator, wanted};
