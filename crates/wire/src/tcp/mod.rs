//! The TCP header (RFC 9293 section 3.1) and its options. Used by the engine's ingress and egress.

mod header;
mod options;

pub use header::{
    HEADER_LEN, HEADER_LEN_MAX, TcpFlags, TcpRepr, checksum_is_valid, store_checksum, store_pseudo_sum,
};
pub use options::{FastOpenCookie, OPTIONS_LEN_MAX, SackBlock, SackBlocks, TcpOptions, Timestamps};

/// Where the checksum stands in a TCP header.
pub const CHECKSUM_OFFSET: u16 = 16;
