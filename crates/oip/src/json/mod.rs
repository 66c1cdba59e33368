//! JSON reader and writer without an intermediate tree.

mod number;
mod read;
mod write;

pub(crate) use number::{Integer, Number};
pub(crate) use read::{Cursor, too_deep};
pub(crate) use write::{write_f32, write_f64, write_int, write_string};
