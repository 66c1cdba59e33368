//! Models of Python libraries: recognised without executing them, served and converted in their own environments.
//!
//! ```text
//! file or folder ─▶ recognise (content: pickle, zip, …) ─▶ Recognised: format, library versions, remedy
//!                                                             │ allowed by the user
//!                                   environment (venv, cached) ◀── requirements
//!                                             ├─▶ host: one process per model, tensors over a socket
//!                                             └─▶ convert: writes ONNX or the library's own format
//! ```
//!
//! A pickle runs code when Python loads it. Nothing here loads one unless the caller has the user's permission; what is
//! known about it before comes from a scan of its bytes.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

mod convert;
mod environment;
mod formats;
mod host;
mod interpreter;
mod mlflow;
mod mlserver;
mod packages;
mod pickle;
mod process;
mod recognise;
mod zip_model;

pub use convert::{Converted, Converter, Sample, convert};
pub use environment::{Environment, EnvironmentError, Environments};
pub use host::{Host, HostConfig, HostError};
pub use packages::Requirements;
pub use pickle::{PickleScan, scan as scan_pickle};
pub use recognise::{Loader, Native, Recognised, Route, recognise, recognise_artifact};
