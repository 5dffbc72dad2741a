//! What lies between a stream's bytes and its program: nothing, or TLS records. Linux calls it the upper layer protocol, as in TCP_ULP.

use crate::tls::Tls;
use crate::tls::incoming::{EKEYEXPIRED, Incoming};
use crate::tls::keys::EBADMSG;
use toe_abi::errno::Errno;

/// A stream's.
#[derive(Debug, Default)]
pub struct Ulp {
    /// TLS records instead of the bytes themselves, in each direction that has a key.
    pub tls: Option<Box<Tls>>,
}

impl Ulp {
    fn incoming(&self) -> Option<&Incoming> {
        self.tls.as_ref()?.incoming.as_ref()
    }

    pub fn opens_records(&self) -> bool {
        self.incoming().is_some()
    }

    pub fn makes_records(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.outgoing.is_some())
    }

    /// Whether `unread` received bytes make the stream readable, `least` of them where there are no records.
    pub fn is_readable(&self, unread: usize, least: usize) -> bool {
        self.incoming().map_or(unread >= least, |incoming| incoming.is_ready(unread))
    }

    /// Whether a read of `room` bytes is certain to be filled by what is here.
    pub fn fills(&self, unread: usize, room: usize) -> bool {
        self.incoming().map_or(unread >= room, |incoming| incoming.opened() >= room.max(1))
    }

    /// No more bytes than these would be read now. Of records they are more than can be known.
    pub fn most_readable(&self, unread: usize) -> usize {
        if self.opens_records() { usize::MAX } else { unread }
    }

    /// What stands in the way of the next record is told as often as it is asked for: it need not be kept for the next call.
    pub fn tells_again(&self, errno: Errno) -> bool {
        self.opens_records()
            && [Errno::EIO, EBADMSG, Errno::EMSGSIZE, Errno::EINVAL, EKEYEXPIRED].contains(&errno)
    }
}
