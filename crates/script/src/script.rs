//! A script as data: what the parser makes and the runner goes through. The language is in docs/packet-scripts.md.

use crate::datagram::DatagramAct;
use std::path::PathBuf;
use toe_wire::icmp::IcmpRepr;

/// One file: one behaviour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub path: PathBuf,
    pub header: Header,
    pub steps: Vec<Step>,
    /// What Linux does where it differs, and in the place of which statement.
    pub instead: Option<(usize, Step)>,
    /// The file's lines, for reports.
    pub lines: Vec<String>,
}

impl Script {
    /// Whether it is of UDP, which the engine in virtual time alone has here.
    pub fn has_datagrams(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Datagram(_)))
    }

    /// The script as Linux follows it: up to where it differs, and what it does there.
    pub fn of_linux(&self) -> Script {
        let mut script = self.clone();
        if let Some((at, instead)) = script.instead.take() {
            script.steps.truncate(at);
            script.steps.push(instead);
            script.header.tail_us = 0;
        }
        script
    }
}

/// What stands before the first blank line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The RFC and its section.
    pub rfc: String,
    /// The behaviour, in one sentence.
    pub what: String,
    pub linux: OnLinux,
    /// What the engine lacks; such a script is not held against it.
    pub pending: Option<String>,
    pub setup: Vec<Setting>,
    /// The far end's initial sequence number.
    pub isn: u32,
    pub mtu: u32,
    /// After the last statement nothing may be sent for this long; 0: whatever may be.
    pub tail_us: u64,
}

/// What Linux's TCP does with a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnLinux {
    /// It passes.
    Yes,
    /// It passes, and takes so long that it only runs when asked for.
    Slow,
    /// Linux does something else that is allowed, or is wrong: what it does is in the script, too.
    Differs(String),
    /// It cannot be run there.
    No(String),
}

/// How a stack is set up before the script, by a name that is no stack's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: SettingName,
    pub value: String,
}

/// What can be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingName {
    /// `on`, `passive` (only when asked) or `off`.
    Ecn,
    /// `reno`, `cubic`, …
    Congestion,
    /// `client`, `server`, `both` or `off`.
    FastOpen,
    /// `always` or `off`.
    SynCookies,
    /// `on` or `off`: whether a reset leaves TIME-WAIT as it is.
    Rfc1337,
    /// `on` or `off`.
    Sack,
    Timestamps,
    WindowScaling,
    /// Time-outs until a SYN is given up.
    SynRetries,
    SynAckRetries,
    /// Time-outs until data is given up.
    DataRetries,
    /// `on` or `off`: a window not used is let go (RFC 5681 section 4.1).
    SlowStartAfterIdle,
    /// Challenge ACKs a second (RFC 5961 section 7).
    ChallengeLimit,
    /// Seconds in FIN_WAIT_2 without a program.
    FinTimeout,
    /// Segments that Linux gives to its link at once, for it to cut; 1 without it. An engine's link says for itself what it cuts.
    Gso,
}

/// A connection of the script: `a` to `h`, each with a port of its own at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnName(pub u8);

impl ConnName {
    pub const MAX: u8 = 8;

    pub fn letter(self) -> char {
        char::from(b'a' + self.0)
    }
}

/// One statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Counted from 1.
    pub line: usize,
    pub conn: ConnName,
    pub when: When,
    pub act: Act,
}

/// When something happens, counted from the event before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once.
    Now,
    /// Then, with the tolerance of the stack.
    After(u64),
    /// Between the two, in microseconds.
    Between(u64, u64),
}

/// What a statement does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Inject(Packet),
    Expect(SegmentSpec),
    /// Segments of one length in order, nothing between them.
    ExpectTrain {
        count: u32,
        from: i64,
        len: i64,
    },
    /// The stack may send this, and need not.
    Allow(SegmentSpec),
    /// Nothing is sent for this many microseconds.
    Quiet(u64),
    Call(Call),
    /// Of UDP.
    Datagram(DatagramAct),
    Open(Open),
    /// The 4-tuple may start anew: the stack's initial sequence number is not known any more.
    NewLife,
}

/// What the far end sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    Segment(Box<SegmentSpec>),
    /// An ICMP error that quotes a segment of the stack with this sequence number.
    Icmp {
        error: IcmpRepr,
        quoted_seq: i64,
    },
}

/// A connection opened as it normally is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub active: bool,
    /// Options and window of the far end's SYN.
    pub syn: SegmentSpec,
    pub rtt_us: u64,
}

/// A number, or the numbers between two, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from: i64,
    pub to: i64,
}

impl Span {
    pub const ANY: Span = Span { from: i64::MIN, to: i64::MAX };

    pub const fn one(n: i64) -> Span {
        Span { from: n, to: n }
    }

    pub const fn contains(self, n: i64) -> bool {
        self.from <= n && n <= self.to
    }

