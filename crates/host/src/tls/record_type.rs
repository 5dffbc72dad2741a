//! Types of records, and how long one is (RFC 8446 section 5.1).

/// A program's bytes.
pub const DATA: u8 = 23;
pub const HANDSHAKE: u8 = 22;

/// Most bytes of a program's in a record.
pub const PLAIN_MAX: usize = 1 << 14;
