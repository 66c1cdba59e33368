//! Silence, loss, draining, moves, retries, restarts and clocks.

use super::*;
