//! Completion queues. Reading one works for the endpoints that are bound to it: nobody else does.

use crate::completions::Completions;
use crate::ep::Ep;
use crate::fabric::Fabric;
use crate::object::{self, Object, no_bind, no_ops_open, strerror, wait_object};
use crate::opened::DomainObject;
use crate::sys::{self, CqAttr, CqErrEntry, CqFid, CqOps, FidPtr, Ops, Ssize};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use toe_via::sleep::{Peer, look};

/// The endpoints that are bound to a queue.
#[derive(Debug, Default)]
pub struct Members(Mutex<Vec<Arc<Ep>>>);

impl Members {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Ep>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, ep: &Arc<Ep>) {
        let mut members = self.lock();
        if !members.iter().any(|member| Arc::ptr_eq(member, ep)) {
            members.push(Arc::clone(ep));
        }
    }

    pub fn remove(&self, ep: &Arc<Ep>) {
        self.lock().retain(|member| !Arc::ptr_eq(member, ep));
    }

    fn progress(&self) {
        self.lock().iter().for_each(|ep| ep.progress());
    }
}

#[derive(Debug)]
#[repr(C)]
pub struct CqObject {
    fid: CqFid,
    fabric: Arc<Fabric>,
    pub completions: Arc<Completions>,
    pub members: Arc<Members>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for CqObject {}

impl CqObject {
    /// Whether the program may wait for its descriptor: it will be readable when something comes.
    pub fn may_wait(&self) -> bool {
        self.fabric.event_count();
        if let Some(wait_object) = &self.completions.wait_object {
            wait_object.arm();
        }
        self.members.lock().iter().for_each(|ep| ep.endpoint.arm());
        self.members.progress();
        !self.completions.has_entries() && !self.completions.is_signalled.load(Ordering::Acquire)
    }

    /// # Safety
    /// As [`Completions::read`].
    unsafe fn read(&self, buf: *mut c_void, count: usize) -> Ssize {
        // SAFETY: the caller's promise.
        unsafe { self.completions.read(buf, count, || self.members.progress()) }
    }

    /// # Safety
    /// As [`Completions::read`].
    unsafe fn wait(&self, buf: *mut c_void, count: usize, limit_ms: c_int) -> Ssize {
        let Some(wait_object) = &self.completions.wait_object else { return -(libc::ENOSYS as Ssize) };
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            look(Peer::Anywhere, || {
                self.members.progress();
                self.completions.has_entries()
            });
            // SAFETY: needed to do what the program asks, which has promised what `read` needs.
            let found = unsafe { self.read(buf, count) };
            if found != -(libc::EAGAIN as Ssize)
                || self.completions.is_signalled.swap(false, Ordering::AcqRel)
            {
                return found;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) || self.fabric.session.is_gone() {
                return found;
            }
            if self.may_wait() {
                wait_object.wait(left);
                self.fabric.session.look_at_engine();
            }
        }
    }
}

static OPS: Ops = Ops { size: size_of::<Ops>(), close, bind: no_bind, control, ops_open: no_ops_open };

static CQ_OPS: CqOps =
    CqOps { size: size_of::<CqOps>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

/// `fi_cq_open`.
///
/// # Safety
/// As libfabric has it.
pub unsafe extern "C" fn open(
    domain: FidPtr,
    attr: *mut CqAttr,
    to: *mut FidPtr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: needed to read what the program passes, and to find its domain.
    let (attr, domain) = unsafe { (&*attr, &DomainObject::of(domain).domain) };
    let entry_len = match attr.format {
        sys::CQ_FORMAT_CONTEXT => 8,
        sys::CQ_FORMAT_MSG => 24,
        sys::CQ_FORMAT_DATA | sys::CQ_FORMAT_UNSPEC => 40,
        sys::CQ_FORMAT_TAGGED => 48,
        _ => return -libc::ENOSYS,
    };
    let fabric = Arc::clone(&domain.fabric);
    let wait_object = match attr.wait_obj {
        sys::WAIT_NONE => None,
        sys::WAIT_UNSPEC | sys::WAIT_FD | sys::WAIT_YIELD if attr.wait_cond == sys::CQ_COND_NONE => {
            let Some(wait_object) = fabric.wait_object() else { return -libc::EMFILE };
            Some(wait_object)
        }
        _ => return -libc::ENOSYS,
    };
    let completions = Arc::new(Completions::new(entry_len, wait_object));
    let fid = CqFid { fid: object::fid(sys::CLASS_CQ, context, &OPS), ops: &raw const CQ_OPS };
    // SAFETY: needed to answer the program, which has promised a place.
    unsafe { CqObject { fid, fabric, completions, members: Arc::default() }.hand_out(to) };
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to find what the program means.
    if !unsafe { CqObject::of(fid) }.members.lock().is_empty() {
        return -libc::EBUSY;
    }
    // SAFETY: needed to end it; the program uses it no more.
    drop(unsafe { CqObject::take_back(fid) });
    0
}

unsafe extern "C" fn control(fid: FidPtr, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: needed to find what the program means.
    let queue = &unsafe { CqObject::of(fid) }.completions;
    // SAFETY: needed to answer where the program wants it.
    unsafe { wait_object(queue.wait_object.as_ref(), command, arg) }
}

unsafe extern "C" fn read(fid: FidPtr, buf: *mut c_void, count: usize) -> Ssize {
    // SAFETY: needed to do what the program asks; it has promised what `Completions::read` needs.
    unsafe { CqObject::of(fid).read(buf, count) }
}

/// Connected endpoints have no address of a sender to tell.
unsafe extern "C" fn readfrom(fid: FidPtr, buf: *mut c_void, count: usize, from: *mut u64) -> Ssize {
    // SAFETY: needed as in `read`.
    let found = unsafe { read(fid, buf, count) };
    if !from.is_null() {
        for index in 0..usize::try_from(found).unwrap_or(0) {
            // SAFETY: needed to answer: where it is not null it has room for `count`.
            unsafe { from.add(index).write(u64::MAX) };
        }
    }
    found
}

unsafe extern "C" fn readerr(fid: FidPtr, buf: *mut CqErrEntry, _flags: u64) -> Ssize {
    // SAFETY: needed to do what the program asks, which has promised room.
    unsafe { CqObject::of(fid).completions.read_error(buf) }
}

unsafe extern "C" fn sread(
    fid: FidPtr,
    buf: *mut c_void,
    count: usize,
    _cond: *const c_void,
    limit_ms: c_int,
) -> Ssize {
    // SAFETY: needed to do what the program asks; it has promised what `Completions::read` needs.
    unsafe { CqObject::of(fid).wait(buf, count, limit_ms) }
}

unsafe extern "C" fn sreadfrom(
    fid: FidPtr,
    buf: *mut c_void,
    count: usize,
    from: *mut u64,
    cond: *const c_void,
    limit_ms: c_int,
) -> Ssize {
    // SAFETY: needed as in `sread` and `readfrom`.
    unsafe {
        let found = sread(fid, buf, count, cond, limit_ms);
        if !from.is_null() {
            (0..usize::try_from(found).unwrap_or(0)).for_each(|index| from.add(index).write(u64::MAX));
        }
        found
    }
}

unsafe extern "C" fn signal(fid: FidPtr) -> c_int {
    // SAFETY: needed to find what the program means.
    let queue = &unsafe { CqObject::of(fid) }.completions;
    queue.is_signalled.store(true, Ordering::Release);
    queue.ring();
    0
}
