//! Which flow runs next: those with something to send, one list per path, and those whose timer is due.
//!
//! Both structures are derived: they can be rebuilt from the flow records. Called by the engine after every stage
//! that may have given a flow work.

pub mod fair;
pub mod reclaimables;
pub mod timer_wheel;
