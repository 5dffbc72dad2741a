//! A lab for programs on both stacks: network namespaces, engines, nginx, and children that are surely ended.
//!
//! Used by `toe bench` and by the whole-program tests. Everything that is started or made here ends or is removed when
//! its value is dropped. Failures are errors with cause and remedy; nothing here panics. (Tests turn them into panics;
//! then the output of each program is printed with the panic.)
#![forbid(unsafe_code)]

pub mod cable;
pub mod child;
pub mod engine;
mod error;
pub mod lab;
pub mod nginx;
pub mod process;
pub mod wait;

pub use error::{Error, Result};
