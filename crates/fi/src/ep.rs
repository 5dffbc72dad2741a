//! Endpoints: how they are bound, connected and closed. What they carry is [`crate::transfer`]'s.

use crate::address::Address;
use crate::cq::{Cq, CqObject};
use crate::domain::{Domain, DomainObject};
use crate::eq::{Eq, EqObject, Event};
use crate::info;
use crate::object::{self, Object, errno, no_ops_open};
use crate::passive::{
    getopt, no_join, no_left, no_rx_ctx, no_setopt, no_tx_ctx, private, take_visitor, tell_address,
};
use crate::sys::{self, CmOps, EpFid, EpOps, FidPtr, Info, Ops, Ssize};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use toe_via::endpoint::Endpoint;
use toe_via::endpoint::inside::Phase;
use toe_via::endpoint::meeting::{Approach, Greeting, Met, PRIVATE_MAX, Visitor};
use toe_via::endpoint::post::{Completion, What};

/// A queue to which an endpoint's completions go.
#[derive(Debug, Default)]
pub struct Bound {
    queue: OnceLock<Arc<Cq>>,
    /// Only what is marked is told.
    is_selective: AtomicBool,
    /// What is posted by calls without flags is marked.
    pub is_marked: bool,
}

impl Bound {
    pub fn is_selective(&self) -> bool {
        self.is_selective.load(Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Ep {
    pub endpoint: Endpoint,
    pub domain: Arc<Domain>,
    pub sends: Bound,
    pub receives: Bound,
    eq: OnceLock<Arc<Eq>>,
    approach: Mutex<Option<Approach>>,
    visitor: Mutex<Option<Visitor>>,
    source: Address,
    /// Whom it is to connect to, or is connected to.
    target: Mutex<Option<Address>>,
    fid: AtomicUsize,
    context: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ep {
    pub fn fid(&self) -> usize {
        self.fid.load(Ordering::Relaxed)
    }

    /// Tells the queue that it concerns.
    #[inline]
    pub fn tell(&self, completion: Completion) {
        let bound = match completion.what {
            What::Sent | What::Written | What::Read => &self.sends,
            What::Received | What::WasWritten => &self.receives,
        };
        if let Some(queue) = bound.queue.get() {
            queue.push(completion);
        }
    }

    #[inline]
    pub fn progress(&self) {
        let regions = self.domain.regions();
        self.endpoint.progress(&regions, |completion| self.tell(completion));
    }

    /// What has become of its connection.
    pub fn look(&self, may_have_events: bool) -> Option<Event> {
        let session = &self.domain.fabric.session;
        let mut approach = lock(&self.approach);
        let Some(on_its_way) = approach.as_mut() else {
            return self.endpoint.take_end().then(|| Event::Shutdown { ep: self.fid() });
        };
        let met = on_its_way.look(session, &self.endpoint, may_have_events)?;
        *approach = None;
        drop(approach);
        let failed = |errno, private| {
            self.endpoint.close(session, |completion| self.tell(completion));
            Event::Failed { ep: self.fid(), context: self.context, errno, private }
        };
        Some(match met {
            Met::Connected(Greeting { private, .. }) => Event::Connected { ep: self.fid(), private },
            Met::Rejected(said) => {
                failed(libc::ECONNREFUSED, said.map_or_else(Vec::new, |greeting| greeting.private))
            }
            Met::Failed(error) => failed(errno(error), Vec::new()),
        })
    }

    fn connect(&self, target: Address, private: Vec<u8>) -> Result<(), c_int> {
        // Held until it is there: what comes at once is looked for after that.
        let mut approach = lock(&self.approach);
        if approach.is_some() || self.endpoint.phase() != Phase::Idle {
            return Err(sys::EOPBADSTATE);
        }
        *lock(&self.target) = Some(target);
        let greeting = Greeting { from: self.source.to_greeting(), to: target.to_greeting(), private };
        let session = &self.domain.fabric.session;
        *approach =
            Some(Approach::begin(session, &self.endpoint, target.node_and_port(), greeting).map_err(errno)?);
        Ok(())
    }

    fn accept(&self, private: Vec<u8>) -> Result<(), c_int> {
        let visitor = lock(&self.visitor).take().ok_or(sys::EOPBADSTATE)?;
        let eq = self.eq.get().ok_or(sys::ENOEQ)?;
        let greeting = Greeting { from: visitor.greeting.to, to: visitor.greeting.from, private };
        eq.push(if visitor.accept(&self.endpoint, &greeting) {
            Event::Connected { ep: self.fid(), private: Vec::new() }
        } else {
            let errno = libc::ECONNABORTED;
            Event::Failed { ep: self.fid(), context: self.context, errno, private: Vec::new() }
        });
        Ok(())
    }

    /// Leaves the connection; what is posted ends.
    fn leave(&self) {
        let session = &self.domain.fabric.session;
        if let Some(approach) = lock(&self.approach).take() {
            approach.abandon(session);
        }
        drop(lock(&self.visitor).take());
        self.endpoint.close(session, |completion| self.tell(completion));
    }
}

#[derive(Debug)]
#[repr(C)]
pub struct EpObject {
    fid: EpFid,
    pub ep: Arc<Ep>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for EpObject {}

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
        eq: OnceLock::new(),
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
        msg: &raw const crate::transfer::MSG_OPS,
        rma: &raw const crate::transfer::RMA_OPS,
        tagged: std::ptr::null(),
        atomic: std::ptr::null(),
        collective: std::ptr::null(),
    };
    // SAFETY: needed to answer the program, which has promised a place.
    let made = unsafe { EpObject { fid, ep: Arc::clone(&ep) }.hand_out(to) };
    ep.fid.store(made.expose_provenance(), Ordering::Relaxed);
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more.
    let ep = unsafe { EpObject::take_back(fid) }.ep;
    if let Some(eq) = ep.eq.get() {
        eq.remove(ep.fid());
    }
    for bound in [&ep.sends, &ep.receives] {
        if let Some(queue) = bound.queue.get() {
            queue.remove(&ep);
        }
    }
    ep.leave();
    0
}

unsafe extern "C" fn bind(fid: FidPtr, to: FidPtr, flags: u64) -> c_int {
    // SAFETY: needed to find what the program means, and to see what it binds.
    let (ep, class) = unsafe { (&EpObject::of(fid).ep, (*to).fclass) };
    if class == sys::CLASS_EQ {
        // SAFETY: needed to find the queue: its class says what it is.
        let eq = &unsafe { EqObject::of(to) }.queue;
        if ep.eq.set(Arc::clone(eq)).is_err() {
            return -libc::EINVAL;
        }
        eq.add(ep);
        return 0;
    }
    if class != sys::CLASS_CQ || flags & (sys::TRANSMIT | sys::RECV) == 0 {
        return -libc::EINVAL;
    }
    // SAFETY: needed as above.
    let queue = &unsafe { CqObject::of(to) }.queue;
    for (bound, flag) in [(&ep.sends, sys::TRANSMIT), (&ep.receives, sys::RECV)] {
        if flags & flag != 0 {
            if bound.queue.set(Arc::clone(queue)).is_err() {
                return -libc::EINVAL;
            }
            bound.is_selective.store(flags & sys::SELECTIVE_COMPLETION != 0, Ordering::Relaxed);
        }
    }
    queue.add(ep);
    0
}

unsafe extern "C" fn control(fid: FidPtr, command: c_int, _: *mut c_void) -> c_int {
    if command != sys::ENABLE {
        return -libc::ENOSYS;
    }
    // SAFETY: needed to find what the program means.
    let ep = &unsafe { EpObject::of(fid) }.ep;
    match () {
        () if ep.eq.get().is_none() => -sys::ENOEQ,
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
    let (ep, private) = unsafe { (&EpObject::of(fid).ep, private(param, len)) };
    ep.accept(private).map_or_else(|errno| -errno, |()| 0)
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
