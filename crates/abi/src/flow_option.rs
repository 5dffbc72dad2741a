//! Options of a flow, as a host sets them by [`Command::SetOption`](crate::entry::Command::SetOption).

/// Which option; its value is beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowOption {
    /// Non-zero: no Nagle delay (TCP_NODELAY).
    NoDelay,
    /// Non-zero: hold back partial segments (TCP_CORK), at most 200 ms.
    Cork,
    /// Non-zero: keepalive on (SO_KEEPALIVE).
    KeepAlive,
    /// Seconds of silence before the first keepalive probe (TCP_KEEPIDLE).
    KeepIdleSecs,
    /// Seconds between keepalive probes (TCP_KEEPINTVL).
    KeepIntervalSecs,
    /// Unanswered probes until the connection is dropped (TCP_KEEPCNT).
    KeepCount,
    /// Milliseconds that data may stay unacknowledged; 0 is the system's default (TCP_USER_TIMEOUT, RFC 5482).
    UserTimeoutMs,
    /// Largest receive window in bytes (SO_RCVBUF).
    ReceiveWindowMax,
    /// Non-zero: the program takes no more, either (SHUT_RD). Once it sends no more, too, bytes that arrive are answered
    /// with RST (RFC 2525 section 2.17).
    ReceiveShut,
    /// The algorithm of congestion control by its number in [`crate::congestion`] (TCP_CONGESTION); another number changes
    /// nothing.
    Congestion,
    /// Bytes a second that may go out at most; 0: no limit (SO_MAX_PACING_RATE).
    MaxPacingRate,
    /// The Diffserv field in its place in a byte, whose ECN bits are not the program's (IP_TOS, IPV6_TCLASS).
    TrafficClass,
    /// TTL or hop limit, 1 to 255; another number changes nothing (IP_TTL, IPV6_UNICAST_HOPS).
    HopLimit,
    /// 0: soft errors are only noted in the flow's information. Not 0: those that ICMP tells come as
    /// [`Completion::SoftError`] instead; 2: so do retransmissions beyond R1 (IP_RECVERR, IPV6_RECVERR).
    SoftErrors,
    /// Seconds that FIN_WAIT_2 lasts once the program has let go (TCP_LINGER2); all ones: none. Other than the 60 s that it has at
    /// first, their end, when more than that or none, is told to the peer by RST.
    FinWait2Secs,
    /// [`crate::command::SHARES_REUSE_ADDR`] and [`crate::command::SHARES_REUSE_PORT`], or 0: what it lets others have of its
    /// name (SO_REUSEADDR, SO_REUSEPORT). Connections that come in have at first what their listener's twin has.
    SharesName,
    /// How often a SYN is sent again once the waits double, 1 to 127; 0: the default (TCP_SYNCNT).
    SynRetries,
    /// Fewer bytes than half of this that have not gone out yet are news ([`Completion::WentOut`]); 0: nothing is (TCP_NOTSENT_LOWAT).
    UnsentLowWater,
    /// Non-zero: the last close of the anchor, however it comes, ends the connection with RST (SO_LINGER with time 0).
    AbortAtClose,
    /// Non-zero: once the end of what is sent is acknowledged, [`Completion::Sent`] says so, if need be of no bytes.
    TellEnd,
}

impl FlowOption {
    pub(crate) const fn to_raw(self) -> u16 {
        match self {
            FlowOption::NoDelay => 1,
            FlowOption::Cork => 2,
            FlowOption::KeepAlive => 3,
            FlowOption::KeepIdleSecs => 4,
            FlowOption::KeepIntervalSecs => 5,
            FlowOption::KeepCount => 6,
            FlowOption::UserTimeoutMs => 7,
            FlowOption::ReceiveWindowMax => 8,
            FlowOption::ReceiveShut => 9,
            FlowOption::Congestion => 10,
            FlowOption::MaxPacingRate => 11,
            FlowOption::TrafficClass => 12,
            FlowOption::HopLimit => 13,
            FlowOption::SoftErrors => 14,
            FlowOption::FinWait2Secs => 15,
            FlowOption::SharesName => 16,
            FlowOption::SynRetries => 17,
            FlowOption::UnsentLowWater => 18,
            FlowOption::AbortAtClose => 19,
            FlowOption::TellEnd => 20,
        }
    }

    pub(crate) const fn from_raw(raw: u16) -> Option<FlowOption> {
        Some(match raw {
            1 => FlowOption::NoDelay,
            2 => FlowOption::Cork,
            3 => FlowOption::KeepAlive,
            4 => FlowOption::KeepIdleSecs,
            5 => FlowOption::KeepIntervalSecs,
            6 => FlowOption::KeepCount,
            7 => FlowOption::UserTimeoutMs,
            8 => FlowOption::ReceiveWindowMax,
            9 => FlowOption::ReceiveShut,
            10 => FlowOption::Congestion,
            11 => FlowOption::MaxPacingRate,
            12 => FlowOption::TrafficClass,
            13 => FlowOption::HopLimit,
            14 => FlowOption::SoftErrors,
            15 => FlowOption::FinWait2Secs,
            16 => FlowOption::SharesName,
            17 => FlowOption::SynRetries,
            18 => FlowOption::UnsentLowWater,
            19 => FlowOption::AbortAtClose,
            20 => FlowOption::TellEnd,
            _ => return None,
        })
    }
}
