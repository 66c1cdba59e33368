//! What people write and read: every kind as a Rust type, its schema, its validation.
//!
//! ```text
//! text ─▶ yaml (a tree that knows its lines) ─▶ schema (unknown fields, wrong types)
//!      ─▶ the kind's type (serde) ─▶ its own rules (names, ranges, what excludes what) ─▶ Object
//! ```
//!
//! Each step collects every problem it finds, with file, line, path and remedy; [`parse`] stops at the first
//! step that found any. A new kind is a type with `Deserialize` and `JsonSchema`, and its rules.

mod convention;
mod model;
mod name;
mod object;
mod problem;
mod quantity;
mod schema;
mod server;
mod suggest;
mod yaml;

#[cfg(test)]
mod tests;

pub use convention::{ModelFile, model_of_file, runtime_of_file};
pub use model::{DataflowSpec, ExplainerSpec, LlmSpec, LoggingSpec, Model, ModelSpec, ParameterSpec};
pub use name::{NameProblem, check_name};
pub use object::{API_VERSION, Kind, Metadata, Object, Parsed, parse};
pub use problem::Problem;
pub use quantity::Quantity;
pub use server::{ImageOverrides, Server, ServerSpec};
pub use suggest::nearest;
