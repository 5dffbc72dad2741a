//! An endpoint as a program has it, with the queues to which it is bound.

use super::Ep;
use crate::cq::Members;
use crate::eq::Eq;
use crate::object::Object;
use crate::sys::EpFid;
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
#[repr(C)]
pub struct EpObject {
    pub fid: EpFid,
    pub ep: Arc<Ep>,
    pub eq: OnceLock<Arc<Eq>>,
    /// Of the completion queues of its sends and its receives.
    pub members: [OnceLock<Arc<Members>>; 2],
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for EpObject {}
