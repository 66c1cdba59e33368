//! Servers that load a folder unchanged: the built-in runtime and generic OIP servers.

use super::{Arranged, copy_tree};
use crate::model_server::{LoadError, LoadOrder};
use std::path::Path;

pub(super) fn arrange(order: &LoadOrder, target: &Path) -> Result<Arranged, LoadError> {
    copy_tree(&order.directory, target, |_| true)?;
    Ok(Arranged { platform: String::new(), runtime_info: None })
}
