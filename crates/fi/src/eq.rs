//! Event queues: what becomes of connections. Reading one works for the endpoints that are bound to it, and for those who listen.

use crate::ep::Ep;
use crate::event::Event;
use crate::fabric::Fabric;
use crate::object::{self, Object, no_bind, no_ops_open, strerror, wait_object};
use crate::opened::FabricObject;
use crate::passive::Passive;
use crate::sys::{self, EqAttr, EqEntry, EqErrEntry, EqFid, EqOps, FidPtr, Info, Ops, Ssize};
use crate::wait_object::WaitObject;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct Inside {
    events: VecDeque<Event>,
    endpoints: Vec<Arc<Ep>>,
    listeners: Vec<Arc<Passive>>,
    /// What the last error has said, until the next is read.
    said: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Eq {
    fabric: Arc<Fabric>,
    inside: Mutex<Inside>,
    wait_object: Arc<WaitObject>,
    /// How many events there had been when it looked.
    seen: AtomicU64,
}

impl Eq {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, event: Event) {
        self.lock().events.push_back(event);
        self.wait_object.ring();
    }

    pub fn add(&self, ep: &Arc<Ep>) {
        self.lock().endpoints.push(Arc::clone(ep));
    }

    pub fn add_listener(&self, passive: &Arc<Passive>) {
        self.lock().listeners.push(Arc::clone(passive));
    }

    /// Forgets an endpoint, and what was to be told of it.
    pub fn remove(&self, fid: usize) {
        let mut inside = self.lock();
        inside.endpoints.retain(|ep| ep.fid() != fid);
        inside.listeners.retain(|passive| passive.fid() != fid);
        let (of, rest) = std::mem::take(&mut inside.events).into_iter().partition(|event| event.is_of(fid));
        inside.events = rest;
        drop(inside);
        drop::<VecDeque<Event>>(of);
    }

    /// Looks how far each connection is.
    fn look(&self) -> MutexGuard<'_, Inside> {
        let count = self.fabric.event_count();
        let may_have_events = self.seen.swap(count, Ordering::AcqRel) != count;
        let mut inside = self.lock();
        let Inside { events, endpoints, listeners, .. } = &mut *inside;
        events.extend(endpoints.iter().filter_map(|ep| ep.look(may_have_events)));
        listeners.iter().for_each(|passive| passive.look(may_have_events, events));
        inside
    }

    /// Whether the program may wait for its descriptor: it will be readable when something comes.
    pub fn may_wait(&self) -> bool {
        self.wait_object.arm();
        let inside = self.look();
        inside.endpoints.iter().for_each(|ep| ep.endpoint.arm());
        inside.listeners.iter().for_each(|passive| passive.arm());
        drop(inside);
        self.look().events.is_empty()
    }

    /// Reads the first event. FI_EAVAIL: it is an error.
    ///
    /// # Safety
    /// `event` can be written to, `buf` has `len` bytes.
    unsafe fn read(&self, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> Ssize {
        let mut inside = self.look();
        let (kind, bytes) = match inside.events.front() {
            None => return -(libc::EAGAIN as Ssize),
            Some(Event::Failed { .. }) => return -(sys::EAVAIL as Ssize),
            Some(Event::Request { passive, request }) => {
                (sys::CONNREQ, cm_entry(*passive, request.info(), &request.private))
            }
            Some(Event::Connected { ep, private }) => (sys::CONNECTED, cm_entry(*ep, null_mut(), private)),
            Some(Event::Shutdown { ep }) => (sys::SHUTDOWN, cm_entry(*ep, null_mut(), &[])),
            Some(Event::Written { event, bytes }) => (*event, bytes.clone()),
        };
        let is_connections = kind != sys::NOTIFY;
        if len < if is_connections { size_of::<sys::EqCmEntry>() } else { bytes.len() } {
            return -(sys::ETOOSMALL as Ssize);
        }
        let copied = bytes.len().min(len);
        // SAFETY: needed to tell the program, which has promised so much room.
        unsafe {
            event.write(kind);
            buf.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), copied);
        }
        if flags & sys::PEEK == 0
            && let Some(Event::Request { request, .. }) = inside.events.pop_front()
        {
            request.hand_over();
        }
        copied as Ssize
    }

    /// # Safety
    /// As [`Eq::read`].
    unsafe fn wait(
        &self,
        event: *mut u32,
        (buf, len): (*mut c_void, usize),
        limit_ms: c_int,
        flags: u64,
    ) -> Ssize {
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            // SAFETY: needed to do what the program asks, which has promised what `read` needs.
            let found = unsafe { self.read(event, buf, len, flags) };
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero()) || self.fabric.session.is_gone();
            if found != -(libc::EAGAIN as Ssize) || is_over {
                return found;
            }
            if self.may_wait() {
                self.wait_object.wait(left);
                self.fabric.session.look_at_engine();
            }
        }
    }
}

/// `struct fi_eq_cm_entry`, as bytes.
fn cm_entry(fid: usize, info: *mut Info, private: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + private.len());
    bytes.extend_from_slice(&fid.to_ne_bytes());
    bytes.extend_from_slice(&info.expose_provenance().to_ne_bytes());
    bytes.extend_from_slice(private);
    bytes
}

