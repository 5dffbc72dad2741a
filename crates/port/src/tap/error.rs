//! Why a TAP cannot be opened, beside what any driver meets.

use crate::error::OpenError;
use std::fmt;

#[derive(Debug)]
pub(super) enum TapError {
    /// The name is that of an interface that is not a plain TAP.
    NotATap { interface: String },
    /// Another process has it open.
    InUse { interface: String },
    /// The kernel has no TUN/TAP driver.
    NoTunDriver,
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TapError::NotATap { interface } => write!(
                f,
                "`{interface}` exists and is not a single-queue TAP: use another name, or packet:{interface}"
            ),
            TapError::InUse { interface } => {
                write!(f, "another process has the TAP `{interface}` open: stop it or use another name")
            }
            TapError::NoTunDriver => write!(
                f,
                "the kernel has no TUN/TAP driver: run `modprobe tun` (in a container: give it /dev/net/tun)"
            ),
        }
    }
}

impl std::error::Error for TapError {}

impl From<TapError> for OpenError {
    fn from(error: TapError) -> OpenError {
        OpenError::OfDriver(Box::new(error))
    }
}
