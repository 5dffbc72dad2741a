//! Completion queues. Reading one works for the endpoints that are bound to it: nobody else does.

use crate::domain::DomainObject;
use crate::ep::Ep;
use crate::fabric::Fabric;
use crate::object::{self, Object, no_bind, no_ops_open, strerror};
use crate::sys::{self, CqAttr, CqErrEntry, CqFid, CqOps, CqTaggedEntry, FidPtr, Ops, Ssize};
use crate::wait_object::WaitObject;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use toe_via::endpoint::post::{Completion, Failure, What};
use toe_via::sleep::{Peer, look};

/// See the module.
#[derive(Debug)]
pub struct Cq {
    fabric: Arc<Fabric>,
    entries: Mutex<VecDeque<Completion>>,
    members: Mutex<Vec<Arc<Ep>>>,
    entry_len: usize,
    wait_object: Option<Arc<WaitObject>>,
    is_signalled: AtomicBool,
    /// Reads one after the other that have found nothing.
    empty_reads: AtomicU32,
}

/// Empty reads after which each lets others run: some ten microseconds, in which a peer that is at it answers. Who only looks, as MPI does,
/// would else keep its peer from the processor that the two share.
const EMPTY_READS_MAX: u32 = 512;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a completion is called.
fn flags(completion: &Completion) -> u64 {
    let data = if completion.immediate.is_some() { sys::REMOTE_CQ_DATA } else { 0 };
    data | match completion.what {
        What::Sent => sys::SEND | sys::MSG,
        What::Received => sys::RECV | sys::MSG,
        What::Written => sys::WRITE | sys::RMA,
        What::Read => sys::READ | sys::RMA,
        What::WasWritten => sys::REMOTE_WRITE | sys::RMA,
    }
}

fn entry(completion: &Completion) -> CqTaggedEntry {
    CqTaggedEntry {
        op_context: completion.context as *mut c_void,
        flags: flags(completion),
        len: completion.len as usize,
        buf: completion.address as *mut c_void,
        data: completion.immediate.unwrap_or(0).into(),
        tag: 0,
    }
}

impl Cq {
    pub fn push(&self, completion: Completion) {
        lock(&self.entries).push_back(completion);
        self.ring();
    }

    pub fn add(&self, ep: &Arc<Ep>) {
        let mut members = lock(&self.members);
        if !members.iter().any(|member| Arc::ptr_eq(member, ep)) {
            members.push(Arc::clone(ep));
        }
    }

    pub fn remove(&self, ep: &Arc<Ep>) {
        lock(&self.members).retain(|member| !Arc::ptr_eq(member, ep));
    }

    /// Wakes who waits for it in this process.
    pub fn ring(&self) {
        if let Some(wait_object) = &self.wait_object {
            wait_object.ring();
        }
    }

    fn progress(&self) {
        lock(&self.members).iter().for_each(|ep| ep.progress());
    }

    fn has_entries(&self) -> bool {
        !lock(&self.entries).is_empty()
    }

    /// Whether the program may wait for its descriptor: it will be readable when something comes.
    pub fn may_wait(&self) -> bool {
        self.fabric.event_count();
        if let Some(wait_object) = &self.wait_object {
            wait_object.arm();
        }
        lock(&self.members).iter().for_each(|ep| ep.endpoint.arm());
        self.progress();
        !self.has_entries() && !self.is_signalled.load(Ordering::Acquire)
    }

    /// Reads up to `count` entries. FI_EAVAIL: the first is an error.
    ///
    /// # Safety
    /// `buf` has room for them in the queue's format.
    unsafe fn read(&self, buf: *mut c_void, count: usize) -> Ssize {
        let mut entries = lock(&self.entries);
        if entries.is_empty() {
            drop(entries);
            self.progress();
            entries = lock(&self.entries);
        }
        let mut done = 0;
        while done < count {
            match entries.front() {
                None => break,
                Some(first) if first.failure.is_some() => {
                    return if done > 0 { done as Ssize } else { -(sys::EAVAIL as Ssize) };
                }
                Some(first) => {
                    let entry = entry(first);
                    // SAFETY: needed to tell the program, which has promised room for `count`. Each format is the beginning of the longest.
                    unsafe {
                        let to = buf.byte_add(done * self.entry_len).cast::<u8>();
                        to.copy_from_nonoverlapping((&raw const entry).cast(), self.entry_len);
                    }
                    entries.pop_front();
                    done += 1;
                }
            }
        }
        drop(entries);
        if done > 0 {
            self.empty_reads.store(0, Ordering::Relaxed);
            return done as Ssize;
        }
        let empty_reads = self.empty_reads.load(Ordering::Relaxed);
        if empty_reads < EMPTY_READS_MAX {
            self.empty_reads.store(empty_reads + 1, Ordering::Relaxed);
        } else {
            std::thread::yield_now();
        }
        -(libc::EAGAIN as Ssize)
    }

