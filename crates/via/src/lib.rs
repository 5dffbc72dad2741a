//! Messages between two programs, of one engine or of two: EVIL, the easy-to-use virtual interface library, native VIA (`vipl`) beside it (decision 0036), and
//! the endpoints of libfabric's provider ([`endpoint`], decision 0038).
//!
//! In the order in which a message goes down: [`evil`] (the calls of `include/evil.h`), [`table`] (what a C program's channel record
//! stands for), [`channel`] (the same six calls for Rust programs), [`core`] (how messages are cut and put together: values, no I/O),
//! `meet` (how two programs come to a connection), `link` (a side of it), [`sleep`] (waiting), [`session`] (the process at the engine). Memory is
//! [`toe_ring::via`]'s. What stands in a TCP connection between hosts is [`far`]'s (decision 0040). [`node`] is for the simulator.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod channel;
pub mod core;
pub mod endpoint;
pub mod error;
pub mod far;
// Fields have the paper's names.
#[allow(non_snake_case)]
pub mod evil;
mod link;
mod lock;
mod meet;
pub mod node;
pub mod parts;
pub mod session;
pub mod sleep;
pub mod sleepers;
mod table;
mod vipl;

pub use channel::Channel;
pub use error::Error;
