//! The flow processing core: connection records and the protocol that works on them.
//!
//! A [`record::Flow`] is plain data addressed by index (design principle 3); everything else here works on one.

pub mod key;
pub mod limit;
pub mod lists;
pub mod pool;
pub mod pressure;
pub mod reassembly;
pub mod receive_buffer;
pub mod record;
pub mod record_ends;
pub mod scoreboard;
pub mod send_queue;
mod stretches;
pub mod table;
pub mod tcp;
