//! Credentials of inference requests: API keys and JSON Web Tokens, what they allow, and how many requests they may send.
//!
//! ```text
//! file, JWKS ─▶ config ─▶ Verifier: credential ─▶ Principal (name, rights, rate) ─▶ allows(action, target)
//!       ▲                     ▲
//!    sources: watch, fetch ───┘ a change builds a new verifier; a change that is invalid keeps the last one
//! ```
//!
//! [`Auth`] is the only part with files, network and a clock; everything else is a function of its inputs. A credential is
//! looked up by its SHA-256 digest, so the time of a lookup depends on no stored key. Nothing here prints a credential:
//! messages name the key or the issuer.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

mod access;
mod auth;
mod cache;
mod clock;
mod config;
mod credential;
mod denied;
mod jwk;
mod jwt;
mod key;
mod metrics;
mod principal;
mod rate;
mod sources;
mod verifier;

pub use access::{Action, Target};
pub use auth::{Auth, Summary};
pub use clock::{Clock, Now};
pub use config::{ConfigError, check};
pub use credential::{Credential, take, without_credentials};
pub use denied::{Denied, Reason};
pub use key::{GeneratedKey, generate};
pub use principal::Principal;
