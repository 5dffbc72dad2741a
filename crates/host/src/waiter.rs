//! What wakes a thread that waits ([`Waiter`]), and who of those that wait on one queue set listens to its interrupt ([`ParkingLot`]).

use crate::lock::Lock;
use crate::sys::Fd;
use crate::{fd_words, sys};
use rustix::event::EventfdFlags;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use toe_ring::pending_wakes::{Link, Sleeper};

/// Longest park while something must be retried that no interrupt announces.
pub const STUCK: Duration = Duration::from_millis(1);

pub(crate) const RUNNING: u32 = 0;
pub(crate) const PARKED: u32 = 1;
pub(crate) const KICKED: u32 = 2;

/// What wakes a thread in one wait. Never freed; a thread that ends leaves its waiter to the next one.
#[derive(Debug)]
pub struct Waiter {
    /// Empty while the program has all descriptors that it may have: no call may fail for the want of one that Linux does not
    /// need. Who waits with it then looks again every [`STUCK`].
    pub(crate) fd: OnceLock<Fd>,
    pub(crate) state: AtomicU32,
    /// Which thread waits with it: an address that is the thread's own.
    pub(crate) thread: AtomicUsize,
    /// It was woken to lead some queue set, in this wait.
    pub(crate) was_heir: AtomicBool,
    pending: Link<Waiter>,
}

static SPARE: Lock<Vec<&'static Waiter>> = Lock::new(Vec::new());

/// The thread that kept it ends.
pub(crate) fn give_back(waiter: &'static Waiter) {
    SPARE.lock().push(waiter);
}

/// One that no thread has.
pub(crate) fn spare() -> &'static Waiter {
    SPARE.lock().pop().unwrap_or_else(Waiter::make)
}

/// Forgets all waiters, and that of the calling thread: in the child of a fork they are the parent's.
#[cold]
pub(crate) fn forget_all(mine: Option<&'static Waiter>) {
    // SAFETY: needed to look without the lock, which costs a copy of its page. The child has this thread alone.
    let has_spare = unsafe { SPARE.peek_in_child() }.is_none_or(|spare| !spare.is_empty());
    let spare = if has_spare { std::mem::take(&mut *SPARE.lock()) } else { Vec::new() };
    for fd in spare.into_iter().chain(mine).filter_map(|waiter| waiter.fd.get()) {
        fd_words::forget_internal(fd.raw());
        let _ = sys::close(fd.raw());
    }
}

/// The lock of the spare waiters, for [`crate::fork`].
pub fn spare_lock() -> &'static Lock<Vec<&'static Waiter>> {
    &SPARE
}

impl Waiter {
    pub(crate) fn make() -> &'static Waiter {
        let (state, thread) = (AtomicU32::new(RUNNING), AtomicUsize::new(0));
        Box::leak(Box::new(Waiter {
            fd: OnceLock::new(),
            state,
            thread,
            was_heir: AtomicBool::new(false),
            pending: Link::default(),
        }))
    }

    /// Only its thread does.
    pub(crate) fn open(&self) {
        if self.fd.get().is_some() {
            return;
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        if let Ok(fd) = rustix::event::eventfd(0, flags) {
            let fd = sys::move_to_high(Fd::from(fd));
            fd_words::mark_internal(fd.raw());
            let _ = self.fd.set(fd);
        }
    }

    /// -1, which poll(2) leaves out: it has none.
    pub fn fd(&self) -> i32 {
        self.fd.get().map_or(-1, Fd::raw)
    }

    /// Wakes the thread if it is parked, and keeps it from parking if it is about to. `true`: it was parked.
    pub fn kick(&self) -> bool {
        let parked = self.note_kick();
        if parked {
            self.wake();
        }
        parked
    }

    /// The same without the wake-up, which is for the caller to make if it was parked.
    pub(crate) fn note_kick(&self) -> bool {
        self.state.swap(KICKED, Ordering::SeqCst) == PARKED
    }

    pub(crate) fn quiet(&self) {
        if let Some(fd) = self.fd.get() {
            let _ = rustix::io::read(fd, &mut [0u8; 8]);
        }
    }
}

