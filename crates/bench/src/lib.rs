//! `toe bench`: the same programs on Linux's stack and on OpenTOE, measured turn and turn about on the same processors.
//!
//! The way through: [`options`] say what is asked for, `plan` makes the rows of it, `runner` measures each row round by
//! round (`stage` holds the lab and the engine, `servers` and `clients` the programs, `neighbours` those
//! that only share the processors, `measure` looks at processor time
//! and memory, `together` lets rows over slow wires run side by side, `parse` reads what the programs say), `targets` judges the medians, and `report` shows them.
//!
//! Called by the `bench` subcommand of `toe`. Failures are errors; what was started ends and what was made is removed
//! when a value is dropped.
#![forbid(unsafe_code)]

mod apps;
mod clients;
mod congestion;
mod cpus;
mod error;
mod idle;
mod machine;
mod measure;
mod neighbours;
pub mod options;
mod parse;
mod plan;
mod report;
mod row;
mod runner;
mod sample;
mod servers;
mod stage;
mod stats;
mod targets;
mod together;
mod tools;
mod transfer;

pub use error::Error;
pub use runner::{Outcome, list, run};
