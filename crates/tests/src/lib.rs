//! What the tests of OpenTOE as a whole are made of. `tests/structure` reads the source; `tests/programs` runs
//! unmodified programs.
//!
//! A whole-program test makes a [`lab::Lab`] (network namespaces of its own), starts an [`engine::Engine`] in it and
//! programs on it, and looks at both from outside. Everything that a test starts is ended and removed when its value
//! is dropped, also when the test panics; then the output of each program is printed with the panic.
#![forbid(unsafe_code)]

pub mod bins;
pub mod child;
pub mod engine;
pub mod lab;
pub mod nginx;
pub mod source;
pub mod tools;
pub mod wait;
