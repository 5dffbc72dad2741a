//! What the tests of OpenTOE as a whole are made of. `tests/structure` reads the source; `tests/programs` runs
//! unmodified programs, `tests/hostile` those of users who mean harm ([`attacker`]).
//!
//! A whole-program test makes a [`lab::Lab`] (network namespaces of its own), starts an [`engine::Engine`] in it and
//! programs on it, and looks at both from outside. Everything that a test starts is ended and removed when its value
//! is dropped, also when the test panics; then the output of each program is printed with the panic. The work is done
//! by `toe-lab`, which `toe bench` uses too; the modules of the same names here turn its errors into panics.
#![forbid(unsafe_code)]

pub mod attacker;
pub mod bins;
pub mod child;
pub mod conformance;
pub mod engine;
pub mod lab;
pub mod nginx;
pub mod source;
pub mod tools;
pub mod wait;

/// The value, or a failed test.
///
/// # Panics
/// When there is none.
#[track_caller]
pub fn must<T>(result: toe_lab::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
