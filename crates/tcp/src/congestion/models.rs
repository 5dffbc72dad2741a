//! Where the algorithms keep what they know of each connection's path.

use super::bbr::Bbr;
use super::cubic::Cubic;
use super::dctcp::Dctcp;
use super::hystart::HyStart;
use crate::config::{AlgorithmName, TcpConfig};
use crate::pool::{Pool, PoolSlot};
use crate::record::Algorithm;

/// What the algorithms of all connections know of their paths. Each connection can have a place with each of them: a pool is full
/// only of more connections than there can be.
#[derive(Debug)]
pub struct Models {
    pub(super) reno: Pool<HyStart, 1>,
    pub(super) cubic: Pool<Cubic, 1>,
    pub(super) dctcp: Pool<Dctcp, 1>,
    pub(super) bbr: Pool<Bbr, 1>,
}

impl Models {
    pub fn new(connections: usize) -> Models {
        Models {
            reno: Pool::of_smallest(connections),
            cubic: Pool::of_smallest(connections),
            dctcp: Pool::of_smallest(connections),
            bbr: Pool::of_smallest(connections),
        }
    }

    /// Places that connections have.
    pub fn used(&self) -> usize {
        self.reno.used() + self.cubic.used() + self.dctcp.used() + self.bbr.used()
    }
}

impl Default for Algorithm {
    fn default() -> Self {
        Algorithm::new(TcpConfig::DEFAULT.congestion)
    }
}

impl Algorithm {
    pub fn new(name: AlgorithmName) -> Algorithm {
        match name {
            AlgorithmName::Reno => Algorithm::Reno(PoolSlot::default()),
            AlgorithmName::Cubic => Algorithm::Cubic(PoolSlot::default()),
            AlgorithmName::Dctcp => Algorithm::Dctcp(PoolSlot::default()),
            AlgorithmName::Bbr => Algorithm::Bbr(PoolSlot::default()),
        }
    }

    pub const fn name(&self) -> AlgorithmName {
        match self {
            Algorithm::Reno(_) => AlgorithmName::Reno,
            Algorithm::Cubic(_) => AlgorithmName::Cubic,
            Algorithm::Dctcp(_) => AlgorithmName::Dctcp,
            Algorithm::Bbr(_) => AlgorithmName::Bbr,
        }
    }

    /// What TCP_CC_INFO tells: bytes of `union tcp_cc_info`, and the union. The others tell nothing, as in Linux.
    pub fn info(&self, models: &Models) -> Option<(u32, [u32; 5])> {
        match self {
            Algorithm::Reno(_) | Algorithm::Cubic(_) => None,
            Algorithm::Dctcp(slot) => Some((16, models.dctcp.one(slot).info())),
            Algorithm::Bbr(slot) => Some((20, models.bbr.one(slot).info())),
        }
    }

    /// Slots that it has.
    pub fn slots(&self) -> usize {
        let (Algorithm::Reno(slot) | Algorithm::Cubic(slot) | Algorithm::Dctcp(slot) | Algorithm::Bbr(slot)) =
            self;
        slot.len()
    }

    /// Forgets its state.
    pub fn clear(&mut self, models: &mut Models) {
        match self {
            Algorithm::Reno(slot) => models.reno.vacate(slot),
            Algorithm::Cubic(slot) => models.cubic.vacate(slot),
            Algorithm::Dctcp(slot) => models.dctcp.vacate(slot),
            Algorithm::Bbr(slot) => models.bbr.vacate(slot),
        }
    }
}
