//! Passive endpoints: who listens, and the connections that are asked for.

use crate::address::{Address, SOCKADDR_LEN};
use crate::eq::{Eq, EqObject, Event};
use crate::fabric::{Fabric, FabricObject};
use crate::info;
use crate::object::{self, Object, errno, no_control, no_ops_open};
use crate::sys::{self, CmOps, EpOps, Fid, FidPtr, Info, Ops, PepFid, RxAttr, Ssize, TxAttr};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use toe_via::endpoint::meeting::{Door, Greeting, PRIVATE_MAX, Visitor};

/// See the module.
#[derive(Debug)]
pub struct Passive {
    fabric: Arc<Fabric>,
    address: Mutex<Address>,
    mr_mode: c_int,
    doors: Mutex<Vec<Door>>,
    eq: OnceLock<Arc<Eq>>,
    fid: AtomicUsize,
}

/// A connection that was asked for: what `fi_accept` and `fi_reject` know it by.
#[derive(Debug)]
#[repr(C)]
struct Handle {
    fid: Fid,
    visitor: Visitor,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for Handle {}

static HANDLE_OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: close_handle,
    bind: object::no_bind,
    control: no_control,
    ops_open: no_ops_open,
};

unsafe extern "C" fn close_handle(_: FidPtr) -> c_int {
    -libc::ENOSYS
}

/// The request, until it is read.
#[derive(Debug)]
pub struct Request {
    /// An answer of `info::make`'s with the handle in it: an address, as it is the program's from the moment that it is read.
    info: usize,
    pub private: Vec<u8>,
}

impl Request {
    fn new(passive: &Passive, source: Address, visitor: Visitor) -> Option<Request> {
        let from = Address::from_sockaddr(&visitor.greeting.from)?;
        let private = visitor.greeting.private.clone();
        let info = info::make(passive.fabric.api_version, passive.mr_mode, Some(source), Some(from))?;
        let fid = object::fid(sys::CLASS_CONNREQ, null_mut(), &HANDLE_OPS);
        let mut handle = null_mut();
        // SAFETY: needed to put the handle where the program finds it; both were made just now.
        unsafe {
            Handle { fid, visitor }.hand_out(&raw mut handle);
            (*info).handle = handle;
        }
        Some(Request { info: info.expose_provenance(), private })
    }

    pub fn info(&self) -> *mut Info {
        std::ptr::with_exposed_provenance_mut(self.info)
    }

    /// The program has it now.
    pub fn hand_over(self) {
        std::mem::forget(self);
    }
}

impl Drop for Request {
    /// Nobody has read it.
    fn drop(&mut self) {
        // SAFETY: needed to give back what was made for it and never handed over.
        unsafe {
            drop(Handle::take_back((*self.info()).handle));
            info::free(self.info());
        }
    }
}

/// The visitor of a handle, which is no more then. `None`: it is none of this provider's.
///
/// # Safety
/// A handle that the program has from a request and has not used, or another live fid, or null.
pub unsafe fn take_visitor(handle: FidPtr) -> Option<Visitor> {
    // SAFETY: needed to see what it is.
    if handle.is_null() || unsafe { (*handle).fclass } != sys::CLASS_CONNREQ {
        return None;
    }
    // SAFETY: needed to take it: its class says that it was made here.
    Some(unsafe { Handle::take_back(handle) }.visitor)
}

impl Passive {
    pub fn fid(&self) -> usize {
        self.fid.load(Ordering::Relaxed)
    }

    fn address(&self) -> Address {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doors(&self) -> std::sync::MutexGuard<'_, Vec<Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who has come.
    pub fn look(&self, may_have_events: bool, events: &mut VecDeque<Event>) {
        for door in self.doors().iter_mut() {
            for visitor in door.look(may_have_events) {
                if let Some(request) = Request::new(self, self.address(), visitor) {
                    events.push_back(Event::Request { passive: self.fid(), request });
                }
            }
        }
    }

    pub fn arm(&self) {
        self.doors().iter().for_each(Door::arm);
    }

    fn listen(&self) -> Result<(), c_int> {
        let wanted = self.address();
        let address = wanted.with_port();
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
        // A port that was asked for is the node's: others know it by that alone.
        let also = (wanted.port != 0 && wanted.at_node() != wanted).then(|| wanted.at_node());
        // Locked from before: what comes at once is looked for after they are there.
        let mut doors = self.doors();
        for address in [Some(address), also].into_iter().flatten() {
            doors.push(Door::open(&self.fabric.session, address.node_and_port().1).map_err(errno)?);
        }
        Ok(())
    }
}

#[derive(Debug)]
#[repr(C)]
struct PepObject {
    fid: PepFid,
    passive: Arc<Passive>,
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
        eq: OnceLock::new(),
        fid: AtomicUsize::new(0),
    });
    let fid = object::fid(sys::CLASS_PEP, context, &OPS);
    let fid = PepFid { fid, ops: &raw const PEP_OPS, cm: &raw const CM_OPS };
    // SAFETY: needed to answer the program, which has promised a place.
    let made = unsafe { PepObject { fid, passive: Arc::clone(&passive) }.hand_out(to) };
    passive.fid.store(made.expose_provenance(), Ordering::Relaxed);
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more.
    let object = unsafe { PepObject::take_back(fid) };
    if let Some(eq) = object.passive.eq.get() {
        eq.remove(object.passive.fid());
    }
    object.passive.doors().clear();
    0
}

