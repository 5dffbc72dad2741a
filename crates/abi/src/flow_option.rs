//! Options of a flow, as a host sets them by [`Command::SetOption`](crate::entry::Command::SetOption). What they do in TCP is in toe-tcp's `options.rs`.

macro_rules! flow_options {
    ($($(#[$doc:meta])* $name:ident = $raw:literal),+ $(,)?) => {
        /// Which option; its value is beside it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FlowOption { $($(#[$doc])* $name = $raw),+ }

        impl FlowOption {
            pub(crate) const fn to_raw(self) -> u16 {
                self as u16
            }

            pub(crate) const fn from_raw(raw: u16) -> Option<FlowOption> {
                Some(match raw {
                    $($raw => FlowOption::$name,)+
                    _ => return None,
                })
            }
        }
    };
}

// The numbers are the interface's: one more is a new version of it.
flow_options! {
    /// Non-zero: no Nagle delay (TCP_NODELAY).
    NoDelay = 1,
    /// Non-zero: hold back partial segments (TCP_CORK), at most 200 ms.
    Cork = 2,
    /// Non-zero: keepalive on (SO_KEEPALIVE).
    KeepAlive = 3,
    /// Seconds of silence before the first keepalive probe (TCP_KEEPIDLE).
    KeepIdleSecs = 4,
    /// Seconds between keepalive probes (TCP_KEEPINTVL).
    KeepIntervalSecs = 5,
    /// Unanswered probes until the connection is dropped (TCP_KEEPCNT).
    KeepCount = 6,
    /// Milliseconds that data may stay unacknowledged; 0 is the system's default (TCP_USER_TIMEOUT, RFC 5482).
    UserTimeoutMs = 7,
    /// Largest receive window in bytes (SO_RCVBUF).
    ReceiveWindowMax = 8,
    /// Non-zero: the program takes no more, either (SHUT_RD). Once it sends no more, too, bytes that arrive are answered
    /// with RST (RFC 2525 section 2.17).
    ReceiveShut = 9,
    /// The algorithm of congestion control by its number in [`crate::congestion`] (TCP_CONGESTION); another number changes
    /// nothing.
    Congestion = 10,
    /// Bytes a second that may go out at most; 0: no limit (SO_MAX_PACING_RATE).
    MaxPacingRate = 11,
    /// The Diffserv field in its place in a byte, whose ECN bits are not the program's (IP_TOS, IPV6_TCLASS).
    TrafficClass = 12,
    /// TTL or hop limit, 1 to 255; another number changes nothing (IP_TTL, IPV6_UNICAST_HOPS).
    HopLimit = 13,
    /// 0: soft errors are only noted in the flow's information. Not 0: those that ICMP tells come as
    /// [`Completion::SoftError`] instead; 2: so do retransmissions beyond R1 (IP_RECVERR, IPV6_RECVERR).
    SoftErrors = 14,
    /// Seconds that FIN_WAIT_2 lasts once the program has let go (TCP_LINGER2); all ones: none. Other than the 60 s that it has at
    /// first, their end, when more than that or none, is told to the peer by RST.
    FinWait2Secs = 15,
    /// [`crate::command::SHARES_REUSE_ADDR`] and [`crate::command::SHARES_REUSE_PORT`], or 0: what it lets others have of its
    /// name (SO_REUSEADDR, SO_REUSEPORT). Connections that come in have at first what their listener's twin has.
    SharesName = 16,
    /// How often a SYN is sent again once the waits double, 1 to 127; 0: the default (TCP_SYNCNT).
    SynRetries = 17,
    /// Fewer bytes than half of this that have not gone out yet are news ([`Completion::WentOut`]); 0: nothing is (TCP_NOTSENT_LOWAT).
    UnsentLowWater = 18,
    /// Non-zero: the last close of the anchor, however it comes, ends the connection with RST (SO_LINGER with time 0).
    AbortAtClose = 19,
    /// Non-zero: once the end of what is sent is acknowledged, [`Completion::Sent`] says so, if need be of no bytes.
    TellEnd = 20,
}
