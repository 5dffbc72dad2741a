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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use toe_abi::attach::Message;
use toe_ring::IrqLine;
use toe_ring::irq::Signal;

/// A wake-up takes a few µs, or some tens where the processor of who is woken sleeps or the machine is not the kernel's own. What is above
/// that counts.
const USUAL_NS: u64 = 60_000;
/// So much above it in all, and they are long.
const EXCESS_MAX_NS: u64 = 4 * USUAL_NS;
/// How many are measured closely after one that seemed long: few, as on a busy machine many seem so.
const DOUBTS: u32 = 4;
/// How many short ones in a row end that. Twice as many each time: who makes them long again and again gains nothing by it.
const SHORT_AGAIN: u32 = 64;
const TIMES_MAX: u32 = 14;

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
                let beside: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                if socket::send(&*socket, &message, &beside).is_err() {
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
    /// Those that are still to be measured closely.
    doubts: AtomicU32,
    excess_ns: AtomicU64,
    /// So many short ones in a row, and the engine's thread makes them again. 0: it does.
    long: AtomicU32,
    /// How often they have been long.
    times: AtomicU32,
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
        if self.is_long() || self.handed.load(Ordering::Acquire) > 0 {
            self.handed.fetch_add(1, Ordering::Relaxed);
            self.in_all.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let doubts = self.doubts.load(Ordering::Relaxed);
        if doubts > 0 {
            let (made, ns) = closely(wake);
            self.doubts.store(doubts - 1, Ordering::Relaxed);
            self.note(ns);
            return Some(made);
        }
        let began = Instant::now();
        let made = wake();
        // Who was woken may have had the processor meanwhile, so that says not much.
        if began.elapsed() > Duration::from_nanos(USUAL_NS) {
            self.doubts.store(DOUBTS, Ordering::Relaxed);
        }
        Some(made)
    }

    fn is_long(&self) -> bool {
        self.long.load(Ordering::Acquire) > 0
    }

    /// One took so much of the thread's time.
    fn note(&self, ns: u64) {
        let excess = self.excess_ns.load(Ordering::Relaxed).saturating_add(ns).saturating_sub(USUAL_NS);
        let is_long = excess > EXCESS_MAX_NS;
        self.excess_ns.store(if is_long { 0 } else { excess }, Ordering::Relaxed);
        if is_long {
            let times = self.times.load(Ordering::Relaxed);
            self.times.store((times + 1).min(TIMES_MAX), Ordering::Relaxed);
            self.doubts.store(0, Ordering::Relaxed);
            self.long.store(SHORT_AGAIN << times, Ordering::Release);
        }
    }

    /// Makes one that was handed over: on the user's thread. What was sent with it is still to be closed.
    pub(super) fn make_handed(&self, wake: Wake) -> Vec<OwnedFd> {
        let (sent, ns) = closely(|| wake.make());
        let again = SHORT_AGAIN << self.times.load(Ordering::Relaxed).saturating_sub(1);
        let left = self.long.load(Ordering::Relaxed);
        let left = if ns > USUAL_NS { again } else { left.saturating_sub(1) };
        self.long.store(left, Ordering::Release);
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

/// Does something, and says how much of this thread's time it took.
fn closely<R>(wake: impl FnOnce() -> R) -> (R, u64) {
    let before = thread_ns();
    let made = wake();
    (made, thread_ns().saturating_sub(before))
}

fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses so much of this thread's time.
    fn work(ns: u64) {
        let before = thread_ns();
        while thread_ns() - before < ns {
            std::hint::spin_loop();
        }
    }

    fn long(pace: &Pace) {
        assert_eq!(pace.make(|| work(2 * EXCESS_MAX_NS)), Some(()), "once that is only seen");
        assert_eq!(pace.make(|| work(2 * EXCESS_MAX_NS)), Some(()), "and then measured");
    }

    fn hand_over(pace: &Pace, count: u32) {
        for n in 0..count {
            assert_eq!(pace.make(|| work(2 * EXCESS_MAX_NS)), None, "{n}: by the user's thread");
        }
    }

    #[test]
    fn long_ones_go_to_the_users_thread_until_they_are_short_again() {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .expect("a pair");
        drop(theirs);
        let socket = Arc::new(ours);
        let pace = Pace::default();
        for again in [SHORT_AGAIN, 2 * SHORT_AGAIN] {
            long(&pace);
            // Some of them may be long because of what else the machine does.
            let mut made = 0;
            while pace.is_long() {
                hand_over(&pace, 1);
                pace.make_handed(Wake::HangUp(Arc::clone(&socket)));
                made += 1;
            }
            assert!(made >= again, "{made}");
        }
        assert_eq!(pace.make(|| 7), Some(7), "by the engine's");
    }

    #[test]
    fn none_overtakes_one_that_was_handed_over() {
        let pace = Pace::default();
        long(&pace);
        hand_over(&pace, 2);
        pace.long.store(0, Ordering::Relaxed);
        assert_eq!(pace.make(|| ()), None, "two are on their way");
        (0..3).for_each(|_| pace.forget_handed());
        assert_eq!(pace.make(|| ()), Some(()));
        assert_eq!(pace.in_all.load(Ordering::Relaxed), 3);
    }

    /// What one takes of the thread's time counts, not how long it waits for its processor.
    #[test]
    fn only_what_is_above_the_usual_counts() {
        let pace = Pace::default();
        for ns in [USUAL_NS, 0, USUAL_NS, 2 * USUAL_NS, 3 * USUAL_NS, USUAL_NS / 2] {
            pace.note(ns);
            assert!(!pace.is_long(), "{ns}");
        }
        pace.note(USUAL_NS + EXCESS_MAX_NS);
        assert!(pace.is_long());
    }
}
