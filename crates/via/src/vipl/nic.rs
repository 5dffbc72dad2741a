//! The interface of a process, and what it has: memory, virtual interfaces, completion queues. What [`super::calls`] does, in Rust's words.

use super::descriptor::Posted;
use super::handle_number::vi_handle;
use super::memory::Registry;
use super::types::{Handle, RESOURCE_VI, VipErrorCode, VipErrorDescriptor, VipReturn};
use super::vi::{Event, Service, State, Vi};
use crate::error::Error;
use crate::link::Link;
use crate::lock::lock;
use crate::session::Session;
use crate::sleep::{Deadline, Peer, look, until};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;
use toe_abi::channel::Side;
use toe_ring::ViaMemory;

/// Entries of a completion queue, at most.
pub const CQ_ENTRIES_MAX: usize = 1 << 16;

/// Whom asynchronous errors are told.
pub type Handler = unsafe extern "C" fn(Handle, *const VipErrorDescriptor);

#[derive(Clone, Copy, Debug)]
pub struct Callback {
    pub handler: Handler,
    /// The program's own word, handed back to it.
    pub context: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Nic {
    pub session: Arc<Session>,
    registry: RwLock<Registry>,
    pub callback: Mutex<Option<Callback>>,
    /// Virtual interfaces and completion queues that it has.
    pub things: AtomicU32,
}

impl Nic {
    pub fn new(session: Arc<Session>) -> Nic {
        Nic { session, registry: RwLock::default(), callback: Mutex::new(None), things: AtomicU32::new(0) }
    }

    pub fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not while bytes are copied.
    pub fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A completion queue: which virtual interfaces' queues have something that is done.
#[derive(Debug)]
pub struct CompletionQueue {
    pub nic: Arc<Nic>,
    pub max: usize,
    entries: Mutex<VecDeque<(i32, bool)>>,
    members: Mutex<Vec<Weak<Interface>>>,
}

impl CompletionQueue {
    pub fn new(nic: Arc<Nic>, max: usize) -> CompletionQueue {
        CompletionQueue { nic, max, entries: Mutex::default(), members: Mutex::default() }
    }

    fn members(&self) -> Vec<Arc<Interface>> {
        lock(&self.members).iter().filter_map(Weak::upgrade).collect()
    }

    pub fn is_in_use(&self) -> bool {
        !self.members().is_empty()
    }

    /// The virtual interface, and whether its queue for receives it is. What its members have been sent is taken first.
    pub fn done(&self) -> Option<(i32, bool)> {
        let first = || lock(&self.entries).pop_front();
        first().or_else(|| {
            self.members().iter().for_each(|member| member.progress());
            first()
        })
    }

    pub fn wait(&self, limit_ms: Option<u64>) -> Result<(i32, bool), VipReturn> {
        let mut found = None;
        let mut is_there = || {
            found = found.or_else(|| self.done());
            found.is_some()
        };
        if !look(Peer::Anywhere, &mut is_there) {
            let arm = || self.members().iter().for_each(|member| member.arm());
            let deadline = Deadline::after(limit_ms.map(Duration::from_millis));
            return until(&self.nic.session, deadline, arm, || Ok(self.done())).map_err(VipReturn::from);
        }
        found.ok_or(VipReturn::NotDone)
    }
}

/// A virtual interface.
#[derive(Debug)]
pub struct Interface {
    pub nic: Arc<Nic>,
    pub inside: Mutex<Vi>,
    /// Its number in the table, that of the interface's, and its completion queues.
    pub handle: AtomicI32,
    pub nic_handle: usize,
    queues: [Option<Arc<CompletionQueue>>; 2],
    /// For who waits: beside the lock.
    memory: Mutex<Option<(ViaMemory, Side)>>,
}

impl Interface {
    /// What it offers, if it may be connected.
    pub fn service_if_idle(&self) -> Result<Service, VipReturn> {
        let inside = lock(&self.inside);
        if inside.state == State::Idle { Ok(inside.service) } else { Err(VipReturn::InvalidState) }
    }

    /// Its tag is held until it goes.
    pub fn create(
        (nic, nic_handle): (Arc<Nic>, usize),
        service: Service,
        [sends, receives]: [Option<Arc<CompletionQueue>>; 2],
    ) -> Result<Arc<Interface>, VipReturn> {
        nic.registry_mut().hold(service.ptag)?;
        nic.things.fetch_add(1, Ordering::Relaxed);
        let have_cq = [sends.is_some(), receives.is_some()];
        let made = Arc::new(Interface {
            nic,
            inside: Mutex::new(Vi::new(service, have_cq)),
            handle: AtomicI32::new(0),
            nic_handle,
            queues: [sends, receives],
            memory: Mutex::new(None),
        });
        for queue in made.queues.iter().flatten() {
            let mut members = lock(&queue.members);
            members.retain(|member| member.strong_count() > 0);
            members.push(Arc::downgrade(&made));
        }
        Ok(made)
    }

