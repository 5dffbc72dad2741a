//! TLS records on a connection: the interface that Linux calls kTLS (Documentation/networking/tls.rst), for programs that do the
//! handshake themselves and hand the keys to the socket.
//!
//! This room makes and opens records, and does no I/O: [`parameters`] reads what a program gives, [`keys`] seals and opens one record,
//! [`outgoing`] makes records of a source's bytes, [`incoming`] takes them apart, the
//! type of a record goes between a call and the stream by `socket/typed.rs`. A stream joins it by one field (`socket/stream/records.rs`), and [`crate::socket`] by its options ([`options`]).
//!
//! Keys are in the process that set them and nowhere else ([`mark`]; docs/decisions/0039-tls-records.md).

pub mod incoming;
pub mod keys;
pub mod mark;
pub mod options;
pub mod outgoing;
pub mod parameters;
pub mod record_type;
#[cfg(test)]
mod tests;

use incoming::Incoming;
use outgoing::Outgoing;

/// The level of its options, and their names (linux/socket.h, linux/tls.h).
pub const SOL_TLS: i32 = 282;
pub const TLS_TX: i32 = 1;
pub const TLS_RX: i32 = 2;
pub const TLS_TX_ZEROCOPY_RO: i32 = 3;
pub const TLS_RX_EXPECT_NO_PAD: i32 = 4;

/// Control messages: the type of the record that is sent, and of the one that was received.
pub const TLS_SET_RECORD_TYPE: i32 = 1;
pub const TLS_GET_RECORD_TYPE: i32 = 2;

/// What a stream has of TLS once its program has said TCP_ULP "tls": each direction is plain until it has a key.
#[derive(Debug, Default)]
pub struct Tls {
    pub outgoing: Option<Outgoing>,
    pub incoming: Option<Incoming>,
    /// TLS_TX_ZEROCOPY_RO: remembered only, as a file's bytes are never sent from its pages here.
    pub zero_copy: bool,
    /// TLS_RX_EXPECT_NO_PAD: remembered only.
    pub expects_no_padding: bool,
}
