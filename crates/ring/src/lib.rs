//! Rings, doorbells and data windows: the only code of the project that touches memory shared with hosts.
//!
//! Two processes that need not trust each other share a [`Region`]. Everything else here is built on its checked
//! accesses:
//!
//! - [`region`]: the mapping, and copies in and out of it;
//! - [`lost_memory`]: what happens where the system has no page for it;
//! - [`host_cursor`] and [`engine_cursor`]: the ends of a ring. The host's ends take the engine at its word, as a
//!   driver does its device; the engine's ends take the host for hostile. They are different types, so that one
//!   cannot stand in for the other;
//! - [`doorbell`] and [`irq`]: how each side sleeps and is woken without a lost wake-up;
//! - [`load`]: how busy the engine says that it is;
//! - [`moderation`]: when an interrupt is due, as a plain state machine;
//! - [`pending_wakes`]: the word of a lock within a process, whose holder wakes others once it is free;
//! - [`owner_word`]: who may touch a flow that can become another's;
//! - [`queue_set`]: all of that for one queue set, as [`toe_abi::region::QueueSetLayout`] lays it out;
//! - [`channel`]: the same between two hosts, for connections whose both ends are on one engine;
//! - [`lane`]: a way for datagrams from one host to another;
//! - [`via`]: a connection of virtual interfaces, for messages between two hosts.
//!
//! The daemon uses the engine's ends, the host library the host's. Nothing here knows what an entry means beyond
//! decoding it.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod channel;
mod copies;
pub mod doorbell;
pub mod engine_cursor;
pub mod host_cursor;
pub mod irq;
pub mod lane;
pub mod load;
pub mod looks;
pub mod lost_memory;
mod memory_file;
pub mod moderation;
mod names;
pub mod owner_word;
pub mod pending_wakes;
pub mod queue_set;
pub mod region;
pub mod ring;
mod summed;
pub mod sync;
pub mod via;

pub use channel::{ChannelEnd, ChannelMemory, Frozen};
pub use doorbell::{EngineDoorbell, EngineSleep, EventFd, HostDoorbell};
pub use engine_cursor::{EngineConsumer, EngineProducer, PushError};
pub use host_cursor::{Full, HostConsumer, HostProducer};
pub use irq::{EngineIrq, HostIrq, IrqLine, IrqReceiver, IrqSender, irq_pair};
pub use lane::{LaneMemory, LaneReceiver, LaneSender};
pub use looks::{EngineLooks, HostLooks};
pub use moderation::{IrqSettings, Moderation};
pub use queue_set::{EngineQueueSet, HostQueueSet};
pub use region::{OutOfRange, Region};
pub use via::{ViaMemory, ViaReceiver, ViaSender};

#[cfg(test)]
mod tests;
