//! The host interface: the contract between an engine (in software, simulated, or a card) and the hosts that use it.
//!
//! This crate *is* `docs/host-interface.md` in code: layouts with compile-time size checks and the encoding and
//! decoding of every entry and message. It does no I/O and knows nothing of what is below or above the interface.
//!
//! Read in this order: [`region`] (what lies where in the shared memory), [`register`], [`entry`] (the four
//! queues), [`command`] (argument blocks and flow information), [`tcp_info`] (how a flow's TCP stands), [`congestion`]
//! (names of algorithms), [`attach`] (how a host gets all
//! this), [`channel`] (memory that two sessions share), [`lane`] (the same for datagrams), [`via`] (the same for messages of virtual interfaces), [`capture`] (packets as an engine saw them), [`looks`] (how far the
//! engine is).
#![forbid(unsafe_code)]

pub mod attach;
pub mod capture;
pub mod channel;
pub mod command;
pub mod congestion;
pub mod discovery;
pub mod entry;
pub mod errno;
pub mod executable;
mod flow_option;
pub mod lane;
pub mod looks;
pub mod own_calls;
pub mod owner_word;
pub mod policy;
pub mod region;
pub mod register;
pub mod report;
pub mod tcp_info;
pub mod via;
pub mod why;

/// Version of the host interface. A host and an engine must agree on it exactly while the major number is 0.
pub const INTERFACE_VERSION: u16 = 30;
