//! Why a port cannot be opened, with what to do.

use crate::spec::Driver;
use std::fmt;
use std::io;

/// Why a port was not opened. The text says what to do.
#[derive(Debug)]
pub enum OpenError {
    /// The kernel refuses for want of privilege.
    NotPermitted { driver: Driver, interface: String },
    /// No interface has the name.
    NoSuchInterface { interface: String },
    /// The interface is of another kind.
    NotEthernet { interface: String },
    /// What only this driver meets: a type of its own says it.
    OfDriver(Box<dyn std::error::Error + Send + Sync>),
    /// A cable was given something else than a TAP.
    NotACableEnd { driver: Driver, interface: String },
    /// Something else failed.
    System { doing: &'static str, interface: String, source: io::Error },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotPermitted { driver, interface } => {
                let (driver, needs) = (driver.name(), driver.needs());
                write!(f, "not permitted to open {driver}:{interface}: run as root or with {needs}")
            }
            OpenError::NoSuchInterface { interface } => {
                write!(f, "there is no interface `{interface}` in this network namespace: see `ip link`")
            }
            OpenError::NotEthernet { interface } => {
                write!(f, "`{interface}` is not an Ethernet interface: use a NIC, a veth, a bridge or a TAP")
            }
            OpenError::OfDriver(error) => error.fmt(f),
            OpenError::NotACableEnd { driver, interface } => write!(
                f,
                "the end of a cable is a TAP: write tap:{interface} instead of {}:{interface}",
                driver.name()
            ),
            OpenError::System { doing, interface, source } => {
                write!(f, "{doing} failed for `{interface}`: {source}")
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::System { source, .. } => Some(source),
            OpenError::OfDriver(error) => error.source(),
            _ => None,
        }
    }
}

impl OpenError {
    /// What an errno means whichever driver met it.
    pub(crate) fn from_io(
        driver: Driver,
        interface: &str,
        doing: &'static str,
        source: io::Error,
    ) -> OpenError {
        let interface = interface.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted { driver, interface },
            Some(libc::ENODEV | libc::ENXIO) => OpenError::NoSuchInterface { interface },
            _ => OpenError::System { doing, interface, source },
        }
    }
}
