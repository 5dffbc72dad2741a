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
    /// Bytes of receive memory in use, all sessions together.
    pub receive_memory_used: u64,
    /// Congestion control and ECN of connections whose program says nothing.
    #[serde(default)]
    pub congestion: String,
    #[serde(default)]
    pub ecn: String,
    /// Who may use Fast Open.
    #[serde(default)]
    pub fast_open: String,
    /// What there is, by its name.
    #[serde(default)]
    pub quotas: BTreeMap<String, QuotaReport>,
    /// Who has how much of it.
    #[serde(default)]
    pub users: Vec<AccountReport>,
    /// Non-zero counters by name: frames, segments, drops by reason, fences by reason.
    pub counters: BTreeMap<String, u64>,
    /// Rounds of the engine's loop so far.
    #[serde(default)]
    pub rounds: u64,
    /// Where the engine's time went, in the order of a round.
    #[serde(default)]
    pub stages: Vec<StageReport>,
}

/// A kind of thing of which there is a limited amount. Memory is counted in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaReport {
    pub used: u64,
    /// What all users together can have.
    pub total: u64,
    /// What any one of them can have at most, where something was configured. Otherwise the rule alone decides: eight times
    /// what is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u64>,
}

/// What one user has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountReport {
    pub uid: u32,
    /// His network namespace, by its cookie; none is the engine's own, and the largest number all those beyond a few.
    #[serde(default)]
    pub netns: Option<u64>,
    /// By the names of [`StatusReport::quotas`]; what he neither has nor was refused is left out.
    pub parts: BTreeMap<String, UseReport>,
    /// What his processes have used of the engine's time, while there were others to share it with.
    pub engine_us: u64,
}

/// A user's part of one kind of thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseReport {
    pub used: u64,
    /// How often he was refused more.
    pub refused: u64,
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
    /// The interface is one end of a veth(4).
    #[serde(default)]
    pub is_veth: bool,
    /// Why nothing goes in or out there at present; none: it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
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
    /// Its network namespace, by the kernel's cookie (SO_NETNS_COOKIE); none: the engine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<u64>,
    pub program: String,
    pub flows: u32,
    pub listeners: u32,
    /// Bytes of receive memory in use.
    pub receive_memory_used: u64,
}

/// Answer to [`crate::attach::ReportKind::Sockets`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SocketsReport {
    pub sockets: Vec<SocketReport>,
}

/// One flow, listener or UDP socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SocketReport {
    /// The network namespace of its addresses, as in [`SessionReport`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<u64>,
    /// `LISTEN`, `ESTAB`, …; of UDP `UNCONN` or `ESTAB`, as `ss -u` has it.
    pub state: String,
    pub local: String,
    pub remote: String,
    /// Bytes received and not yet taken by the program; for a listener, connections not yet taken. Of UDP the kernel and the program know.
    pub recv_q: u32,
    /// Bytes sent and not yet acknowledged by the peer; for a listener, its backlog.
    pub send_q: u32,
    /// The holders; empty when only the engine holds the flow (TIME_WAIT, orphans).
    pub users: Vec<UserReport>,
    /// `local` or the port's `DRIVER:IFNAME`; `*` for a listener on all, and a UDP socket.
    pub device: String,
    /// Of a connection only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpReport>,
    /// Of a UDP socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpReport>,
}

/// What was counted of a UDP socket since its program showed it to the engine; what it gets and sends by the kernel alone is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpReport {
    /// Datagrams that came for it by the engine's links, and their bytes without headers.
    pub rx_datagrams: u64,
    pub rx_bytes: u64,
    /// Of these, those that went by the kernel's queue, and those that found no room there or in the lane.
    pub rx_by_kernel: u64,
    pub rx_drops: u64,
    /// Datagrams that programs gave to the engine, and their bytes.
    pub tx_datagrams: u64,
    pub tx_bytes: u64,
    /// Of these, those that were lost at once: there was no way, no room, or the record was not sound.
    pub tx_drops: u64,
    /// More than one process has or had it: all that comes for it goes by the kernel.
    pub shared: bool,
}

/// How a connection's TCP stands: what `ss -i` shows of Linux's, in bytes and µs where that counts segments and ms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpReport {
    /// `cubic`, `reno`, …
    pub congestion: String,
    /// `open`, `cwr`, `recovery` or `loss`, as Linux names them.
    pub ca_state: String,
    /// In use, not only offered.
    pub timestamps: bool,
    pub sack: bool,
    pub ecn: bool,
    /// Window scales of what is sent and of what is received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wscale: Option<[u8; 2]>,
    /// Bytes go from program to program, past the engine, which does not count them.
    pub direct: bool,
    pub rto_us: u32,
    /// Times that it was doubled.
    pub backoff: u8,
    /// 0 until the first measurement, as the next two.
    pub srtt_us: u32,
    pub rttvar_us: u32,
    pub min_rtt_us: u32,
    /// Largest payload of a segment that is sent, and largest IP datagram of the path.
    pub mss: u16,
    pub pmtu: u32,
    /// Bytes.
    pub cwnd: u32,
    /// Bytes; none before the first loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssthresh: Option<u32>,
    /// Bytes sent, those of retransmissions included, and those of retransmissions alone.
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    /// Segments; one that a link cuts counts as those that it becomes.
    pub segs_out: u64,
    pub segs_in: u64,
    /// Bytes a second; 0: not measured yet.
    pub delivery_rate: u64,
    /// The program, not the path, limited that.
    pub app_limited: bool,
    /// Bytes a second; 0: not paced.
    pub pacing_rate: u64,
    /// Bytes sent and not acknowledged, and of these: those that the peer has out of order, and those taken for lost.
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    /// Retransmissions of the connection.
    pub retransmits: u32,
    /// Segments were seen to overtake each other, and how far RACK's window was widened for it.
    pub reordering_seen: bool,
    pub reordering_window: u8,
    /// Bytes queued and not sent yet.
    pub notsent: u32,
    /// Windows, in bytes: the peer's, and what is offered to it.
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    /// Bytes that the receive window may grow to.
    pub rcv_space: u32,
    #[serde(default)]
    pub counts: TcpCounts,
}

/// The rest of what TCP_INFO tells of a connection ([`crate::tcp_info::FlowDetail`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpCounts {
    /// Segments with data.
    pub data_segs_out: u32,
    pub data_segs_in: u32,
    /// Segments delivered, and of these those for which the peer told of congestion.
    pub delivered: u32,
    pub delivered_ce: u32,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub rcv_rtt_us: u32,
    /// Milliseconds since data was sent, data and an ACK received.
    pub lastsnd_ms: u32,
    pub lastrcv_ms: u32,
    pub lastack_ms: u32,
    /// µs with something to send, and of these those in which the peer's window was closed.
    pub busy_us: u64,
    pub rwnd_limited_us: u64,
    pub timeouts: u16,
}

/// A process that holds a socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UserReport {
    pub program: String,
    pub pid: u32,
    pub fd: u32,
}
