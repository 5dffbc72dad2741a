//! A fabric and a domain as a program has them: by what pointer it names them when it opens something of them.

use crate::domain::Domain;
use crate::fabric::Fabric;
use crate::object::Object;
use crate::sys::{DomainFid, FabricFid};
use std::sync::Arc;

#[derive(Debug)]
#[repr(C)]
pub struct FabricObject {
    pub fid: FabricFid,
    pub fabric: Arc<Fabric>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for FabricObject {}

#[derive(Debug)]
#[repr(C)]
pub struct DomainObject {
    pub fid: DomainFid,
    pub domain: Arc<Domain>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for DomainObject {}
