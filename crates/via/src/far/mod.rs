//! Messages between hosts, as they stand in a TCP connection: DDP segments (RFC 5041) in MPA's frames (RFC 5044), markers off, CRC32C on. In the order in
//! which a message goes down: [`ddp`] (messages and the peer's memory, in segments), [`mpa`] (segments, in the stream). Plain values, no I/O.
//!
//! Nobody calls it yet: what joins it to the channels is not built (decision 0036).

pub mod ddp;
pub mod mpa;

/// The other side did what it must not: the connection is to be ended, and nothing more of it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The CRC of a frame is not that of what is in it (RFC 5044, 8: error code 2).
    Crc,
    /// A start-up frame is not one, or wants what is not done here (markers).
    Start,
    /// A segment's header cannot be (RFC 5041, 7.2), or does not follow the one before.
    Segment,
}

#[cfg(test)]
mod tests;
