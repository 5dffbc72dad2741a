//! The flow processing core: connection records and the protocol that works on them.
//!
//! A [`record::Flow`] is plain data addressed by index (design principle 3); everything else here works on one.

pub mod carrier;
pub mod isn;
pub mod key;
pub mod lists;
pub mod record;
pub mod tenancy;
