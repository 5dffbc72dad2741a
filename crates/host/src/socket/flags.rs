//! How a call sends or receives, and what it shuts.

/// MSG_ flags of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvFlags {
    /// MSG_PEEK.
    pub peek: bool,
    /// MSG_WAITALL.
    pub wait_all: bool,
    /// MSG_DONTWAIT.
    pub dont_wait: bool,
    /// MSG_TRUNC: the bytes are thrown away; the buffers only say how many.
    pub discard: bool,
}

/// MSG_ flags of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// MSG_DONTWAIT.
    pub dont_wait: bool,
    /// MSG_MORE.
    pub more: bool,
    /// MSG_OOB: the last byte is urgent.
    pub urgent: bool,
    /// MSG_EOR: the last byte ends a record, which no later byte joins in a segment.
    pub end_of_record: bool,
}

/// Which direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    Read,
    Write,
    Both,
}

impl Shutdown {
    /// One after the other.
    pub fn and(self, other: Shutdown) -> Shutdown {
        if self == other { self } else { Shutdown::Both }
    }
}

/// Whether the program has bytes for the SYN (TCP Fast Open, RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastOpen {
    #[default]
    No,
    /// MSG_FASTOPEN: they come with this call.
    Message,
    /// TCP_FASTOPEN_CONNECT: with the first one that sends.
    Option,
}