    /// # Safety
    /// As [`Cq::read`].
    unsafe fn wait(&self, buf: *mut c_void, count: usize, limit_ms: c_int) -> Ssize {
        let Some(wait_object) = &self.wait_object else { return -(libc::ENOSYS as Ssize) };
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            look(Peer::Anywhere, || {
                self.progress();
                self.has_entries()
            });
            // SAFETY: needed to do what the program asks, which has promised what `read` needs.
            let found = unsafe { self.read(buf, count) };
            if found != -(libc::EAGAIN as Ssize) || self.is_signalled.swap(false, Ordering::AcqRel) {
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

#[derive(Debug)]
#[repr(C)]
pub struct CqObject {
    fid: CqFid,
    pub queue: Arc<Cq>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for CqObject {}

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
    let queue = Cq {
        fabric,
        entries: Mutex::default(),
        members: Mutex::default(),
        entry_len,
        wait_object,
        is_signalled: AtomicBool::new(false),
        empty_reads: AtomicU32::new(0),
    };
    let fid = CqFid { fid: object::fid(sys::CLASS_CQ, context, &OPS), ops: &raw const CQ_OPS };
    // SAFETY: needed to answer the program, which has promised a place.
    unsafe { CqObject { fid, queue: Arc::new(queue) }.hand_out(to) };
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to find what the program means.
    if !lock(&unsafe { CqObject::of(fid) }.queue.members).is_empty() {
        return -libc::EBUSY;
    }
    // SAFETY: needed to end it; the program uses it no more.
    drop(unsafe { CqObject::take_back(fid) });
    0
}

unsafe extern "C" fn control(fid: FidPtr, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: needed to find what the program means.
    let queue = &unsafe { CqObject::of(fid) }.queue;
    // SAFETY: needed to answer where the program wants it.
    unsafe { wait_object(queue.wait_object.as_ref(), command, arg) }
}

/// What a queue's wait object is.
///
/// # Safety
/// `arg` is what the command needs.
pub unsafe fn wait_object(wait_object: Option<&Arc<WaitObject>>, command: c_int, arg: *mut c_void) -> c_int {
    match (command, wait_object) {
        (sys::GETWAIT, Some(wait_object)) => {
            // SAFETY: needed to answer: of a descriptor `arg` points to an int.
            unsafe { arg.cast::<c_int>().write(wait_object.raw_fd()) };
            0
        }
        (sys::GETWAITOBJ, wait_object) => {
            let kind = if wait_object.is_some() { sys::WAIT_FD } else { sys::WAIT_NONE };
            // SAFETY: needed to answer: `arg` points to an enum.
            unsafe { arg.cast::<u32>().write(kind) };
            0
        }
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn read(fid: FidPtr, buf: *mut c_void, count: usize) -> Ssize {
    // SAFETY: needed to do what the program asks; it has promised what `Cq::read` needs.
    unsafe { CqObject::of(fid).queue.read(buf, count) }
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
    // SAFETY: needed to find what the program means.
    let queue = &unsafe { CqObject::of(fid) }.queue;
    let mut entries = lock(&queue.entries);
    let Some((completion, failure)) =
        entries.front().and_then(|first| first.failure.map(|failure| (*first, failure)))
    else {
        return -(libc::EAGAIN as Ssize);
    };
    entries.pop_front();
    let (err, olen) = match failure {
        Failure::Truncated(over) => (sys::ETRUNC, over as usize),
        Failure::Cancelled => (libc::ECANCELED, 0),
        Failure::Refused => (libc::EACCES, 0),
        Failure::Ended | Failure::NotConnected | Failure::Full => (libc::ECONNABORTED, 0),
    };
    let entry = entry(&completion);
    // SAFETY: needed to tell the program, which has promised room. Its buffer for more about the error stays as it is.
    unsafe {
        (&raw mut (*buf).entry).write(entry);
        (&raw mut (*buf).olen).write(olen);
        (&raw mut (*buf).err).write(err);
        (&raw mut (*buf).prov_errno).write(err);
        (&raw mut (*buf).err_data).write(null_mut());
        (&raw mut (*buf).err_data_size).write(0);
    }
    1
}

unsafe extern "C" fn sread(
    fid: FidPtr,
    buf: *mut c_void,
    count: usize,
    _cond: *const c_void,
    limit_ms: c_int,
) -> Ssize {
    // SAFETY: needed to do what the program asks; it has promised what `Cq::read` needs.
    unsafe { CqObject::of(fid).queue.wait(buf, count, limit_ms) }
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
    let queue = &unsafe { CqObject::of(fid) }.queue;
    queue.is_signalled.store(true, Ordering::Release);
    queue.ring();
    0
}
