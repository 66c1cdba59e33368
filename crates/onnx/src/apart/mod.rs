//! rten in a process apart.
//!
//! rten bounds neither the memory nor the time that a network takes, and says so itself: a network of a few hundred
//! bytes can ask for more memory than there is, or run for ever, and take every other model with it. So the network
//! has a process of its own, whose memory the system bounds and which is killed when a run takes too long. A request
//! that does so gets an error; the process starts again with the next one.
//!
//! ```text
//! parent (callers, each with a number) ── orders ──▶ child: rten
//!    one thread, answers by number     ◀── answers ──
//! ```
//!
//! Both are the same program, so what is said between them (`frame`) has no versions.

mod child;
mod frame;
mod parent;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

pub use child::serve;
pub(crate) use parent::{ApartModel, Bounds};

/// How the process is started that a network runs in. It must call [`serve`] and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apart {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// The files of a network.
pub(crate) struct Network {
    pub model: Vec<u8>,
    /// Weights beside the model, by the names that it uses.
    pub files: HashMap<String, Vec<u8>>,
}
