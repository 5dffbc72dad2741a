//! What needs no memory and no clock: messages as fragments, and what a virtual interface's messages ask for.

pub mod message;
pub mod operation;

pub use message::{Incoming, Outgoing, Piece};
pub use operation::{Kind, Operation};
