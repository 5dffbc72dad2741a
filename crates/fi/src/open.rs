//! Fabrics and domains are opened, and say by what all else is opened of them.

use crate::address::Address;
use crate::cq::CqObject;
use crate::domain::Domain;
use crate::eq::EqObject;
use crate::fabric::Fabric;
use crate::memory::MR_OPS;
use crate::object::{self, Object, errno, no_bind, no_control, no_open, no_ops_open};
use crate::opened::{DomainObject, FabricObject};
use crate::sys::{self, DomainFid, DomainOps, FabricAttr, FabricFid, FabricOps, FidPtr, Info, Ops};
use crate::{cq, ep, eq, info, passive};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use toe_via::session::{Session, own_name};

static FABRIC_FID_OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: close_fabric,
    bind: no_bind,
    control: no_control,
    ops_open: no_ops_open,
};

static FABRIC_OPS: FabricOps = FabricOps {
    size: size_of::<FabricOps>(),
    domain: open_domain,
    passive_ep: passive::calls::open,
    eq_open: eq::open,
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
    let fabric = Fabric::new(session, api_version);
    let fid = object::fid(sys::CLASS_FABRIC, context, &FABRIC_FID_OPS);
    let fid = FabricFid { fid, ops: &raw const FABRIC_OPS, api_version };
    // SAFETY: needed to answer libfabric, which has promised a place.
    unsafe { FabricObject { fid, fabric: Arc::new(fabric) }.hand_out(to) };
    0
}

unsafe extern "C" fn close_fabric(fid: FidPtr) -> c_int {
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
            sys::CLASS_CQ => unsafe { CqObject::of(fid) }.may_wait(),
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

static DOMAIN_FID_OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: close_domain,
    bind: no_bind,
    control: no_control,
    ops_open: no_ops_open,
};

static DOMAIN_OPS: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open: no_open,
    cq_open: cq::open,
    endpoint: ep::calls::open,
    scalable_ep: no_open,
    cntr_open: no_open,
    poll_open: no_poll,
    stx_ctx: no_open,
    srx_ctx: no_open,
    query_atomic: no_atomic,
    query_collective: no_collective,
};

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
unsafe extern "C" fn open_domain(
    fabric: FidPtr,
    _: *mut Info,
    to: *mut FidPtr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: needed to find the program's fabric.
    let fabric = Arc::clone(&unsafe { FabricObject::of(fabric) }.fabric);
    let fid = object::fid(sys::CLASS_DOMAIN, context, &DOMAIN_FID_OPS);
    let fid = DomainFid { fid, ops: &raw const DOMAIN_OPS, mr: &raw const MR_OPS };
    let domain = Arc::new(Domain::new(fabric));
    // SAFETY: needed to answer the program, which has promised a place.
    unsafe { DomainObject { fid, domain }.hand_out(to) };
    0
}

unsafe extern "C" fn close_domain(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more. What was opened of it goes on.
    drop(unsafe { DomainObject::take_back(fid) });
    0
}
