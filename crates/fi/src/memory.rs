//! Memory that is registered for peers (`fi_mr_reg`).

use crate::domain::Domain;
use crate::object::{self, Object, no_bind, no_ops_open};
use crate::opened::DomainObject;
use crate::sys::{self, FidPtr, MrAttr, MrFid, MrOps, Ops, iovec};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use toe_via::endpoint::regions::Region;

pub static MR_OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

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

unsafe extern "C" fn close_mr(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more.
    let region = unsafe { MrObject::take_back(fid) };
    region.domain.regions_mut().remove(region.key);
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
    if !domain.regions_mut().add(key, region) {
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
