//! Worlds of datagrams (docs/simulator.md): engines with UDP sockets, programs that send whatever they like, hosts that mean harm on their lanes, and
//! links that lose, repeat, delay and change frames; all from one seed. [`run`] runs one seed.
//!
//! Apart from the worlds of streams ([`crate::world`]): what must hold of a datagram is another thing than of a stream, and these worlds are
//! small. Engines' and links' shapes are those of [`crate::swarm`].

mod checker;
mod frames;
mod host;
mod world;

pub use world::{Mistake, run};
