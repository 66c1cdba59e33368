//! The schedulers: one for each namespace with a runtime, each over a connection of its own.
//!
//! ```text
//! connect ─▶ say which Servers there are ─▶ subscribe ─▶ ask for everything ─▶ complete ─▶ changes, until it breaks
//!    ▲                                                                                       │
//!    └──────────────── nothing is known any more; wait, then again ◀─────────────────────────┘
//! ```

mod book;
mod call;
mod link;
mod reach;

pub use book::{Asked, Book, Errand, ModelView, NO_SCHEDULER, ServerView, Verb};
pub use call::Answer;
pub use link::{Link, News};
pub use reach::{Network, Reach};
