//! What can go wrong, with the numbers that the C functions return and what `via_strerror` says.

use std::fmt;
use toe_abi::errno::Errno;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Error {
    Invalid = 1,
    NoChannel = 2,
    NotConnected = 3,
    Connected = 4,
    Closed = 5,
    TimedOut = 6,
    TooLong = 7,
    Rejected = 8,
    Broken = 9,
    NoEngine = 10,
    Refused = 11,
    NoRoom = 12,
    Unreachable = 13,
    Nobody = 14,
}

impl Error {
    pub const ALL: [Error; 14] = [
        Error::Invalid,
        Error::NoChannel,
        Error::NotConnected,
        Error::Connected,
        Error::Closed,
        Error::TimedOut,
        Error::TooLong,
        Error::Rejected,
        Error::Broken,
        Error::NoEngine,
        Error::Refused,
        Error::NoRoom,
        Error::Unreachable,
        Error::Nobody,
    ];

    /// What a C function returns.
    pub const fn code(self) -> i32 {
        -(self as i32)
    }

    pub fn from_code(code: i32) -> Option<Error> {
        Error::ALL.into_iter().find(|error| error.code() == code)
    }

    /// The cause and the remedy, with a zero at its end.
    pub const fn text(self) -> &'static str {
        match self {
            Error::Invalid => {
                "an argument cannot be: ports are 1 to 255, names have 1 to 32 bytes, sizes are not negative\0"
            }
            Error::NoChannel => {
                "no such channel: via_open it first, in this process and not in its parent, and use it no more after via_close\0"
            }
            Error::NotConnected => "the channel is not connected: via_wait or via_connect first\0",
            Error::Connected => "the channel is connected already: open another one\0",
            Error::Closed => {
                "the other side has closed the channel or has ended; all that it sent was received\0"
            }
            Error::TimedOut => {
                "the time that via_timeout set is over; if a message was half on its way, the channel is closed\0"
            }
            Error::TooLong => {
                "the message is longer than the buffer: via_size says how long it is; it can still be received\0"
            }
            Error::Rejected => "the other side does not speak EVIL at this port\0",
            Error::Broken => "the other side wrote what no library writes: the channel is closed\0",
            Error::NoEngine => {
                "no engine answers: start one (toe start) or say where it is (TOE_ENGINE); a channel ends with its engine\0"
            }
            Error::Refused => {
                "the engine refuses: it runs with --no-direct, is of another version, or this user may not attach\0"
            }
            Error::NoRoom => "the user's share of channels, memory or descriptors is used up: close some\0",
            Error::Unreachable => {
                "no way leads to that address: the engine has to have a link in its network, or a gateway (toe status shows both)\0"
            }
            Error::Nobody => {
                "nobody has waited there for half a minute: start the other program, or give the name that its node has (TOE_VIA_NODE, else its host's) and its port; via_timeout allows more time\0"
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().trim_end_matches('\0'))
    }
}

impl std::error::Error for Error {}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        match errno {
            Errno::ECONNREFUSED | Errno::ECONNRESET => Error::NoEngine,
            Errno::EDQUOT | Errno::ENOBUFS | Errno::ENOMEM | Errno::EMFILE => Error::NoRoom,
            Errno::ENOENT => Error::Closed,
            Errno::ENETUNREACH => Error::Unreachable,
            Errno::EINVAL => Error::Invalid,
            _ => Error::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_number_and_a_text_of_its_own() {
        for (error, number) in Error::ALL.into_iter().zip(1..) {
            assert_eq!(error.code(), -number);
            assert_eq!(Error::from_code(-number), Some(error));
            assert!(error.text().ends_with('\0') && error.to_string().len() > 20);
        }
        assert_eq!((Error::from_code(0), Error::from_code(-15)), (None, None));
    }
}
