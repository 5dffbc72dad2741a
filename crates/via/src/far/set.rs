//! What of a process's goes to other hosts: its carriers and its doors, for whoever sleeps for all of them. Owned by the session.

use super::carrier::{Answer, Carrier};
use crate::link::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};
use toe_abi::errno::Errno;
use toe_abi::via::Fragment;
use toe_ring::ViaSender;
use toe_ring::via::Room;

/// How long who leaves waits until the other host has what he sent.
const LEAVE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Bell(OwnedFd);

impl Bell {
    fn new() -> Result<Bell, Errno> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(Bell).map_err(|error| Errno(error.raw_os_error() as u16))
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether it had rung.
    fn quiet(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

/// Wakes those who wait for what has been found by another thread. Each has a bell of his own, which nobody else makes quiet.
#[derive(Debug)]
pub struct Bells {
    /// For who sleeps for all.
    sleeper: Bell,
    /// For a program that waits in a loop of its own, if there is one.
    outside: Bell,
    is_outside: AtomicBool,
    /// For the thread that looks at the streams in its place: there is another stream.
    looker: Bell,
}

impl Bells {
    fn new() -> Result<Bells, Errno> {
        let is_outside = AtomicBool::new(false);
        Ok(Bells { sleeper: Bell::new()?, outside: Bell::new()?, is_outside, looker: Bell::new()? })
    }

    /// Something has been found that may be waited for.
    pub fn ring(&self) {
        self.sleeper.ring();
        if self.is_outside.load(Ordering::Acquire) {
            self.outside.ring();
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
    bells: Arc<Bells>,
    /// What [`Carrier::is_settled`] said: it stays so.
    is_settled: AtomicBool,
}

impl Far {
    fn with<R>(&self, work: impl FnOnce(&mut Carrier) -> R) -> R {
        let mut inside = lock(&self.inside);
        let outcome = work(&mut inside);
        if inside.take_change() {
            self.bells.ring();
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
    bells: Arc<Bells>,
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
        Ok(FarSet { bells: Arc::new(Bells::new()?), members: Mutex::default(), has_looker: Once::new() })
    }

    pub fn bells(&self) -> &Arc<Bells> {
        &self.bells
    }

    /// Whoever sleeps looks at it, too, from now on.
    pub fn add(self: &Arc<FarSet>, member: &Arc<impl Member + 'static>) {
        let member = Arc::downgrade(member) as Weak<dyn Member>;
        let mut members = lock(&self.members);
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
        drop(members);
        self.bells.sleeper.ring();
        self.bells.looker.ring();
        self.look_for_outside();
    }

    /// What a program's own loop is to watch: readable when something may have come.
    pub fn outside(self: &Arc<FarSet>) -> BorrowedFd<'_> {
        self.bells.is_outside.store(true, Ordering::Release);
        self.look_for_outside();
        self.bells.outside.0.as_fd()
    }

    /// Whether it was readable.
    pub fn quiet_outside(&self) -> bool {
        self.bells.is_outside.load(Ordering::Acquire) && self.bells.outside.quiet()
    }

    /// Nothing but a thread can watch streams for a loop of the program's: their arrival is told by the host library, not by a descriptor. There is none
    /// where no loop watches, or nothing goes to another host.
    fn look_for_outside(self: &Arc<FarSet>) {
        if !self.bells.is_outside.load(Ordering::Acquire) || lock(&self.members).is_empty() {
            return;
        }
        self.has_looker.call_once(|| {
            let set = Arc::clone(self);
            let _ = toe::helper::start("toe-via-far", &[], move || {
                loop {
                    set.sleep_by(&set.bells.looker, &mut [], None);
                }
            });
        });
    }

    pub fn carry(self: &Arc<FarSet>, carrier: Carrier) -> Arc<Far> {
        let far = Arc::new(Far {
            inside: Mutex::new(carrier),
            bells: Arc::clone(&self.bells),
            is_settled: AtomicBool::new(false),
        });
        self.add(&far);
        far
    }

    fn members(&self) -> Vec<Arc<dyn Member>> {
        lock(&self.members).iter().filter_map(Weak::upgrade).collect()
    }

    /// Sleeps until something comes to a member, one of `others` is ready, the bell rings, a signal comes, or for so long. Those of `others` that
    /// are ready are marked.
    pub fn sleep(&self, others: &mut [libc::pollfd], limit: Option<Duration>) {
        self.sleep_by(&self.bells.sleeper, others, limit);
    }

    fn sleep_by(&self, bell: &Bell, others: &mut [libc::pollfd], limit: Option<Duration>) {
        let members = self.members();
        let of_bell = libc::pollfd { fd: bell.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut all: Vec<libc::pollfd> = others.iter().copied().chain([of_bell]).collect();
        for member in &members {
            member.watch(&mut |fd, events| all.push(libc::pollfd { fd, events, revents: 0 }));
        }
        let _ = toe::poll::poll(&mut all, limit, None);
        others.copy_from_slice(&all[..others.len()]);
        members.iter().for_each(|member| member.pull());
        // Who rang before this has nothing to say that is not looked at now.
        bell.quiet();
    }
}
