//! Packet scripts: what TCP and UDP must do on the wire, one behaviour a file, in a small language (docs/packet-scripts.md).
//!
//! A script is parsed ([`parse`]), then gone through ([`run`]) with a [`stack::Stack`]: the sans-IO engine in virtual
//! time ([`engine`]), the whole of OpenTOE over a TAP ([`whole`]), or Linux's TCP in real time ([`linux`]). The same file runs with both, so that each script is itself
//! checked by an independent stack. Used by the tests of this crate and by the program `toe-script`.
#![forbid(unsafe_code)]

pub mod datagram;
pub mod engine;
pub mod far_link;
pub mod files;
pub mod linux;
pub mod namespace;
pub mod packet;
pub mod parse;
pub mod pattern;
pub mod run;
pub mod script;
pub mod stack;
pub mod verdict;
pub mod whole;
