//! How a connection's TCP stands: the flow detail record, which the engine writes when a host asks for it
//! ([`crate::entry::Command::Inspect`]).
//!
//! The record is Linux's `struct tcp_info` (include/uapi/linux/tcp.h of Linux 6.18, whose order never changes), field by
//! field, so that a host hands it to its program as it is; behind it is what TCP_CC_INFO tells.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of [`FlowDetail`] that are `struct tcp_info`.
pub const TCP_INFO_LEN: usize = core::mem::offset_of!(FlowDetail, cc_len);

/// At the flow's slot in the flow detail table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowDetail {
    /// TCP state as Linux numbers it.
    pub state: u8,
    /// [`CA_OPEN`] … [`CA_LOSS`].
    pub ca_state: u8,
    /// Time-outs since something was last acknowledged; unanswered probes; doublings of the time-out.
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    /// TCPI_OPT_TIMESTAMPS (1), _SACK (2), _WSCALE (4), _ECN (8), _SYN_DATA (32).
    pub options: u8,
    /// Window scales: of the peer in the lower four bits, our own in the upper ones.
    pub wscale: u8,
    /// Bit 0: the program limited `delivery_rate`.
    pub app_limited: u8,
    /// µs.
    pub rto: u32,
    pub ato: u32,
    /// Bytes.
    pub snd_mss: u32,
    pub rcv_mss: u32,
    /// Segments that are out; of these those that the peer has out of order, that are taken for lost, that went again.
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    /// Linux does not count it any more: 0.
    pub fackets: u32,
    /// Milliseconds ago. `last_ack_sent`: never kept, as in Linux.
    pub last_data_sent: u32,
    pub last_ack_sent: u32,
    pub last_data_recv: u32,
    pub last_ack_recv: u32,
    /// Bytes.
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    /// µs.
    pub rtt: u32,
    pub rttvar: u32,
    /// Segments; [`NO_SSTHRESH`] before the first loss.
    pub snd_ssthresh: u32,
    pub snd_cwnd: u32,
    /// Bytes.
    pub advmss: u32,
    /// Segments by which one may overtake another.
    pub reordering: u32,
    /// µs.
    pub rcv_rtt: u32,
    /// Bytes.
    pub rcv_space: u32,
    /// Segments sent again.
    pub total_retrans: u32,
    /// Bytes a second; all ones: not paced, no limit.
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    /// Sequence numbers acknowledged: bytes, SYN of an active open, and FIN. The same received, without SYN.
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    /// Bytes queued and not sent yet.
    pub notsent_bytes: u32,
    /// µs; all ones: not measured yet.
    pub min_rtt: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    /// Bytes a second.
    pub delivery_rate: u64,
    /// µs in which bytes were queued or under way; of these those in which the peer's window, or the send buffer, was what
    /// held the connection up. (The last is the host's to know: 0 here.)
    pub busy_time: u64,
    pub rwnd_limited: u64,
    pub sndbuf_limited: u64,
    /// Segments that arrived at the peer, in order or not, the SYN among them; those whose ACK carried ECE.
    pub delivered: u32,
    pub delivered_ce: u32,
    /// Bytes sent, those of retransmissions included, and those alone.
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    /// D-SACK blocks received, segments seen to be overtaken, segments received out of order.
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    /// Windows in bytes: the peer's, and the one offered to it.
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    /// Times that the connection took another path: an engine does not.
    pub rehash: u32,
    /// Time-outs, times that such were overcome, and the milliseconds until then.
    pub total_rto: u16,
    pub total_rto_recoveries: u16,
    pub total_rto_time: u32,
    /// Segments received with a mark of congestion.
    pub received_ce: u32,
    /// Of accurate ECN, which engines do not have.
    pub accecn: [u32; 7],
    /// Bytes of `cc` that the algorithm fills.
    pub cc_len: u32,
    /// `union tcp_cc_info`.
    pub cc: [u32; 5],
    /// Zero.
    pub reserved: [u32; 4],
}

pub const CA_OPEN: u8 = 0;
pub const CA_DISORDER: u8 = 1;
pub const CA_CWR: u8 = 2;
pub const CA_RECOVERY: u8 = 3;
pub const CA_LOSS: u8 = 4;
/// TCP_INFINITE_SSTHRESH.
pub const NO_SSTHRESH: u32 = 0x7fff_ffff;

const _: () = assert!(TCP_INFO_LEN == 280);
const _: () = assert!(size_of::<FlowDetail>() == crate::region::FLOW_DETAIL_LEN as usize);
