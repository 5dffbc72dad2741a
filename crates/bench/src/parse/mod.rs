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
    pub(crate) datagrams: Datagrams,
}
