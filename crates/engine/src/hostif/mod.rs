//! The host interface's engine side: sessions and what they may name, commands in, completions out, claims.
//!
//! Called by [`crate::Engine`] with entries that the daemon copied out of a session's rings. Everything a host sent
//! is checked here for range and ownership; behind this folder it is trusted.

pub mod anchors;
pub mod captures;
pub(crate) mod carried;
pub mod channels;
pub mod closing;
pub mod id_table;
pub mod outbox;
pub mod session;
pub mod sessions;
pub mod slots;
pub mod users;
