//! A fabric: this process at an engine, as a session of its own, and the wait objects of its queues.

use crate::cq::CqObject;
use crate::eq::EqObject;
use crate::info;
use crate::object::{self, Object, errno, no_bind, no_control, no_ops_open};
use crate::sys::{self, FabricAttr, FabricFid, FabricOps, FidPtr, Ops};
use crate::wait_object::WaitObject;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use toe_via::session::{Session, own_name};

use crate::address::Address;

/// See the module.
#[derive(Debug)]
pub struct Fabric {
    pub session: Arc<Session>,
    pub api_version: u32,
    wait_objects: Mutex<Vec<Weak<WaitObject>>>,
    /// The round of the session's sleepers that was told to the wait objects.
    round: AtomicU64,
}

impl Fabric {
    pub fn wait_object(&self) -> Option<Arc<WaitObject>> {
        let wait_object = Arc::new(WaitObject::new(&self.session)?);
        let mut wait_objects = self.wait_objects.lock().unwrap_or_else(PoisonError::into_inner);
        wait_objects.retain(|wait_object| wait_object.strong_count() > 0);
        wait_objects.push(Arc::downgrade(&wait_object));
        Some(wait_object)
    }

    /// Takes an interrupt that has come. A number that changes with each.
    pub fn event_count(&self) -> u64 {
        let round = self.session.sleepers().take_interrupt(&*self.session);
        if self.round.swap(round, Ordering::AcqRel) != round {
            let wait_objects = self.wait_objects.lock().unwrap_or_else(PoisonError::into_inner);
            wait_objects.iter().filter_map(Weak::upgrade).for_each(|wait_object| wait_object.ring());
        }
        round
    }
}

#[derive(Debug)]
#[repr(C)]
pub struct FabricObject {
    fid: FabricFid,
    pub fabric: Arc<Fabric>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for FabricObject {}

static OPS: Ops =
    Ops { size: size_of::<Ops>(), close, bind: no_bind, control: no_control, ops_open: no_ops_open };

static FABRIC_OPS: FabricOps = FabricOps {
    size: size_of::<FabricOps>(),
    domain: crate::domain::open,
    passive_ep: crate::passive::open,
    eq_open: crate::eq::open,
    wait_open,
    trywait,
};

/// `fi_fabric`.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn open(attr: *mut FabricAttr, to: *mut FidPtr, context: *mut c_void) -> c_int {
    let node = match own_name() {
        Ok(name) => Address::of_node(name.as_bytes(), 0).node_and_port().0,
        Err(error) => return -errno(error),
    };
    let session = match Session::of_node(node) {
        Ok(session) => session,
        Err(error) => return -errno(error),
    };
    // SAFETY: needed to read what libfabric passes.
    let api_version = unsafe { attr.as_ref() }.map_or(info::VERSION, |attr| attr.api_version);
    let fabric = Fabric { session, api_version, wait_objects: Mutex::default(), round: AtomicU64::new(0) };
    let fid = object::fid(sys::CLASS_FABRIC, context, &OPS);
    let fid = FabricFid { fid, ops: &raw const FABRIC_OPS, api_version };
    // SAFETY: needed to answer libfabric, which has promised a place.
    unsafe { FabricObject { fid, fabric: Arc::new(fabric) }.hand_out(to) };
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more. What was opened of it goes on.
    drop(unsafe { FabricObject::take_back(fid) });
    0
}

unsafe extern "C" fn wait_open(_: FidPtr, _: *mut c_void, _: *mut FidPtr) -> c_int {
    -libc::ENOSYS
}

/// Whether the program may wait for the descriptors of these queues.
unsafe extern "C" fn trywait(_: FidPtr, fids: *mut FidPtr, count: c_int) -> c_int {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: needed to read what the program lists: `count` objects that it has opened.
        let (fid, class) = unsafe {
            let fid = fids.add(index).read();
            (fid, (*fid).fclass)
        };
        let may_wait = match class {
            // SAFETY: needed to find what the program means; its class says what it is.
            sys::CLASS_CQ => unsafe { CqObject::of(fid) }.queue.may_wait(),
            // SAFETY: as above.
            sys::CLASS_EQ => unsafe { EqObject::of(fid) }.queue.may_wait(),
            _ => return -libc::ENOSYS,
        };
        if !may_wait {
            return -libc::EAGAIN;
        }
    }
    0
}
