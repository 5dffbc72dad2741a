//! What the runner needs of a stack that is tested. The engine in virtual time and Linux in real time are two.

use crate::datagram::DatagramStack;
use crate::packet::Segment;
use crate::script::{Call, ConnName, InfoName, StateName};
use toe_abi::errno::Errno;
use toe_abi::report::TcpReport;

/// The port at which the program listens.
pub const LISTEN_PORT: u16 = 8080;
/// The far end's port of the connection `a`.
const FAR_PORT_FIRST: u16 = 7001;

/// The far end's port of a connection: by it the runner tells connections apart.
pub const fn far_port(conn: ConnName) -> u16 {
    FAR_PORT_FIRST + conn.0 as u16
}

/// The connection that has this port at the far end.
pub fn conn_of(far_port: u16) -> Option<ConnName> {
    let at = far_port.checked_sub(FAR_PORT_FIRST)?;
    u8::try_from(at).ok().filter(|at| *at < ConnName::MAX).map(ConnName)
}

/// How exactly a stack keeps time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// Part of a time that it may be late or early, in percent.
    pub late_percent: u64,
    pub early_percent: u64,
    /// And in any case this much.
    pub late_us: u64,
    pub early_us: u64,
}

impl Tolerance {
    pub const fn earliest(self, us: u64) -> u64 {
        us.saturating_sub(us * self.early_percent / 100 + self.early_us)
    }

    pub const fn latest(self, us: u64) -> u64 {
        us.saturating_add(us / 100 * self.late_percent + self.late_us)
    }
}

/// What a call gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It would block.
    Nothing,
    EndOfFile,
    Error(Errno),
    Bytes(Vec<u8>),
    State(StateName),
    Number(i64),
}

/// What `info` asks, of what an engine says of a connection; windows in segments.
pub fn number_of(report: &TcpReport, name: InfoName) -> i64 {
    let segments = |bytes: u32| i64::from(bytes / u32::from(report.mss).max(1));
    match name {
        InfoName::Cwnd => segments(report.cwnd),
        InfoName::Ssthresh => report.ssthresh.map_or(i64::MAX, segments),
        InfoName::Srtt => i64::from(report.srtt_us),
        InfoName::Rto => i64::from(report.rto_us),
        InfoName::Mss => i64::from(report.mss),
        InfoName::Retransmits => i64::from(report.retransmits),
        InfoName::CaState => {
            let names = ["open", "disorder", "cwr", "recovery", "loss"];
            names.iter().position(|name| *name == report.ca_state).map_or(-1, |at| at as i64)
        }
    }
}

/// A stack could not be used: no verdict on what it does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StackError(pub String);

impl StackError {
    pub fn new(doing: &str, error: impl std::fmt::Display) -> StackError {
        StackError(format!("{doing}: {error}"))
    }
}

/// A stack, its link and the program above it.
pub trait Stack {
    /// Microseconds since some moment.
    fn now_us(&self) -> u64;

    fn tolerance(&self) -> Tolerance;

    /// A datagram from the far end arrives.
    fn arrives(&mut self, datagram: &[u8]) -> Result<(), StackError>;

    /// The next segment that the stack sends, and when, waiting for it until `until_us`. `None`: nothing was sent, and
    /// it is `until_us` now.
    fn sent(&mut self, until_us: u64) -> Result<Option<(u64, Segment)>, StackError>;

    /// The same stack with a UDP socket, if scripts can use one here.
    fn datagrams(&mut self) -> Option<&mut dyn DatagramStack> {
        None
    }

    /// The program does or asks something. `bytes` are those to send.
    fn call(&mut self, conn: ConnName, call: &Call, bytes: &[u8]) -> Result<Outcome, StackError>;
}