    /// `false`: another thread has connected it meanwhile.
    pub fn connect(&self, link: Link) -> bool {
        let mut inside = lock(&self.inside);
        if inside.state != State::Idle {
            drop(inside);
            link.leave(&self.nic.session);
            return false;
        }
        *lock(&self.memory) = Some((link.memory.clone(), link.side));
        inside.connect(link);
        drop(inside);
        self.progress();
        true
    }

    /// Leaves the connection, if there is one; what is posted is flushed. It can be connected again.
    pub fn disconnect(&self) {
        let registry = self.nic.registry();
        let mut inside = lock(&self.inside);
        if let Some(link) = inside.link.take() {
            link.leave(&self.nic.session);
        }
        inside.flush(&registry);
        let events = inside.take_events();
        *inside = inside.again();
        drop((inside, registry));
        *lock(&self.memory) = None;
        self.tell(events);
    }

    pub fn post(&self, at: u64, handle: u32, of_receives: bool) -> Result<(), VipReturn> {
        let registry = self.nic.registry();
        let mut inside = lock(&self.inside);
        let posted = Posted::read((at, handle), of_receives, inside.service.ptag, &registry)?;
        if !of_receives && inside.state == State::Idle {
            return Err(VipReturn::InvalidState);
        }
        inside.post(posted, of_receives)?;
        if !of_receives || inside.state != State::Connected {
            // What a receive was posted for is taken by who asks whether it is there.
            inside.progress(&registry);
        }
        let events = inside.take_events();
        drop((inside, registry));
        self.tell(events);
        Ok(())
    }

    pub fn progress(&self) {
        let registry = self.nic.registry();
        let mut inside = lock(&self.inside);
        inside.progress(&registry);
        let events = inside.take_events();
        drop((inside, registry));
        self.tell(events);
    }

    /// The descriptor that is done longest, and whether it went wrong.
    pub fn done(&self, of_receives: bool) -> Option<(u64, bool)> {
        let first = lock(&self.inside).done(of_receives);
        if first.is_some() {
            return first;
        }
        let registry = self.nic.registry();
        let mut inside = lock(&self.inside);
        inside.progress(&registry);
        let (first, events) = (inside.done(of_receives), inside.take_events());
        drop((inside, registry));
        self.tell(events);
        first
    }

    pub fn wait(&self, of_receives: bool, limit_ms: Option<u64>) -> Result<(u64, bool), VipReturn> {
        let mut found = None;
        let mut is_there = || {
            found = found.or_else(|| self.done(of_receives));
            found.is_some()
        };
        if !look(Peer::Anywhere, &mut is_there) {
            let deadline = Deadline::after(limit_ms.map(Duration::from_millis));
            let next = || Ok(self.done(of_receives));
            return until(&self.nic.session, deadline, || self.arm(), next).map_err(VipReturn::from);
        }
        found.ok_or(VipReturn::NotDone)
    }

    fn arm(&self) {
        if let Some((memory, side)) = lock(&self.memory).as_ref() {
            memory.arm(*side);
        }
    }

    /// Without a lock: what is told may call again.
    fn tell(&self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Done { of_receives } => {
                    let Some(queue) = &self.queues[usize::from(of_receives)] else { continue };
                    let mut entries = lock(&queue.entries);
                    if entries.len() < queue.max {
                        entries.push_back((self.handle.load(Ordering::Relaxed), of_receives));
                    } else {
                        drop(entries);
                        self.tell_error(VipErrorCode::ViOverrun, 0);
                    }
                }
                Event::Error { code, descriptor } => self.tell_error(code, descriptor),
            }
        }
    }

    fn tell_error(&self, error_code: VipErrorCode, descriptor: u64) {
        let Some(callback) = *lock(&self.nic.callback) else { return };
        let error = VipErrorDescriptor {
            nic_handle: self.nic_handle as Handle,
            vi_handle: vi_handle(self.handle.load(Ordering::Relaxed)),
            cq_handle: std::ptr::null_mut(),
            descriptor: descriptor as *mut _,
            op_code: 0,
            resource_code: RESOURCE_VI,
            error_code,
        };
        // SAFETY: needed to tell the program. It has given the function and its context for that (VipErrorCallback).
        unsafe { (callback.handler)(callback.context as Handle, &error) };
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        let ptag = lock(&self.inside).service.ptag;
        if let Some(link) = lock(&self.inside).link.take() {
            link.leave(&self.nic.session);
        }
        self.nic.registry_mut().let_go(ptag);
        self.nic.things.fetch_sub(1, Ordering::Relaxed);
    }
}

impl From<Error> for VipReturn {
    fn from(error: Error) -> VipReturn {
        match error {
            Error::Invalid => VipReturn::InvalidParameter,
            Error::TimedOut | Error::Nobody => VipReturn::Timeout,
            Error::Rejected => VipReturn::Reject,
            Error::Unreachable => VipReturn::NotReachable,
            Error::Closed | Error::Broken => VipReturn::NoMatch,
            Error::Connected | Error::NotConnected | Error::NoChannel => VipReturn::InvalidState,
            Error::NoEngine | Error::Refused | Error::NoRoom | Error::TooLong => VipReturn::ErrorResource,
        }
    }
}