#[derive(Debug)]
#[repr(C)]
pub struct EqObject {
    fid: EqFid,
    pub queue: Arc<Eq>,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for EqObject {}

static OPS: Ops = Ops { size: size_of::<Ops>(), close, bind: no_bind, control, ops_open: no_ops_open };

static EQ_OPS: EqOps = EqOps { size: size_of::<EqOps>(), read, readerr, write, sread, strerror };

/// `fi_eq_open`.
///
/// # Safety
/// As libfabric has it.
pub unsafe extern "C" fn open(
    fabric: FidPtr,
    attr: *mut EqAttr,
    to: *mut FidPtr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: needed to read what the program passes, and to find its fabric.
    let (attr, fabric) = unsafe { (attr.as_ref(), Arc::clone(&FabricObject::of(fabric).fabric)) };
    let wait_obj = attr.map_or(sys::WAIT_NONE, |attr| attr.wait_obj);
    if ![sys::WAIT_NONE, sys::WAIT_UNSPEC, sys::WAIT_FD, sys::WAIT_YIELD].contains(&wait_obj) {
        return -libc::ENOSYS;
    }
    let Some(wait_object) = fabric.wait_object() else { return -libc::EMFILE };
    let queue = Eq { fabric, inside: Mutex::default(), wait_object, seen: AtomicU64::new(u64::MAX) };
    let fid = EqFid { fid: object::fid(sys::CLASS_EQ, context, &OPS), ops: &raw const EQ_OPS };
    // SAFETY: needed to answer the program, which has promised a place.
    unsafe { EqObject { fid, queue: Arc::new(queue) }.hand_out(to) };
    0
}

unsafe extern "C" fn close(fid: FidPtr) -> c_int {
    // SAFETY: needed to end it; the program uses it no more.
    let queue = unsafe { EqObject::take_back(fid) };
    // Endpoints that outlive it and it know each other.
    *queue.queue.lock() = Inside::default();
    0
}

unsafe extern "C" fn control(fid: FidPtr, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: needed to find what the program means, and to answer where it wants it.
    unsafe { wait_object(Some(&EqObject::of(fid).queue.wait_object), command, arg) }
}

unsafe extern "C" fn read(fid: FidPtr, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> Ssize {
    // SAFETY: needed to do what the program asks; it has promised what `Eq::read` needs.
    unsafe { EqObject::of(fid).queue.read(event, buf, len, flags) }
}

unsafe extern "C" fn readerr(fid: FidPtr, buf: *mut EqErrEntry, flags: u64) -> Ssize {
    // SAFETY: needed to find what the program means, and to read how much room it has for what the peer has said.
    let (queue, room) = unsafe { (&EqObject::of(fid).queue, (*buf).err_data_size) };
    let mut inside = queue.lock();
    let Some(Event::Failed { ep, context, errno, private }) = inside.events.front() else {
        return -(libc::EAGAIN as Ssize);
    };
    let (ep, context, err, private) = (*ep, *context, *errno, private.clone());
    if flags & sys::PEEK == 0 {
        inside.events.pop_front();
    }
    inside.said = private;
    let said = &inside.said;
    // SAFETY: needed to tell the program, which has promised room. Where it has a buffer of its own for what was said, that has so
    // much; else it gets a pointer that is good until the next error is read.
    unsafe {
        let own = (*buf).err_data;
        (&raw mut (*buf).fid).write(with_exposed_provenance_mut(ep));
        (&raw mut (*buf).context).write(with_exposed_provenance_mut(context));
        (&raw mut (*buf).data).write(0);
        (&raw mut (*buf).err).write(err);
        (&raw mut (*buf).prov_errno).write(err);
        if own.is_null() || room == 0 {
            (&raw mut (*buf).err_data).write(said.as_ptr().cast_mut().cast());
            (&raw mut (*buf).err_data_size).write(said.len());
        } else {
            let copied = said.len().min(room);
            own.cast::<u8>().copy_from_nonoverlapping(said.as_ptr(), copied);
            (&raw mut (*buf).err_data_size).write(copied);
        }
    }
    size_of::<EqErrEntry>() as Ssize
}

unsafe extern "C" fn write(fid: FidPtr, event: u32, buf: *const c_void, len: usize, _flags: u64) -> Ssize {
    if event != sys::NOTIFY || len > size_of::<EqEntry>() {
        return -(libc::EINVAL as Ssize);
    }
    // SAFETY: needed to read what the program writes: `len` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }.to_vec();
    // SAFETY: needed to find what the program means.
    unsafe { EqObject::of(fid) }.queue.push(Event::Written { event, bytes });
    len as Ssize
}

unsafe extern "C" fn sread(
    fid: FidPtr,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    limit_ms: c_int,
    flags: u64,
) -> Ssize {
    // SAFETY: needed to do what the program asks; it has promised what `Eq::read` needs.
    unsafe { EqObject::of(fid).queue.wait(event, (buf, len), limit_ms, flags) }
}
