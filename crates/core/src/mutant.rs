//! Mistakes to be made on purpose, to see whether the simulated world finds them.
//!
//! A line such as `if mutant::is("routes_what_is_loading")` makes one of them. It is a constant `false` unless the
//! feature `mutants` is on, which only `cargo xtask sim --mutants` does. What each is about stands in `crates/sim`.

/// Whether this mistake is to be made.
#[cfg(not(feature = "mutants"))]
pub const fn is(_: &str) -> bool {
    false
}

#[cfg(feature = "mutants")]
mod chosen {
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<String> = OnceLock::new();

    /// Whether this mistake is to be made.
    pub fn is(name: &str) -> bool {
        CHOSEN.get().is_some_and(|chosen| chosen == name)
    }

    /// From now on this mistake is made. The first choice of a process stands.
    pub fn choose(name: &str) {
        let _ = CHOSEN.set(name.to_owned());
    }
}

#[cfg(feature = "mutants")]
pub use chosen::{choose, is};
