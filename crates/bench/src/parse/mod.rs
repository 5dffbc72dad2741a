//! What the load tools say, as figures. One file for each tool; used by `clients`.

pub(crate) mod load;
pub(crate) mod memcaslap;
pub(crate) mod redis;
pub(crate) mod wrk;

use crate::sample::{Datagrams, Latency};

/// What a tool reports of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    /// Operations a second.
    pub(crate) rate: Option<f64>,
    pub(crate) latency: Option<Latency>,
    /// What a tool knows of its own processor time, of one operation.
    pub(crate) own_cpu: Option<OwnCpu>,
    pub(crate) datagrams: Datagrams,
}

/// Microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OwnCpu {
    /// The thread that asked for the work.
    pub(crate) thread: f64,
    /// All of its process's, those that have ended, too.
    pub(crate) process: f64,
}
