//! What needs no memory and no clock: messages as fragments.

pub mod message;

pub use message::{Incoming, Outgoing, Piece};
