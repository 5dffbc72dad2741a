//! The socket switch layer (TSSL of the papers): `libtoe_switch.so`, put under an unmodified program with LD_PRELOAD.
//! It defines the C library's socket calls again and sends each to the engine, through the host library, or to the
//! next definition, usually the C library's own.
//!
//! A call is a short function in [`calls`] that looks the descriptor up: one load from a table for a descriptor that is
//! not the engine's. Such functions are `extern "C-unwind"`, because the C library cancels threads by unwinding through
//! its callers; what is ours runs under [`ffi::guarded`], so that a defect fails one call and not the program.
//!
//! Files use those above them in this table, and none below.
//!
//! | file | what |
//! |---|---|
//! | [`real`], [`ffi`] | the next definition of each call; C's memory and numbers |
//! | [`policy`], [`proto_stacks`] | what the user said of which sockets go where; which stacks to try (Table 1 of the paper) |
//! | [`own_calls`], [`fork`] | programs that make system calls past the C library; what this process has done to whose its sockets are |
//! | [`lookup`], [`option_model`] | what of the engine's is behind a descriptor; options that make no difference to it |
//! | [`socket_state`], [`why`] | what is known of an undecided socket; the report of the decisions, for `toe why` |
//! | [`engines`] | whether an engine can have a socket |
//! | [`replacing`], [`twin_name`], [`twin_pool`], [`hidden_twin`], [`twin`] | the kernel's socket: exchanged for an engine's and back, its name, kept for later, kept for its port |
//! | [`tables`] | how a descriptor leaves all tables |
//! | [`connect`], [`listen`], [`datagram_stack`], [`free_port`] | the decisions themselves |
//! | [`adopt`] | descriptors that came over exec or in a message |
//! | [`calls`], [`aio`] | the interposed calls; requests of POSIX AIO, and the threads that run them |
//! | [`init`] | loading |
//!
//! Nothing here may use the standard library's files, sockets or pipes: they would call back what is defined here. System
//! calls go through rustix, `toe::sys` or [`real`].

mod adopt;
mod aio;
pub mod calls;
mod connect;
mod datagram_stack;
mod debug;
mod engines;
mod ffi;
mod fork;
mod free_port;
mod hidden_twin;
mod init;
mod listen;
mod lookup;
mod option_model;
mod own_calls;
mod policy;
mod proto_stacks;
mod real;
mod replacing;
mod socket_state;
mod tables;
mod tally;
mod twin;
mod twin_name;
mod twin_pool;
mod why;
