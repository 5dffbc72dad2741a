//! Wake-ups: all that the engine does to a descriptor on which a host may wait.
//!
//! A host can wait for one of its descriptors as often as it likes: by some hundred thousand entries of its epolls, say. Whoever wakes it
//! goes through all of them, in the kernel, and cannot cease. So each such call of the engine's thread is made by [`Pace::make`], which
//! takes the time: once those of a user take long, his own thread makes them, until they are short again. What the calls are is
//! [`Wake`]; what else touches such a descriptor, its last close above all, is the user's thread's in any case
//! ([`super::pages::PagesOut::close`]). docs/security.md has the list.
//!
//! Used by whatever answers, interrupts and delivers; carried out by `user`.

use super::socket;
use crate::datagrams::raw::Packet;
use rustix::time::ClockId;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use toe_abi::attach::Message;
use toe_ring::IrqLine;
use toe_ring::irq::Signal;

/// A wake-up takes a few µs, or some tens where the processor of who is woken sleeps or the machine is not the kernel's own. What is above
/// that counts.
const USUAL_NS: u64 = 60_000;
/// One that seemed longer has all measured closely for so many times as long, and one that was has the user's thread make them for as long. So
/// the engine's thread makes two long ones in that time at most, whatever short ones come between.
const HANDED_FOR: u64 = 16;

/// One that a user's thread is to make.
#[derive(Debug)]
pub(crate) enum Wake {
    /// Of a queue set.
    Interrupt(Arc<IrqLine>),
    /// By a control connection, with descriptors.
    Answer { socket: Arc<OwnedFd>, message: Box<Message>, fds: Vec<OwnedFd> },
    /// The end of one.
    HangUp(Arc<OwnedFd>),
    /// To a UDP socket, by the kernel.
    Packet(Packet),
}

impl Wake {
    /// Makes it; what was sent with it is still to be closed.
    fn make(self) -> Vec<OwnedFd> {
        match self {
            Wake::Interrupt(line) => line.signal(),
            Wake::Answer { socket, message, fds } => {
                let shown: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                if socket::send(&*socket, &message, &shown).is_err() {
                    // A host that does not read loses its connection.
                    socket::hang_up(&*socket);
                }
                return fds;
            }
            Wake::HangUp(socket) => socket::hang_up(&*socket),
            Wake::Packet(packet) => packet.send(),
        }
        Vec::new()
    }
}

/// How long the wake-ups of one user take, and who makes them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// They are measured closely until then.
    doubted_until_ns: AtomicU64,
    /// The user's thread makes them until then.
    handed_until_ns: AtomicU64,
    /// Handed to the user's thread, and not made yet: later ones do not overtake them.
    handed: AtomicU32,
    /// Handed over in all, of all users.
    in_all: Arc<AtomicU64>,
}

impl Pace {
    /// `in_all` counts those that are handed over.
    pub(super) fn new(in_all: &Arc<AtomicU64>) -> Pace {
        Pace { in_all: Arc::clone(in_all), ..Pace::default() }
    }

