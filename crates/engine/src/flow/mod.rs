//! The flow processing core: connection records and the protocol that works on them.
//!
//! A [`record::Flow`] is plain data addressed by index (design principle 3); everything else here works on one.

pub mod key;
pub mod limit;
pub mod pool;
pub mod reassembly;
pub mod receive_buffer;
pub mod record;
pub mod scoreboard;
pub mod send_queue;
pub mod table;
pub mod tcp;
