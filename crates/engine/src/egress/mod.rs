//! The packet generator: a segment or a control message becomes a frame in the port's transmit queue.
//!
//! [`builder::FrameBuilder`] owns a frame's bounds; [`segment`] and [`control`] fill it.

pub mod builder;
pub mod control;
pub mod segment;
pub mod waiting;
