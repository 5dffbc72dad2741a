//! The interposed calls, by family. Each is short: look the descriptor up, then the engine's way or the next
//! definition's. What is left to the kernel, and works: mmap, socketpair, and all calls on descriptors that are no TCP sockets.
//!
//! Known gaps: calls that the C library makes inside itself do not come here. stdio has streams of its own ([`stdio`]); the
//! functions that have any number of arguments (execl, dprintf) are caught on x86-64.
//! O_ASYNC gives no SIGIO, and urgent data no SIGURG.

pub mod address;
pub mod aio;
pub mod alias;
pub mod cancel;
pub mod confine;
pub mod control;
mod control_model;
pub mod data;
pub mod datagram;
pub mod datagram_send;
pub mod descriptor;
pub mod epoll;
pub mod exec;
pub mod fast_open;
pub mod file;
pub mod fortify;
pub mod limit;
pub mod load;
mod messages;
pub mod metadata;
pub mod open;
pub mod option;
mod other_library;
pub mod paths;
pub mod poll;
pub mod process;
mod records;
mod rights;
pub mod signal;
pub mod splice;
pub mod stdio;
pub mod stdio_stream;
pub mod syscall;
pub mod wait_limits;
