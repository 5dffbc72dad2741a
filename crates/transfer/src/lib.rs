//! Transfers between a file and a connection, without I/O: directwrite and directread of the paper, and what sendfile is with them.
//!
//! A machine says what is to be done next and is told what came of it; it counts bytes and never sees one. What a call returns, what goes back to
//! the connection, and what is left for the next call to tell is decided here. [`Outward`] is a file's way to a connection, [`Inward`] a connection's to a
//! file, [`Asynchronous`] either in parts, beside the program.
//!
//! The host library drives them with real files and sockets, the simulator with such as fail at every step.
#![forbid(unsafe_code)]

mod asynchronous;
mod inward;
mod outward;

pub use asynchronous::{Asynchronous, Next};
pub use inward::{Inward, Straight};
pub use outward::{Looked, ONE_PIECE, Outward, is_long};
use toe_abi::errno::Errno;

pub mod step {
    //! What is to be done next.
    pub use crate::inward::Step as Inward;
    pub use crate::outward::Step as Outward;
}

/// What a transfer that ends early has done, and why it ended; `done` bytes are at their place in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    pub done: usize,
    pub errno: Errno,
}

/// What a connection says of the call or of the place where it asks, and not of the stream: it would say it again. All else it says once, so a call
/// that has moved bytes leaves it to the next one: a reset is not to pass for an end.
fn is_said_again(errno: Errno) -> bool {
    matches!(errno, Errno::EAGAIN | Errno::EINTR | ERESTART | Errno::EPIPE | Errno::ENOTCONN)
}

/// The call is to begin anew once a signal's handler has run; no program sees it.
const ERESTART: Errno = Errno(512);
