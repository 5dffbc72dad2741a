//! What libfabric calls on a passive endpoint.

use super::Passive;
use crate::address::Address;
use crate::cm::{getopt, no_join, no_left, no_rx_ctx, no_setopt, no_tx_ctx, private, tell_address};
use crate::eq::{Eq, EqObject};
use crate::event::take_visitor;
use crate::info;
use crate::object::{self, Object, no_ops_open};
use crate::opened::FabricObject;
use crate::sys::{self, CmOps, EpOps, FidPtr, Info, Ops, PepFid, Ssize};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use toe_via::endpoint::meeting::{Greeting, PRIVATE_MAX};

#[derive(Debug)]
#[repr(C)]
struct PepObject {
    fid: PepFid,
    passive: Arc<Passive>,
    eq: OnceLock<Arc<Eq>>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for PepObject {}

static OPS: Ops = Ops { size: size_of::<Ops>(), close, bind, control, ops_open: no_ops_open };

static PEP_OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel: no_cancel,
    getopt,
    setopt: no_setopt,
    tx_ctx: no_tx_ctx,
    rx_ctx: no_rx_ctx,
    rx_size_left: no_left,
    tx_size_left: no_left,
};

static CM_OPS: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname,
    getname,
    getpeer: no_getpeer,
    connect: no_connect,
    listen,
    accept: no_accept,
    reject,
    shutdown: no_shutdown,
    join: no_join,
};

/// `fi_passive_ep`.
///
/// # Safety
/// As libfabric has it.
pub unsafe extern "C" fn open(
    fabric: FidPtr,
    info: *mut Info,
    to: *mut FidPtr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: needed to find the program's fabric, and to read what it passes.
    let (fabric, info) = unsafe { (Arc::clone(&FabricObject::of(fabric).fabric), &*info) };
    // SAFETY: needed as above.
    let (source, mr_mode) = unsafe {
        let mr_mode = info.domain_attr.as_ref().map_or(0, |attr| attr.mr_mode);
        (info::read_address(info.src_addr, info.src_addrlen), mr_mode)
    };
    let address = match source {
        Ok(source) => source.unwrap_or_else(Address::own_of_process),
        Err(_) => return -libc::EINVAL,
    };
    let passive = Arc::new(Passive {
        fabric,
        address: Mutex::new(address),
        mr_mode,
        doors: Mutex::default(),
        fid: AtomicUsize::new(0),
    });
    let fid = object::fid(sys::CLASS_PEP, context, &OPS);
    let fid = PepFid { fid, ops: &raw const PEP_OPS, cm: &raw const CM_OPS };
    // SAFETY: needed to answer the program, which has promised a place.
    let made = unsafe { PepObject { fid, passive: Arc::clone(&passive), eq: OnceLock::new() }.hand_out(to) };
    passive.fid.store(made.expose_provenance(), Ordering::Relaxed);
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more.
    let object = unsafe { PepObject::take_back(fid) };
    if let Some(eq) = object.eq.get() {
        eq.remove(object.passive.fid());
    }
    object.passive.doors().clear();
    0
}

unsafe extern "C" fn bind(fid: FidPtr, to: FidPtr, _flags: u64) -> c_int {
    // SAFETY: needed to find what the program means, and what it binds.
    let object = unsafe { PepObject::of(fid) };
    // SAFETY: as above.
    if unsafe { (*to).fclass } != sys::CLASS_EQ {
        return -libc::EINVAL;
    }
    // SAFETY: needed to find the queue: its class says what it is.
    let eq = &unsafe { EqObject::of(to) }.queue;
    if object.eq.set(Arc::clone(eq)).is_err() {
        return -libc::EINVAL;
    }
    eq.add_listener(&object.passive);
    0
}

unsafe extern "C" fn control(_: FidPtr, command: c_int, _: *mut c_void) -> c_int {
    // However many may wait: the engine's limit counts.
    if command == sys::BACKLOG { 0 } else { -libc::ENOSYS }
}

unsafe extern "C" fn listen(fid: FidPtr) -> c_int {
    // SAFETY: needed to find what the program means.
    let object = unsafe { PepObject::of(fid) };
    match object.eq.get() {
        None => -sys::ENOEQ,
        Some(_) => object.passive.listen().map_or_else(|errno| -errno, |()| 0),
    }
}

unsafe extern "C" fn reject(_: FidPtr, handle: FidPtr, param: *const c_void, len: usize) -> c_int {
    if len > PRIVATE_MAX {
        return -libc::EINVAL;
    }
    // SAFETY: needed to take the request that the program means, and to read what it says.
    let (visitor, private) = unsafe { (take_visitor(handle), private(param, len)) };
    let Some(visitor) = visitor else { return -libc::EINVAL };
    let (from, to) = (visitor.greeting.to, visitor.greeting.from);
    visitor.reject(&Greeting { from, to, private });
    0
}

unsafe extern "C" fn getname(fid: FidPtr, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: needed to find what the program means, and to answer it.
    unsafe { tell_address(PepObject::of(fid).passive.address(), to, len) }
}

unsafe extern "C" fn setname(fid: FidPtr, address: *mut c_void, len: usize) -> c_int {
    // SAFETY: needed to find what the program means, and to read what it passes.
    let (passive, address) = unsafe { (&PepObject::of(fid).passive, info::read_address(address, len)) };
    let Ok(Some(address)) = address else { return -libc::EINVAL };
    if !passive.doors().is_empty() {
        return -sys::EOPBADSTATE;
    }
    *passive.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    0
}

unsafe extern "C" fn no_cancel(_: FidPtr, _: *mut c_void) -> Ssize {
    -(libc::ENOSYS as Ssize)
}

unsafe extern "C" fn no_getpeer(_: FidPtr, _: *mut c_void, _: *mut usize) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_connect(_: FidPtr, _: *const c_void, _: *const c_void, _: usize) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_accept(_: FidPtr, _: *const c_void, _: usize) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_shutdown(_: FidPtr, _: u64) -> c_int {
    -libc::ENOSYS
}
