//! A domain: endpoints, completion queues, and the memory that peers may touch.

use crate::fabric::Fabric;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use toe_via::endpoint::regions::Regions;

/// See the module.
#[derive(Debug)]
pub struct Domain {
    pub fabric: Arc<Fabric>,
    regions: RwLock<Regions>,
}

impl Domain {
    pub fn new(fabric: Arc<Fabric>) -> Domain {
        Domain { fabric, regions: RwLock::default() }
    }

    /// While it is held no region is given back.
    pub fn regions(&self) -> RwLockReadGuard<'_, Regions> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not while bytes are copied.
    pub fn regions_mut(&self) -> RwLockWriteGuard<'_, Regions> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner)
    }
}
