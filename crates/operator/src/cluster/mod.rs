//! The API server as the operator sees it: what is there, kept by watches, and how it is changed.

mod adopt;
mod cache;
mod child;
mod leadership;
mod object;
mod place;
mod subset;
mod trouble;
mod watch;
mod write;

pub use adopt::Adoption;
pub use cache::Cache;
pub(crate) use child::digest;
pub use child::{APPLIED, Child, ChildKind, Desired, MANAGED_BY};
pub use leadership::Leadership;
pub use object::{
    Custom, CustomKind, Experiment, GROUP, Key, Model, Pipeline, SeldonConfig, SeldonRuntime, Server,
    ServerConfig, VERSION,
};
pub use place::{Whose, whose};
pub use subset::{holds, lacking};
pub use trouble::Trouble;
pub use watch::{Change, follow};
pub use write::{Doomed, Happening, Writer};
