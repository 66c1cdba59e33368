//! Environments of models in Python, made before the models are loaded.

use crate::{console::step, error::CommandError};
use gantry_python::{Environments, Requirements};

/// The user's environments.
pub(crate) fn environments() -> Result<Environments, CommandError> {
    Environments::of_user().map_err(CommandError::usage)
}

/// Makes missing environments, and prints the steps. Without this, the first load of a model would make its environment
/// with nothing on the screen.
pub(crate) fn prepare(requirements: &[Requirements]) -> Result<(), CommandError> {
    if requirements.is_empty() {
        return Ok(());
    }
    let environments = environments()?;
    for requirements in requirements {
        if let Err(error) = environments.prepare(requirements, &mut |line| step(line)) {
            // The other models are still served, and this one has the reason in its status.
            step(&error.to_string());
        }
    }
    Ok(())
}
