//! The socket switch layer (TSSL of the papers): `libtoe_switch.so`, put under an unmodified program with LD_PRELOAD.
//! It defines the C library's socket calls again and sends each to the engine, through the host library, or to the
//! next definition, usually the C library's own.
//!
//! A call is a short function in [`calls`] that looks the descriptor up: one load from a table for a descriptor that is
//! not the engine's. Such functions are `extern "C-unwind"`, because the C library cancels threads by unwinding through
//! its callers; what is ours runs under [`ffi::guarded`], so that a defect fails one call and not the program.
//!
//! | file | what |
//! |---|---|
//! | [`init`], [`fork`] | loading; fork and vfork |
//! | [`real`] | the next definition of each call |
//! | [`policy`] | what the user said of which sockets go where |
//! | [`proto_stacks`], [`socket_state`] | which stacks to try (Table 1 of the paper); what is known of an undecided socket |
//! | [`connect`], [`listen`] | the decisions themselves |
//! | [`adopt`] | descriptors that came over exec or in a message |
//! | [`aio`] | requests of POSIX AIO, and the threads that run them |
//! | [`twin_name`] | where a twin is bound |
//! | [`hidden_twin`] | the kernel socket that keeps a bound port taken |
//! | [`own_calls`] | programs that make system calls past the C library |
//! | [`why`] | the report of the decisions, for `toe why` |
//! | [`calls`] | the interposed calls |
//!
//! Nothing here may use the standard library's files, sockets or pipes: they would call back what is defined here. System
//! calls go through rustix, `toe::sys` or [`real`].

mod adopt;
mod aio;
pub mod calls;
mod connect;
mod datagram_stack;
mod debug;
mod ffi;
mod fork;
mod free_port;
mod hidden_twin;
mod init;
mod listen;
mod own_calls;
mod policy;
mod proto_stacks;
mod real;
mod replacing;
mod socket_state;
mod tally;
mod twin;
mod twin_name;
mod twin_pool;
mod why;
