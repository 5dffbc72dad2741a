//! Every fixed size of the project, related to each other at compile time.

/// Largest payload of one segment inside the engine (design: "big units"): what one virtio-net GSO frame carries.
pub const SEGMENT_PAYLOAD_MAX: usize = 65_536 - 1 - 20 - 60;
/// Largest frame that a port hands over or takes: Ethernet header and a full IPv4 datagram.
pub const FRAME_MAX: usize = 14 + 65_535;

/// Sessions of one engine, a process each. Session 0 is the engine's own staging memory. One that does nothing costs it some
/// kilobytes and four descriptors, and no time.
pub const SESSIONS_MAX: usize = 1024;
/// Queue sets of one session.
pub const QUEUE_SETS_MAX: usize = 16;
/// Flows of one engine, all sessions together.
pub const FLOWS_MAX: usize = 1 << 16;
/// Flows that one session may hold.
pub const SESSION_FLOWS_MAX: usize = 1 << 15;
/// Listeners that one session may hold.
pub const SESSION_LISTENERS_MAX: usize = 1024;

/// Listeners of one engine, all sessions together.
pub const LISTENERS_MAX: usize = 1 << 14;

/// Smallest and largest data window of a flow, in bytes.
pub const WINDOW_MIN: u32 = 4 << 10;
pub const WINDOW_MAX: u32 = 16 << 20;
/// Receive window offered at first; it grows with the path.
pub const RECEIVE_WINDOW_INITIAL: u32 = 64 << 10;
/// Windows that auto-tuning may reach, on a path with a round trip of at least [`LONG_PATH_US`] and on a shorter one: there
/// a larger one only spoils caches.
pub const RECEIVE_WINDOW_MAX: u32 = WINDOW_MAX;
pub const RECEIVE_WINDOW_NEAR: u32 = 4 << 20;
/// 4 MiB each 4 ms are 8 Gbit/s.
pub const LONG_PATH_US: u32 = 4_000;

/// Separate pieces of a session's memory that a flow's unacknowledged send data may lie in.
pub const SEND_EXTENTS_MAX: usize = 8;
/// Separate out-of-order ranges remembered per flow.
pub const REASSEMBLY_RANGES_MAX: usize = 1024;

const _: () = assert!(SESSION_FLOWS_MAX <= crate::id::FlowId::SLOTS_MAX as usize);
const _: () = assert!(SESSION_FLOWS_MAX <= FLOWS_MAX);
const _: () = assert!(RECEIVE_WINDOW_INITIAL >= WINDOW_MIN && RECEIVE_WINDOW_MAX <= WINDOW_MAX);
const _: () = assert!(WINDOW_MIN.is_power_of_two() && WINDOW_MAX.is_power_of_two());
