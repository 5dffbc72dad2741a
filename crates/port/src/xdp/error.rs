//! Why an interface cannot be shared by AF_XDP, beside what any driver meets.

use crate::error::OpenError;
use std::fmt;

#[derive(Debug)]
pub(super) enum XdpError {
    /// Another XDP program is attached, or another AF_XDP socket has the queue.
    InUse { interface: String },
    /// The kernel lacks AF_XDP or what the steering program needs.
    NoXdp { interface: String },
    /// Frames of the interface can be longer than AF_XDP takes.
    MtuTooLarge { interface: String, mtu: u32, max: u32 },
    /// The interface receives by more queues than can be served.
    TooManyQueues { interface: String, max: u32 },
    /// The kernel may not lock the memory of the frames.
    NoFrameMemory { interface: String },
}

impl fmt::Display for XdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            XdpError::InUse { interface } => write!(
                f,
                "another XDP program or AF_XDP socket has `{interface}`: see `ip link show {interface}`; stop its owner, \
                 or remove it with `ip link set {interface} xdp off`"
            ),
            XdpError::NoXdp { interface } => write!(
                f,
                "this kernel cannot steer frames of `{interface}` by AF_XDP: use Linux 5.9 or later built with \
                 CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or packet:{interface} with an address of its own"
            ),
            XdpError::MtuTooLarge { interface, mtu, max } => write!(
                f,
                "`{interface}` has an MTU of {mtu}, and AF_XDP takes at most {max}: run `ip link set {interface} mtu \
                 {max}` (or less), or use packet:{interface} with an address of its own"
            ),
            XdpError::TooManyQueues { interface, max } => write!(
                f,
                "`{interface}` has more than {max} receive queues: run `ethtool -L {interface} combined {max}` (or rx {max}, \
                 or less)"
            ),
            XdpError::NoFrameMemory { interface } => write!(
                f,
                "no memory for the frames of `{interface}`: raise the limit of locked memory (`ulimit -l`), or run as root \
                 or with CAP_IPC_LOCK"
            ),
        }
    }
}

impl std::error::Error for XdpError {}

impl From<XdpError> for OpenError {
    fn from(error: XdpError) -> OpenError {
        OpenError::OfDriver(Box::new(error))
    }
}
