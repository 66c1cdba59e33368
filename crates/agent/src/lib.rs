//! See the module list.
