//! What of a process's goes to other hosts: its carriers and its doors, for whoever sleeps for all of them. Owned by the session.

use super::carrier::{Answer, Carrier};
use crate::lock::lock;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};
use toe_abi::errno::Errno;
use toe_abi::via::Fragment;
use toe_ring::via::Room;
use toe_ring::{EventFd, ViaSender};

/// How long who leaves waits until the other host has what he sent.
const LEAVE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

fn new_eventfd() -> Result<EventFd, Errno> {
    EventFd::new().map_err(|error| Errno(error.raw_os_error() as u16))
}

/// Wakes those who wait for what has been found by another thread. Each has an eventfd of his own, which nobody else makes quiet.
#[derive(Debug)]
pub struct EventFds {
    /// For who sleeps for all.
    sleeper: EventFd,
    /// For a program that waits in a loop of its own, if there is one.
    outside: EventFd,
    is_outside: AtomicBool,
    /// For the thread that looks at the streams in its place: there is another stream.
    looker: EventFd,
}

impl EventFds {
    fn new() -> Result<EventFds, Errno> {
        let is_outside = AtomicBool::new(false);
        Ok(EventFds { sleeper: new_eventfd()?, outside: new_eventfd()?, is_outside, looker: new_eventfd()? })
    }

    /// Something has been found that may be waited for.
    pub fn ring(&self) {
        let _ = self.sleeper.signal();
        if self.is_outside.load(Ordering::Acquire) {
            let _ = self.outside.signal();
        }
    }
}

/// One to whom bytes may come.
pub trait Member: Send + Sync {
    /// Takes what has come.
    fn pull(&self);
    /// Which descriptors to look at, and for what.
    fn watch(&self, see: &mut dyn FnMut(RawFd, i16));
}

/// A carrier, for all threads of the process.
#[derive(Debug)]
pub struct Far {
    inside: Mutex<Carrier>,
    eventfds: Arc<EventFds>,
    /// What [`Carrier::is_settled`] said: it stays so.
    is_settled: AtomicBool,
}

impl Far {
    fn with<R>(&self, work: impl FnOnce(&mut Carrier) -> R) -> R {
        let mut inside = lock(&self.inside);
        let outcome = work(&mut inside);
        if inside.take_change() {
            self.eventfds.ring();
        }
        outcome
    }

    #[inline]
    pub fn push(&self) {
        self.with(Carrier::push);
    }

    /// See [`Carrier::take_from`].
    #[inline]
    pub fn take_from(&self, from: &mut ViaSender, fragment: Fragment, room: Room, bytes: &[u8]) -> bool {
        self.with(|carrier| carrier.take_from(from, fragment, room, bytes))
    }

    pub fn answer(&self) -> Option<Answer> {
        self.with(|carrier| carrier.answer())
    }

    #[inline]
    pub fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Relaxed) || self.has_settled()
    }

    #[cold]
    fn has_settled(&self) -> bool {
        let is_settled = self.with(|carrier| carrier.is_settled());
        self.is_settled.store(is_settled, Ordering::Relaxed);
        is_settled
    }

    pub fn has_lost_engine(&self) -> bool {
        self.with(|carrier| carrier.has_lost_engine())
    }

    /// The program has left: waits until the other host has what was sent.
    pub fn leave(&self) {
        let end = Instant::now() + LEAVE;
        while !self.with(Carrier::has_left) && Instant::now() < end {
            let mut see = Vec::new();
            self.watch(&mut |fd, events| see.push(libc::pollfd { fd, events, revents: 0 }));
            // Nothing tells of an acknowledgement.
            let _ = toe::poll::poll(&mut see, Some(LOOK_AGAIN), None);
        }
        self.with(Carrier::let_go);
    }
}

impl Member for Far {
    #[inline]
    fn pull(&self) {
        self.with(Carrier::pull);
    }