    /// The number, when it is one.
    pub fn exact(self) -> Option<i64> {
        (self.from == self.to).then_some(self.from)
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.from, self.to) {
            (i64::MIN, i64::MAX) => f.write_str("any"),
            (from, to) if from == to => write!(f, "{from}"),
            (i64::MIN, to) => write!(f, "at most {to}"),
            (from, i64::MAX) => write!(f, "at least {from}"),
            (from, to) => write!(f, "{from} to {to}"),
        }
    }
}

/// Something that a segment may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Want<T> {
    /// The script does not say.
    #[default]
    Unsaid,
    /// It is not there.
    Absent,
    Is(T),
}

/// The acknowledgement number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckSpec {
    /// No ACK bit.
    #[default]
    None,
    /// Expected: with or without.
    Either,
    /// With ACK: when injected, of all that the stack has sent; when expected, of anything.
    Whatever,
    Of(Span),
}

/// A Fast Open option (RFC 7413).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cookie {
    /// Empty: asks for a cookie.
    Request,
    /// When expected: some cookie. When injected: the one that the stack gave.
    Given,
    Bytes(Vec<u8>),
}

/// Codepoint of the IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    None,
    Ect1,
    Ect0,
    Ce,
    /// ECT(0) or ECT(1).
    Ect,
}

impl Ecn {
    pub const fn bits(self) -> u8 {
        match self {
            Ecn::None => 0,
            Ecn::Ect1 => 1,
            Ecn::Ect0 | Ecn::Ect => 2,
            Ecn::Ce => 3,
        }
    }

    pub const fn matches(self, bits: u8) -> bool {
        match self {
            Ecn::Ect => bits == 1 || bits == 2,
            other => other.bits() == bits,
        }
    }
}

/// Timestamps (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampSpec {
    /// Injected: the far end's clock, `None` for its running one. Expected: the stack's clock, counted from its first.
    pub value: Option<Span>,
    /// Injected: the stack's clock counted from its first, `None` for the latest. Expected: the far end's clock.
    pub echo: Option<Span>,
}

/// A segment, as far as the script says something of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentSpec {
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    pub ece: bool,
    pub cwr: bool,
    pub psh: Option<bool>,
    /// The urgent pointer; the URG bit is set exactly when it is there.
    pub urgent: Option<Span>,
    pub seq: Option<Span>,
    pub ack: AckSpec,
    /// The script says that there is no ACK.
    pub no_ack: bool,
    /// Payload bytes; none when the script does not say.
    pub len: Option<Span>,
    /// The window field as it is.
    pub win: Option<Span>,
    /// The window in bytes, its scale applied.
    pub room: Option<Span>,
    pub mss: Want<Span>,
    pub wscale: Want<Span>,
    pub sackok: Want<()>,
    /// Left and right edges, in order.
    pub sack: Want<Vec<(i64, i64)>>,
    pub stamps: Want<StampSpec>,
    pub cookie: Want<Cookie>,
    /// Option bytes put before all others.
    pub raw_options: Vec<u8>,
    pub ecn: Option<Ecn>,
    pub ttl: Option<Span>,
    /// The stack's port.
    pub port: Option<Span>,
    pub dont_fragment: Option<bool>,
    /// Injected with a wrong checksum.
    pub bad_checksum: bool,
    /// Injected with bytes that are not those of the stream.
    pub altered: bool,
}

/// What a call must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    Ok,
    /// It would block.
    Nothing,
    EndOfFile,
    Error(toe_abi::errno::Errno),
}

/// What a program does, or asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Listen {
        backlog: u32,
    },
    /// Starts to connect, from a port of its own or of the stack's choice, with bytes in the SYN if the cookie is known.
    Connect {
        from: u16,
        fast: Option<u32>,
    },
    /// How the connect ended.
    Connected(Gives),
    Accept(Gives),
    Send {
        len: u32,
        more: bool,
        urgent: bool,
        /// MSG_EOR.
        end_of_record: bool,
        gives: Gives,
    },
    Read {
        len: u32,
        gives: Gives,
    },
    Shutdown {
        read: bool,
        gives: Gives,
    },
    Close,
    /// Close without lingering: RST.
    Abort,
    CloseListener,
    Set(SocketOption, u32),
    /// SIOCATMARK: whether the next byte to be read is the urgent one.
    AtMark(bool),
    /// SO_ERROR.
    ErrorIs(toe_abi::errno::Errno),
    State(StateName),
    Info(InfoName, Span),
}

/// Options that a script can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOption {
    NoDelay,
    Cork,
    KeepAlive,
    KeepIdle,
    KeepInterval,
    KeepCount,
    UserTimeoutMs,
    ReceiveBuffer,
    TimeToLive,
    ReceiveErrors,
    /// Seconds; of the listener.
    DeferAccept,
    NotSentLowWater,
}

/// What a stack can be asked of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InfoName {
    /// Segments.
    Cwnd,
    Ssthresh,
    /// Microseconds.
    Srtt,
    Rto,
    Mss,
    /// Segments sent again, ever.
    Retransmits,
    /// TCP_CA_Open (0) to TCP_CA_Loss (4).
    CaState,
}

/// States of RFC 9293 section 3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateName {
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}
