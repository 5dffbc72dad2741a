//! What libfabric calls on an endpoint, but for what it posts ([`crate::transfer`]).

use super::object::EpObject;
use super::{Bound, Ep, lock};
use crate::address::Address;
use crate::cm::{getopt, no_join, no_left, no_rx_ctx, no_setopt, no_tx_ctx, private, tell_address};
use crate::cq::CqObject;
use crate::eq::EqObject;
use crate::event::take_visitor;
use crate::info;
use crate::object::{self, Object, no_ops_open};
use crate::opened::DomainObject;
use crate::sys::{self, CmOps, EpFid, EpOps, FidPtr, Info, Ops, Ssize};
use crate::transfer::{MSG_OPS, RMA_OPS};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use toe_via::endpoint::Endpoint;
use toe_via::endpoint::meeting::PRIVATE_MAX;

static OPS: Ops = Ops { size: size_of::<Ops>(), close, bind, control, ops_open: no_ops_open };

static EP_OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
    getopt,
    setopt: no_setopt,
    tx_ctx: no_tx_ctx,
    rx_ctx: no_rx_ctx,
    rx_size_left: no_left,
    tx_size_left: no_left,
};

static CM_OPS: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname: no_setname,
    getname,
    getpeer,
    connect,
    listen: no_listen,
    accept,
    reject: no_reject,
    shutdown,
    join: no_join,
};

/// `fi_endpoint`.
///
/// # Safety
/// As libfabric has it.
pub unsafe extern "C" fn open(
    domain: FidPtr,
    info: *mut Info,
    to: *mut FidPtr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: needed to find the program's domain, and to read what it passes.
    let (domain, info) = unsafe { (Arc::clone(&DomainObject::of(domain).domain), &*info) };
    // SAFETY: needed as above.
    let (source, target, marked) = unsafe {
        let sends = info.tx_attr.as_ref().map_or(0, |attr| attr.op_flags);
        let receives = info.rx_attr.as_ref().map_or(0, |attr| attr.op_flags);
        let marked = [sends, receives].map(|flags| flags & sys::COMPLETION != 0);
        let source = info::read_address(info.src_addr, info.src_addrlen);
        (source, info::read_address(info.dest_addr, info.dest_addrlen), marked)
    };
    let (Ok(source), Ok(target)) = (source, target) else { return -libc::EINVAL };
    let bound = |is_marked| Bound { is_marked, ..Bound::default() };
    let ep = Arc::new(Ep {
        endpoint: Endpoint::default(),
        domain,
        sends: bound(marked[0]),
        receives: bound(marked[1]),
        approach: Mutex::default(),
        // SAFETY: needed to take the request that the program means.
        visitor: Mutex::new(unsafe { take_visitor(info.handle) }),
        source: source.unwrap_or_else(Address::own_of_process),
        target: Mutex::new(target),
        fid: AtomicUsize::new(0),
        context: context.expose_provenance(),
    });
    let fid = EpFid {
        fid: object::fid(sys::CLASS_EP, context, &OPS),
        ops: &raw const EP_OPS,
        cm: &raw const CM_OPS,
        msg: &raw const MSG_OPS,
        rma: &raw const RMA_OPS,
        tagged: std::ptr::null(),
        atomic: std::ptr::null(),
        collective: std::ptr::null(),
    };
    // SAFETY: needed to answer the program, which has promised a place.
    let made = unsafe {
        let object = EpObject { fid, ep: Arc::clone(&ep), eq: OnceLock::new(), members: Default::default() };
        object.hand_out(to)
    };
    ep.fid.store(made.expose_provenance(), Ordering::Relaxed);
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more.
    let object = unsafe { EpObject::take_back(fid) };
    let ep = &object.ep;
    if let Some(eq) = object.eq.get() {
        eq.remove(ep.fid());
    }
    for members in object.members.iter().filter_map(OnceLock::get) {
        members.remove(ep);
    }
    ep.leave();
    0
}

