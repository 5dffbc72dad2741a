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
    pub flows: u32,
    pub listeners: u32,
    /// Octets of receive memory in use, all sessions together.
    pub receive_memory_used: u64,
    /// Non-zero counters by name: frames, segments, drops by reason, fences by reason.
    pub counters: BTreeMap<String, u64>,
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
