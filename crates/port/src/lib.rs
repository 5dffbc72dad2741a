//! Links: what carries the engine's frames. `toed` opens one [`Port`] per `--port` and moves frames between it and
//! the engine; the engine itself never sees a port.
//!
//! A driver is a folder. Its `mod.rs` has the port, its `error.rs` (where there are some) the errors that only it meets, its `sys.rs` the
//! system calls (AF_XDP's are in `program.rs` and `socket.rs`). It has a line in `spec.rs` and one in `open.rs`. Wrappers such as [`fault`]
//! work over any port.
//!
//! This crate needs `unsafe` for the system calls and for memory shared with the kernel. All of it is in the `sys.rs` and `ring.rs` files, in
//! `netdev.rs` and in `gather.rs`.

mod alignment;
mod batch;
mod error;
pub mod fault;
mod gather;
pub mod memory;
mod netdev;
mod open;
mod packet;
mod port;
mod spec;
mod tap;
pub mod virtio_net;
mod xdp;

pub use error::OpenError;
pub use fault::{FaultPlan, FaultRates, Rate};
pub use open::{open, open_cable_end};
pub use port::{EachFrame, Port, PortCounter, PortCounters, Steering};
pub use spec::{Driver, PortSpec, SpecError};