unsafe extern "C" fn bind(fid: FidPtr, to: FidPtr, flags: u64) -> c_int {
    // SAFETY: needed to find what the program means, and to see what it binds.
    let (object, class) = unsafe { (EpObject::of(fid), (*to).fclass) };
    let ep = &object.ep;
    if class == sys::CLASS_EQ {
        // SAFETY: needed to find the queue: its class says what it is.
        let eq = &unsafe { EqObject::of(to) }.queue;
        if object.eq.set(Arc::clone(eq)).is_err() {
            return -libc::EINVAL;
        }
        eq.add(ep);
        return 0;
    }
    if class != sys::CLASS_CQ || flags & (sys::TRANSMIT | sys::RECV) == 0 {
        return -libc::EINVAL;
    }
    // SAFETY: needed as above.
    let queue = unsafe { CqObject::of(to) };
    let [sends, receives] = &object.members;
    let sides = [(&ep.sends, sends, sys::TRANSMIT), (&ep.receives, receives, sys::RECV)];
    for (bound, members, flag) in sides {
        if flags & flag != 0 {
            if bound.queue.set(Arc::clone(&queue.completions)).is_err() {
                return -libc::EINVAL;
            }
            let _ = members.set(Arc::clone(&queue.members));
            bound.is_selective.store(flags & sys::SELECTIVE_COMPLETION != 0, Ordering::Relaxed);
        }
    }
    queue.members.add(ep);
    0
}

unsafe extern "C" fn control(fid: FidPtr, command: c_int, _: *mut c_void) -> c_int {
    if command != sys::ENABLE {
        return -libc::ENOSYS;
    }
    // SAFETY: needed to find what the program means.
    let object = unsafe { EpObject::of(fid) };
    let ep = &object.ep;
    match () {
        () if object.eq.get().is_none() => -sys::ENOEQ,
        () if ep.sends.queue.get().is_none() || ep.receives.queue.get().is_none() => -sys::ENOCQ,
        () => 0,
    }
}

unsafe extern "C" fn cancel(fid: FidPtr, context: *mut c_void) -> Ssize {
    // SAFETY: needed to find what the program means.
    let ep = &unsafe { EpObject::of(fid) }.ep;
    let is_there = ep.endpoint.cancel(context.expose_provenance(), |completion| ep.tell(completion));
    if is_there { 0 } else { -(libc::ENOENT as Ssize) }
}

unsafe extern "C" fn getname(fid: FidPtr, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: needed to find what the program means, and to answer it.
    unsafe { tell_address(EpObject::of(fid).ep.source, to, len) }
}

unsafe extern "C" fn getpeer(fid: FidPtr, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: needed to find what the program means.
    let target = *lock(&unsafe { EpObject::of(fid) }.ep.target);
    match target {
        None => -libc::ENOTCONN,
        // SAFETY: needed to answer the program.
        Some(address) => unsafe { tell_address(address, to, len) },
    }
}

unsafe extern "C" fn connect(fid: FidPtr, address: *const c_void, param: *const c_void, len: usize) -> c_int {
    if len > PRIVATE_MAX {
        return -libc::EINVAL;
    }
    // SAFETY: needed to find what the program means, and to read what it passes: a socket address of this kind.
    let (ep, given, private) = unsafe {
        let given = info::read_address(address, crate::address::SOCKADDR_LEN);
        (&EpObject::of(fid).ep, given, private(param, len))
    };
    let Ok(given) = given else { return -libc::EINVAL };
    let target = given.or(*lock(&ep.target));
    let Some(target) = target else { return -libc::EDESTADDRREQ };
    ep.connect(target, private).map_or_else(|errno| -errno, |()| 0)
}

unsafe extern "C" fn accept(fid: FidPtr, param: *const c_void, len: usize) -> c_int {
    if len > PRIVATE_MAX {
        return -libc::EINVAL;
    }
    // SAFETY: needed to find what the program means, and to read what it passes.
    let (object, private) = unsafe { (EpObject::of(fid), private(param, len)) };
    let Some(visitor) = lock(&object.ep.visitor).take() else { return -sys::EOPBADSTATE };
    let Some(eq) = object.eq.get() else { return -sys::ENOEQ };
    eq.push(object.ep.accept(visitor, private));
    0
}

unsafe extern "C" fn shutdown(fid: FidPtr, _flags: u64) -> c_int {
    // SAFETY: needed to find what the program means.
    unsafe { EpObject::of(fid) }.ep.leave();
    0
}

unsafe extern "C" fn no_setname(_: FidPtr, _: *mut c_void, _: usize) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_listen(_: FidPtr) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_reject(_: FidPtr, _: FidPtr, _: *const c_void, _: usize) -> c_int {
    -libc::ENOSYS
}