    /// Makes one on the engine's thread, or says (`None`) that it is to be handed over.
    pub(super) fn make<R>(&self, wake: impl FnOnce() -> R) -> Option<R> {
        let began_ns = ns_of(ClockId::Monotonic);
        if self.is_long(began_ns) || self.handed.load(Ordering::Acquire) > 0 {
            self.handed.fetch_add(1, Ordering::Relaxed);
            self.in_all.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if began_ns < self.doubted_until_ns.load(Ordering::Relaxed) {
            return Some(self.make_closely(wake));
        }
        let made = wake();
        // Who was woken may have had the processor meanwhile, so that says not much.
        self.doubt(began_ns, ns_of(ClockId::Monotonic).saturating_sub(began_ns));
        Some(made)
    }

    /// One that began then seemed to take so long.
    fn doubt(&self, began_ns: u64, took_ns: u64) {
        if took_ns > USUAL_NS {
            self.doubted_until_ns
                .store(began_ns.saturating_add((HANDED_FOR + 1) * took_ns), Ordering::Relaxed);
        }
    }

    fn is_long(&self, now_ns: u64) -> bool {
        now_ns < self.handed_until_ns.load(Ordering::Acquire)
    }

    /// Makes one, and notes how much of this thread's time it took.
    fn make_closely<R>(&self, wake: impl FnOnce() -> R) -> R {
        let before_ns = ns_of(ClockId::ThreadCPUTime);
        let made = wake();
        let took_ns = ns_of(ClockId::ThreadCPUTime).saturating_sub(before_ns);
        self.note(ns_of(ClockId::Monotonic), took_ns);
        made
    }

    /// One that has just been made took so long.
    fn note(&self, now_ns: u64, took_ns: u64) {
        let excess_ns = took_ns.saturating_sub(USUAL_NS);
        if excess_ns > 0 {
            let from_ns = self.handed_until_ns.load(Ordering::Relaxed).max(now_ns);
            let until_ns = from_ns.saturating_add(HANDED_FOR * excess_ns);
            self.handed_until_ns.store(until_ns, Ordering::Release);
            // The first that this thread makes again are measured, too.
            self.doubted_until_ns
                .fetch_max(until_ns.saturating_add(HANDED_FOR * excess_ns), Ordering::Relaxed);
        }
    }

    /// Makes one that was handed over: on the user's thread. What was sent with it is still to be closed.
    pub(super) fn make_handed(&self, wake: Wake) -> Vec<OwnedFd> {
        let sent = self.make_closely(|| wake.make());
        self.handed.fetch_sub(1, Ordering::Release);
        sent
    }

    /// How many wait for the user's thread.
    pub(super) fn handed(&self) -> u32 {
        self.handed.load(Ordering::Relaxed)
    }

    /// Nobody is there to make one.
    pub(super) fn forget_handed(&self) {
        self.handed.fetch_sub(1, Ordering::Release);
    }
}

fn ns_of(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: u64 = 1_000_000_000;

    #[test]
    fn a_long_one_has_the_users_thread_make_them_for_a_while_in_proportion() {
        let pace = Pace::default();
        pace.note(NOW_NS, USUAL_NS);
        assert!(!pace.is_long(NOW_NS), "as long as usual");
        pace.note(NOW_NS, USUAL_NS + 1_000);
        assert!(pace.is_long(NOW_NS + 1_000 * HANDED_FOR - 1));
        assert!(!pace.is_long(NOW_NS + 1_000 * HANDED_FOR));
    }

    #[test]
    fn while_they_are_long_on_the_users_thread_they_stay_there() {
        let pace = Pace::default();
        pace.note(NOW_NS, USUAL_NS + 1_000);
        pace.note(NOW_NS + 10, USUAL_NS + 2_000);
        assert!(pace.is_long(NOW_NS + 3_000 * HANDED_FOR - 1));
        assert!(!pace.is_long(NOW_NS + 3_000 * HANDED_FOR));
    }

    /// Twice as many were handed over each time once: on a virtual machine beside a tracer it was all of php-fpm's in the end, for good.
    #[test]
    fn moments_without_a_processor_do_not_add_up() {
        let pace = Pace::default();
        for second in 1..1_000 {
            let now_ns = second * NOW_NS;
            assert!(!pace.is_long(now_ns), "second {second}");
            pace.note(now_ns, 4_000_000);
        }
    }

    #[test]
    fn none_overtakes_one_that_was_handed_over() {
        let pace = Pace::default();
        pace.note(ns_of(ClockId::Monotonic), u64::MAX / 2 / HANDED_FOR);
        assert_eq!(pace.make(|| 7), None);
        assert_eq!(pace.make(|| 7), None);
        pace.handed_until_ns.store(0, Ordering::Relaxed);
        assert_eq!(pace.make(|| 7), None, "two are on their way");
        (0..3).for_each(|_| pace.forget_handed());
        assert_eq!(pace.make(|| 7), Some(7));
        assert_eq!(pace.in_all.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_first_ones_after_long_ones_are_measured() {
        let pace = Pace::default();
        pace.note(NOW_NS, USUAL_NS + 1_000);
        let until_ns = pace.handed_until_ns.load(Ordering::Relaxed);
        assert!(pace.doubted_until_ns.load(Ordering::Relaxed) > until_ns);
    }

    /// A user's long ones at one descriptor, and short ones at another between them, which used up what was measured.
    #[test]
    fn short_ones_between_do_not_hide_long_ones() {
        let pace = Pace::default();
        pace.doubt(NOW_NS, USUAL_NS + 1_000);
        (0..100).for_each(|_| pace.doubt(NOW_NS, USUAL_NS));
        (0..100).for_each(|_| pace.note(NOW_NS, USUAL_NS));
        let measured_until_ns = pace.doubted_until_ns.load(Ordering::Relaxed);
        assert_eq!(measured_until_ns, NOW_NS + (HANDED_FOR + 1) * (USUAL_NS + 1_000));
        pace.note(NOW_NS, USUAL_NS + 1);
        assert_eq!(pace.doubted_until_ns.load(Ordering::Relaxed), measured_until_ns, "not sooner");
    }
}
