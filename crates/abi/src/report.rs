//! The JSON reports of an engine (`toe status`, `toe ss`): one set of types for the writer and every reader.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Answer to [`crate::attach::ReportKind::Status`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatusReport {
    pub name: String,
    pub pid: u32,
    pub version: String,
    pub interface_version: u16,
    pub uptime_secs: u64,
    pub ports: Vec<PortReport>,
    pub sessions: Vec<SessionReport>,
    /// Of its time in the last tenth of a second, the thousandths in which it had something to do.
    #[serde(default)]
    pub busy_permille: u32,
    pub flows: u32,
    pub listeners: u32,
    /// Octets of receive memory in use, all sessions together.
    pub receive_memory_used: u64,
    /// Non-zero counters by name: frames, segments, drops by reason, fences by reason.
    pub counters: BTreeMap<String, u64>,
    /// Rounds of the engine's loop so far.
    #[serde(default)]
    pub rounds: u64,
    /// Where the engine's time went, in the order of a round.
    #[serde(default)]
    pub stages: Vec<StageReport>,
}

/// One stage of a round, summed over the rounds that were measured (one in some tens).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    pub stage: String,
    /// Entries, frames, segments, flows told, …: what the stage moves.
    pub items: u64,
    /// Rounds in which it moved something, and the time they took it.
    pub rounds: u64,
    pub ns: u64,
    /// The same time in ticks of the machine's cycle counter (nanoseconds where there is none).
    pub ticks: u64,
    /// Rounds in which it found nothing, and the time that looking took.
    pub empty_rounds: u64,
    pub empty_ns: u64,
}

/// One link.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortReport {
    pub id: u8,
    /// `DRIVER:IFNAME` as given at start.
    pub name: String,
    pub mac: String,
    pub mtu: u32,
    pub addrs: Vec<String>,
    pub rx_frames: u64,
    pub tx_frames: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
}

/// One attached process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SessionReport {
    pub id: u16,
    pub pid: u32,
    pub uid: u32,
    pub program: String,
    pub flows: u32,
    pub listeners: u32,
    /// Octets of receive memory in use.
    pub receive_memory_used: u64,
}

/// Answer to [`crate::attach::ReportKind::Sockets`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SocketsReport {
    pub sockets: Vec<SocketReport>,
}

/// One flow or listener.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SocketReport {
    /// `LISTEN`, `ESTAB`, …
    pub state: String,
    pub local: String,
    pub remote: String,
    /// Octets received and not yet taken by the program; for a listener, connections not yet taken.
    pub recv_q: u32,
    /// Octets sent and not yet acknowledged by the peer; for a listener, its backlog.
    pub send_q: u32,
    /// The holders; empty when only the engine holds the flow (TIME_WAIT, orphans).
    pub users: Vec<UserReport>,
    /// `local` or the port's `DRIVER:IFNAME`; `*` for a listener on all.
    pub device: String,
}

/// A process that holds a socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UserReport {
    pub program: String,
    pub pid: u32,
    pub fd: u32,
}
