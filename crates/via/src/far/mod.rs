//! Messages between hosts, as they stand in a TCP connection: DDP segments (RFC 5041) in MPA's frames (RFC 5044), markers off, CRC32C on. In the order in
//! which a message goes down: [`carrier`] (out of the connection's memory, decision 0040; [`outward`], and [`inward`] what comes), [`frames`] (fragments), [`ddp`] (segments), [`mpa`] (segments in the
//! stream), [`wire`] (the stream). [`meeting`], [`door`] and [`introduction`] are how it begins, [`set`] is for those who sleep. `frames`, `ddp`, `mpa` and `introduction` are
//! plain values without I/O.

pub mod carrier;
pub mod ddp;
pub(crate) mod door;
pub mod frames;
pub mod introduction;
pub mod inward;
pub(crate) mod meeting;
pub mod mpa;
pub mod outward;
pub mod set;
pub mod wire;

/// The other side did what it must not: the connection is to be ended, and nothing more of it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The CRC of a frame is not that of what is in it (RFC 5044, 8: error code 2).
    Crc,
    /// A start-up frame is not one, or wants what is not done here (markers).
    Start,
    /// A segment's header cannot be (RFC 5041, 7.2), or does not follow the one before.
    Segment,
    /// What it brings there is no credit for, or it gives credit for what was not sent.
    Credit,
}

#[cfg(test)]
mod straight_tests;
#[cfg(test)]
mod tests;