unsafe extern "C" fn bind(fid: FidPtr, to: FidPtr, _flags: u64) -> c_int {
    // SAFETY: needed to find what the program means, and what it binds.
    let passive = &unsafe { PepObject::of(fid) }.passive;
    // SAFETY: as above.
    if unsafe { (*to).fclass } != sys::CLASS_EQ {
        return -libc::EINVAL;
    }
    // SAFETY: needed to find the queue: its class says what it is.
    let eq = &unsafe { EqObject::of(to) }.queue;
    if passive.eq.set(Arc::clone(eq)).is_err() {
        return -libc::EINVAL;
    }
    eq.add_listener(passive);
    0
}

unsafe extern "C" fn control(_: FidPtr, command: c_int, _: *mut c_void) -> c_int {
    // However many may wait: the engine's limit counts.
    if command == sys::BACKLOG { 0 } else { -libc::ENOSYS }
}

unsafe extern "C" fn listen(fid: FidPtr) -> c_int {
    // SAFETY: needed to find what the program means.
    let passive = &unsafe { PepObject::of(fid) }.passive;
    match passive.eq.get() {
        None => -sys::ENOEQ,
        Some(_) => passive.listen().map_or_else(|errno| -errno, |()| 0),
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

/// What a program says with a connection.
///
/// # Safety
/// `len` bytes, or null.
pub unsafe fn private(param: *const c_void, len: usize) -> Vec<u8> {
    if param.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: needed to read what the program has promised.
    unsafe { std::slice::from_raw_parts(param.cast::<u8>(), len) }.to_vec()
}

/// Writes an address where a program wants it. FI_ETOOSMALL: its beginning; the length is what it would be.
///
/// # Safety
/// `len` says how much room `to` has.
pub unsafe fn tell_address(address: Address, to: *mut c_void, len: *mut usize) -> c_int {
    let sockaddr = address.to_sockaddr();
    // SAFETY: needed to answer the program, which has promised so much room.
    unsafe {
        let room = len.read();
        len.write(SOCKADDR_LEN);
        if !to.is_null() {
            to.cast::<u8>().copy_from_nonoverlapping(sockaddr.as_ptr(), room.min(SOCKADDR_LEN));
        }
        if room < SOCKADDR_LEN { -sys::ETOOSMALL } else { 0 }
    }
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

/// How much a program may say with a connection: the one option that there is.
///
/// # Safety
/// As `fi_getopt`.
pub unsafe extern "C" fn getopt(
    _: FidPtr,
    level: c_int,
    option: c_int,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    if level != sys::OPT_ENDPOINT || option != sys::OPT_CM_DATA_SIZE {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: needed to answer the program, which has promised so much room.
    unsafe {
        if len.read() < size_of::<usize>() {
            return -sys::ETOOSMALL;
        }
        to.cast::<usize>().write(PRIVATE_MAX);
        len.write(size_of::<usize>());
    }
    0
}

pub unsafe extern "C" fn no_setopt(_: FidPtr, _: c_int, _: c_int, _: *const c_void, _: usize) -> c_int {
    -libc::ENOPROTOOPT
}

pub unsafe extern "C" fn no_tx_ctx(
    _: FidPtr,
    _: c_int,
    _: *mut TxAttr,
    _: *mut FidPtr,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_rx_ctx(
    _: FidPtr,
    _: c_int,
    _: *mut RxAttr,
    _: *mut FidPtr,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_left(_: FidPtr) -> Ssize {
    -(libc::ENOSYS as Ssize)
}

pub unsafe extern "C" fn no_join(
    _: FidPtr,
    _: *const c_void,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
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
