//! Worlds of messages (docs/simulator.md): programs with virtual interfaces, within one engine and between hosts, that send, write and read as they like, ask for what
//! cannot be, die, or mean harm; all from one seed. [`run`] runs one seed.
//!
//! In the order in which it happens: [`wire`] (the stream between two hosts), [`side`] (an end of a channel: its memory, what it has posted), [`channel`]
//! (what must hold of both ends together), [`world`].

mod channel;
mod side;
mod wire;
mod world;

pub use world::{Mistake, run};
