//! Worlds of transfers between files and connections (docs/simulator.md): disks that fail, files that shrink and grow meanwhile, connections that are
//! reset, that take little and give little, channels that end, signals, time-outs, cancels; all from one seed. [`run`] runs one seed.
//!
//! In the order in which bytes go out: [`disk`] (a file that is read), [`line`] (a connection), [`sink`] (what is written to), [`outward`] and [`inward`] (one call either way, with what must
//! hold of it), [`world`] (what a seed does with them).

mod disk;
mod inward;
mod line;
mod outward;
mod sink;
mod world;

pub use world::{Mistake, run};