    fn watch(&self, see: &mut dyn FnMut(RawFd, i16)) {
        if let Some((wire, waits)) = lock(&self.inside).watched() {
            see(wire.fd(), if waits { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN });
        }
    }
}

/// See the module.
pub struct FarSet {
    eventfds: Arc<EventFds>,
    members: Mutex<Vec<Weak<dyn Member>>>,
    has_looker: Once,
}

impl std::fmt::Debug for FarSet {
    fn fmt(&self, into: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(into, "FarSet({})", lock(&self.members).len())
    }
}

impl FarSet {
    pub fn new() -> Result<FarSet, Errno> {
        Ok(FarSet {
            eventfds: Arc::new(EventFds::new()?),
            members: Mutex::default(),
            has_looker: Once::new(),
        })
    }

    pub fn eventfds(&self) -> &Arc<EventFds> {
        &self.eventfds
    }

    /// Whoever sleeps looks at it, too, from now on.
    pub fn add(self: &Arc<FarSet>, member: &Arc<impl Member + 'static>) {
        let member = Arc::downgrade(member) as Weak<dyn Member>;
        let mut members = lock(&self.members);
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
        drop(members);
        let _ = self.eventfds.sleeper.signal();
        let _ = self.eventfds.looker.signal();
        self.look_for_outside();
    }

    /// What a program's own loop is to watch: readable when something may have come.
    pub fn outside(self: &Arc<FarSet>) -> BorrowedFd<'_> {
        self.eventfds.is_outside.store(true, Ordering::Release);
        self.look_for_outside();
        self.eventfds.outside.as_fd()
    }

    /// Whether it was readable.
    pub fn quiet_outside(&self) -> bool {
        self.eventfds.is_outside.load(Ordering::Acquire) && self.eventfds.outside.drain() == Ok(true)
    }

    /// Nothing but a thread can watch streams for a loop of the program's: their arrival is told by the host library, not by a descriptor. There is none
    /// where no loop watches, or nothing goes to another host.
    fn look_for_outside(self: &Arc<FarSet>) {
        if !self.eventfds.is_outside.load(Ordering::Acquire) || lock(&self.members).is_empty() {
            return;
        }
        self.has_looker.call_once(|| {
            let set = Arc::clone(self);
            let _ = toe::helper::start("toe-via-far", &[], move || {
                loop {
                    set.sleep_by(&set.eventfds.looker, &mut [], None);
                }
            });
        });
    }

    pub fn carry(self: &Arc<FarSet>, carrier: Carrier) -> Arc<Far> {
        let far = Arc::new(Far {
            inside: Mutex::new(carrier),
            eventfds: Arc::clone(&self.eventfds),
            is_settled: AtomicBool::new(false),
        });
        self.add(&far);
        far
    }

    fn members(&self) -> Vec<Arc<dyn Member>> {
        lock(&self.members).iter().filter_map(Weak::upgrade).collect()
    }

    /// Sleeps until something comes to a member, one of `others` is ready, his eventfd is written to, a signal comes, or for so long. Those of `others` that
    /// are ready are marked.
    pub fn sleep(&self, others: &mut [libc::pollfd], limit: Option<Duration>) {
        self.sleep_by(&self.eventfds.sleeper, others, limit);
    }

    fn sleep_by(&self, eventfd: &EventFd, others: &mut [libc::pollfd], limit: Option<Duration>) {
        let members = self.members();
        let own = libc::pollfd { fd: eventfd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut all: Vec<libc::pollfd> = others.iter().copied().chain([own]).collect();
        for member in &members {
            member.watch(&mut |fd, events| all.push(libc::pollfd { fd, events, revents: 0 }));
        }
        let _ = toe::poll::poll(&mut all, limit, None);
        others.copy_from_slice(&all[..others.len()]);
        members.iter().for_each(|member| member.pull());
        // Who rang before this has nothing to say that is not looked at now.
        let _ = eventfd.drain();
    }
}
