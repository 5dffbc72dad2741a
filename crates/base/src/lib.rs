//! The words every other part speaks: time, sequence numbers, windows, ids, limits, counters.
//!
//! Nothing here does I/O, reads a clock or allocates. Every crate of the workspace may use this one; it uses none
//! of them.
#![forbid(unsafe_code)]

pub mod account;
pub mod addr;
pub mod arena;
pub mod counter;
pub mod id;
pub mod limits;
pub mod seq;
pub mod time;
pub mod window;

pub use addr::{Addr, Endpoint};
pub use id::{
    AnchorHandle, ChannelId, Cred, DatagramId, FlowId, FlowIdx, LaneId, ListenerId, NetNs, PortId,
    QueueSetId, SessionId, ViaId,
};
pub use seq::SeqNum;
pub use time::{Forward, Instant};