impl Sleeper for Waiter {
    fn link(&self) -> &Link<Waiter> {
        &self.pending
    }

    /// It is kicked already.
    fn wake(&self) {
        if let Some(fd) = self.fd.get() {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}

/// Who is parked on a queue set. Whenever somebody is and nobody leads, there is an heir, who is awake.
#[derive(Debug, Default)]
struct Parking {
    leader: Option<&'static Waiter>,
    /// It looks again every [`STUCK`].
    retries: bool,
    /// Was woken to lead: it parks again, or declines.
    heir: Option<&'static Waiter>,
    followers: Vec<&'static Waiter>,
}

fn is(a: &'static Waiter, b: &'static Waiter) -> bool {
    std::ptr::eq(a, b)
}

impl Parking {
    /// `true`: as the leader. A leader of the same thread stands still until this wait is over: it was interrupted by a
    /// signal, and this is its handler.
    fn enter(&mut self, me: &'static Waiter) -> bool {
        self.heir = None;
        match self.leader {
            None => {
                (self.leader, self.retries) = (Some(me), false);
                true
            }
            Some(leader) if leader.thread.load(Ordering::Relaxed) == me.thread.load(Ordering::Relaxed) => {
                (self.leader, self.retries) = (Some(me), false);
                self.followers.push(leader);
                true
            }
            Some(_) => {
                self.followers.push(me);
                false
            }
        }
    }

    /// Returns who is to be kicked.
    fn leave(&mut self, me: &'static Waiter) -> Option<&'static Waiter> {
        if self.leader.is_some_and(|leader| is(leader, me)) {
            self.leader = None;
            self.name_heir()
        } else {
            self.followers.retain(|waiter| !is(waiter, me));
            None
        }
    }

    /// Something must be retried soon. Returns a leader that does not yet, and is to be kicked.
    fn stuck(&mut self) -> Option<&'static Waiter> {
        self.leader.filter(|_| !std::mem::replace(&mut self.retries, true))
    }

    /// An heir's wait is over, and it has not parked again. Returns who is to be kicked.
    fn decline(&mut self, me: &'static Waiter) -> Option<&'static Waiter> {
        if self.heir.is_some_and(|heir| is(heir, me)) { self.name_heir() } else { None }
    }

    fn name_heir(&mut self) -> Option<&'static Waiter> {
        self.heir = self.followers.pop();
        self.heir.inspect(|heir| heir.was_heir.store(true, Ordering::SeqCst))
    }
}

/// The same behind a lock.
#[derive(Debug)]
pub struct ParkingLot(Lock<Parking>);

impl Default for ParkingLot {
    fn default() -> ParkingLot {
        ParkingLot(Lock::new(Parking::default()))
    }
}

impl ParkingLot {
    /// `true`: as the leader.
    pub(crate) fn enter(&self, me: &'static Waiter) -> bool {
        self.0.lock().enter(me)
    }

    /// The wait of `me` is over. Who led takes the interrupt that came (`quiet`) before anybody else can lead: what came for the next
    /// one is the next one's, as this thread may have all that it wants and not look at the queue set again.
    pub(crate) fn leave(&self, me: &'static Waiter, quiet: impl FnOnce()) {
        quiet();
        let heir = self.0.lock().leave(me);
        heir.inspect(|heir| _ = heir.kick());
    }

    /// Something here must be retried soon from now on: who leads may have gone to sleep before that, for longer.
    pub(crate) fn tell_stuck(&self) {
        let leader = self.0.lock().stuck();
        leader.inspect(|leader| _ = leader.kick());
    }

    /// Who parks has found something to be retried soon. Whether it is for it: one thread of all does so, who leads.
    pub(crate) fn retries(&self, leads: bool) -> bool {
        if leads {
            self.0.lock().retries = true
        } else {
            self.tell_stuck()
        }
        leads
    }

    /// An heir that does not park again.
    pub(crate) fn decline(&self, me: &'static Waiter) {
        let heir = self.0.lock().decline(me);
        heir.inspect(|heir| _ = heir.kick());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_thread(thread: usize) -> &'static Waiter {
        let waiter = Waiter::make();
        waiter.thread.store(thread, Ordering::Relaxed);
        waiter
    }

    /// Found by CPython's test_multiprocessing_fork on a busy machine: two threads slept, and nobody listened to the
    /// interrupt.
    #[test]
    fn an_heir_whose_own_wait_is_over_wakes_the_next_one() {
        let [first, second, third] = [1, 2, 3].map(of_thread);
        let mut parking = Parking::default();
        assert!(parking.enter(first) && !parking.enter(second) && !parking.enter(third));
        let heir = parking.leave(first).expect("one of the others");
        assert!(is(heir, third) && heir.was_heir.load(Ordering::SeqCst));
        assert!(parking.leave(heir).is_none(), "it is awake, and looks at its socket");
        assert!(parking.decline(heir).is_some_and(|next| is(next, second)), "it has what it waited for");
        assert!(parking.enter(second), "and leads");
    }

    #[test]
    fn an_heir_that_parks_again_leads_and_wakes_nobody() {
        let [first, second, third] = [1, 2, 3].map(of_thread);
        let mut parking = Parking::default();
        assert!(parking.enter(first) && !parking.enter(second) && !parking.enter(third));
        let heir = parking.leave(first).expect("one of the others");
        assert!(parking.leave(heir).is_none() && parking.enter(heir));
        assert!(parking.decline(heir).is_none(), "a leader declines nothing");
        assert!(parking.leave(heir).is_some_and(|next| is(next, second)));
    }

    #[test]
    fn whoever_comes_before_the_heir_leads_instead() {
        let [first, second, third] = [1, 2, 3].map(of_thread);
        let mut parking = Parking::default();
        assert!(parking.enter(first) && !parking.enter(second));
        let heir = parking.leave(first).expect("the other");
        assert!(parking.enter(third));
        assert!(parking.leave(heir).is_none() && parking.decline(heir).is_none());
        assert!(!parking.enter(heir));
    }

    /// Found by threads that are cancelled on a busy machine: while the ring was full each of 300 that slept looked again every ms, and the
    /// engine, which was to empty it, came to no processor.
    #[test]
    fn who_leads_retries_for_all_and_is_told_once() {
        let [leads, follows, heir] = [1, 2, 3].map(of_thread);
        let mut parking = Parking::default();
        assert!(parking.enter(leads) && !parking.enter(follows) && !parking.enter(heir));
        assert!(parking.stuck().is_some_and(|told| is(told, leads)), "it may sleep for longer");
        assert!(parking.stuck().is_none(), "it has been told");
        assert!(parking.leave(leads).is_some_and(|next| is(next, heir)) && parking.stuck().is_none());
        parking.leave(heir);
        assert!(
            parking.enter(heir) && parking.stuck().is_some_and(|told| is(told, heir)),
            "it does not know yet"
        );
    }

    /// Found by hostile tests beside busy loops: the thread of a connection that ended took the interrupt of the one that led after it,
    /// and all slept.
    #[test]
    fn a_leader_takes_its_interrupt_before_another_can_lead() {
        let [leads, comes] = [1, 2].map(of_thread);
        let parking = ParkingLot::default();
        assert!(parking.enter(leads));
        parking.leave(leads, || assert!(!parking.enter(comes), "the interrupt of the next one is taken"));
        assert!(comes.was_heir.load(Ordering::SeqCst), "it is told to look, and to lead");
    }

    #[test]
    fn a_handler_leads_in_the_place_of_the_thread_that_it_interrupted() {
        let [waits, handler] = [1, 1].map(of_thread);
        let mut parking = Parking::default();
        assert!(parking.enter(waits) && parking.enter(handler));
        assert!(parking.leave(handler).is_some_and(|next| is(next, waits)));
    }
}
