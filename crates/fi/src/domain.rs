//! A domain: endpoints, completion queues, and the memory that peers may touch.

use crate::fabric::{Fabric, FabricObject};
use crate::object::{self, Object, no_bind, no_control, no_open, no_ops_open};
use crate::sys::{self, DomainFid, DomainOps, FidPtr, Info, MrAttr, MrFid, MrOps, Ops, iovec};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use toe_via::endpoint::regions::{Region, Regions};

/// See the module.
#[derive(Debug)]
pub struct Domain {
    pub fabric: Arc<Fabric>,
    regions: RwLock<Regions>,
}

impl Domain {
    /// While it is held no region is given back.
    pub fn regions(&self) -> RwLockReadGuard<'_, Regions> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
#[repr(C)]
pub struct DomainObject {
    fid: DomainFid,
    pub domain: Arc<Domain>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for DomainObject {}

static OPS: Ops =
    Ops { size: size_of::<Ops>(), close, bind: no_bind, control: no_control, ops_open: no_ops_open };

static DOMAIN_OPS: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open: no_open,
    cq_open: crate::cq::open,
    endpoint: crate::ep::open,
    scalable_ep: no_open,
    cntr_open: no_open,
    poll_open: no_poll,
    stx_ctx: no_open,
    srx_ctx: no_open,
    query_atomic: no_atomic,
    query_collective: no_collective,
};

static MR_OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

unsafe extern "C" fn no_poll(_: FidPtr, _: *mut c_void, _: *mut FidPtr) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_atomic(_: FidPtr, _: c_int, _: c_int, _: *mut c_void, _: u64) -> c_int {
    -libc::EOPNOTSUPP
}

unsafe extern "C" fn no_collective(_: FidPtr, _: c_int, _: *mut c_void, _: u64) -> c_int {
    -libc::EOPNOTSUPP
}

/// `fi_domain`.
///
/// # Safety
/// As libfabric has it.
pub unsafe extern "C" fn open(fabric: FidPtr, _: *mut Info, to: *mut FidPtr, context: *mut c_void) -> c_int {
    // SAFETY: needed to find the program's fabric.
    let fabric = Arc::clone(&unsafe { FabricObject::of(fabric) }.fabric);
    let fid = object::fid(sys::CLASS_DOMAIN, context, &OPS);
    let fid = DomainFid { fid, ops: &raw const DOMAIN_OPS, mr: &raw const MR_OPS };
    let domain = Arc::new(Domain { fabric, regions: RwLock::default() });
    // SAFETY: needed to answer the program, which has promised a place.
    unsafe { DomainObject { fid, domain }.hand_out(to) };
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more. What was opened of it goes on.
    drop(unsafe { DomainObject::take_back(fid) });
    0
}

/// Memory that was registered.
#[derive(Debug)]
#[repr(C)]
struct MrObject {
    fid: MrFid,
    domain: Arc<Domain>,
    key: u32,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for MrObject {}

static MR_FID_OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: close_mr,
    bind: no_bind,
    control: control_mr,
    ops_open: no_ops_open,
};

/// Not while bytes are copied.
unsafe extern "C" fn close_mr(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more.
    let region = unsafe { MrObject::take_back(fid) };
    region.domain.regions.write().unwrap_or_else(PoisonError::into_inner).remove(region.key);
    0
}

unsafe extern "C" fn control_mr(_: FidPtr, command: c_int, _: *mut c_void) -> c_int {
    if command == sys::ENABLE { 0 } else { -libc::ENOSYS }
}

/// Registers memory under the key that the program wants.
///
/// # Safety
/// `domain` is one of this provider's, `to` can be written to.
unsafe fn register(
    domain: FidPtr,
    (start, len): (*const c_void, usize),
    access: u64,
    key: u64,
    (to, context): (*mut *mut MrFid, *mut c_void),
) -> c_int {
    // SAFETY: needed to find the program's domain.
    let domain = &unsafe { DomainObject::of(domain) }.domain;
    let Ok(key) = u32::try_from(key) else { return -libc::EKEYREJECTED };
    let region = Region {
        start: start as u64,
        len: len as u64,
        may_write: access & sys::REMOTE_WRITE != 0,
        may_read: access & sys::REMOTE_READ != 0,
    };
    if !domain.regions.write().unwrap_or_else(PoisonError::into_inner).add(key, region) {
        return -sys::ENOKEY;
    }
    let fid = object::fid(sys::CLASS_MR, context, &MR_FID_OPS);
    let fid = MrFid { fid, mem_desc: std::ptr::null_mut(), key: key.into() };
    // SAFETY: needed to answer the program, which has promised a place.
    unsafe { MrObject { fid, domain: Arc::clone(domain), key }.hand_out(to.cast()) };
    0
}

unsafe extern "C" fn reg(
    domain: FidPtr,
    buf: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    to: *mut *mut MrFid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: needed to do what the program asks; it has promised what `register` needs.
    unsafe { register(domain, (buf, len), access, key, (to, context)) }
}

unsafe extern "C" fn regv(
    domain: FidPtr,
    iov: *const iovec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    to: *mut *mut MrFid,
    context: *mut c_void,
) -> c_int {
    if count != 1 {
        return -libc::EINVAL;
    }
    // SAFETY: needed as in `reg`, of the one part that there is.
    unsafe { register(domain, ((*iov).iov_base, (*iov).iov_len), access, key, (to, context)) }
}

unsafe extern "C" fn regattr(domain: FidPtr, attr: *const MrAttr, _flags: u64, to: *mut *mut MrFid) -> c_int {
    // SAFETY: needed to read what the program passes.
    let attr = unsafe { &*attr };
    if attr.iov_count != 1 || attr.iface != 0 {
        return -libc::EINVAL;
    }
    // SAFETY: needed as in `reg`, of the one part that there is.
    unsafe {
        let part = &*attr.mr_iov;
        register(domain, (part.iov_base, part.iov_len), attr.access, attr.requested_key, (to, attr.context))
    }
}
