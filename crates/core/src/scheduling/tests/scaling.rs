//! Scaling by demand.

use super::*;
