//! The simulator: engines, sessions, programs and bad links in virtual time, all from one seed.
//!
//! A seed chooses a world and which faults it has ([`swarm`]), runs it in three phases ([`run`]: with faults, healed, at
//! the end), and every checker ([`checkers`]) looks on all the way. The same seed gives the same run, byte by byte. The
//! engine is the one that `toed` runs; the simulator plays what is around it: the daemon and the clock ([`world`]),
//! session memory and completion rings ([`memory`]), programs ([`program`]), hosts that mean harm ([`hostile`]), and links
//! ([`network`]). docs/simulator.md says how to use it.
#![forbid(unsafe_code)]

pub mod channels;
pub mod checkers;
pub mod corpus;
pub mod datagrams;
pub mod entries;
pub mod files;
pub mod frame;
pub mod fuzz;
pub mod heads;
pub mod hostile;
pub mod kernel;
pub mod linux;
pub mod memory;
pub mod messages;
pub mod network;
pub mod node;
mod panics;
pub mod pattern;
pub mod program;
pub mod random;
pub mod run;
pub mod sabotage;
pub mod scenes;
pub mod settle;
pub mod swarm;
pub mod tally;
pub mod trace;
pub mod watching;
pub mod wider;
pub mod world;

pub use checkers::{Checker, Failure};
pub use run::{Outcome, Runner, run};
pub use sabotage::Sabotage;
pub use swarm::Fault;
pub use tally::{Tallies, Tally};
