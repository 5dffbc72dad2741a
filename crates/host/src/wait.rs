//! Waiting: look again a little ([`crate::looking`]), then park.
//!
//! A thread that has nothing to do registers its [`Waiter`] with what it waits for and parks in one `ppoll` on: its
//! waiter's own eventfd (whoever finds something for it *kicks* it), the interrupts of the queue sets that it leads,
//! the control sockets (an engine that ends wakes everybody) and whatever descriptors the call itself waits for.
//!
//! Of the threads parked on one queue set one *leads*: it alone arms and listens to the interrupt, drains the queue
//! set when it comes and kicks the threads whose sockets changed. When it leaves, it wakes one of the others, its *heir*,
//! which then leads, or, when its own wait is over, wakes another one. So an interrupt wakes one thread and not all. Who leads also
//! retries for all what no interrupt announces.
//!
//! Used by the socket operations through [`crate::block::block_on`], by [`crate::epoll`] and [`crate::poll`] through [`park`].

use crate::errno::ERESTART;
use crate::queue::QueueSet;
use crate::queue::sets;
use crate::session::Session;
pub use crate::spin::{spin, spin_with_peer, yield_no_more};
use crate::stack::Stack;
use crate::waiter::{self, KICKED, PARKED, RUNNING, STUCK, Waiter};
use crate::{cancel, select, signals, sys, thread, wait_calls};
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::errno::Errno;

/// A waiter for the length of a wait. A signal's handler that waits while its thread does gets another one.
#[derive(Debug)]
pub struct TakenWaiter(&'static Waiter);

impl std::ops::Deref for TakenWaiter {
    type Target = &'static Waiter;

    fn deref(&self) -> &&'static Waiter {
        &self.0
    }
}

impl Drop for TakenWaiter {
    fn drop(&mut self) {
        decline_others(self.0, &[]);
        // A thread that is ending has nobody left to give it back.
        let keeps = thread::must_give_back();
        let spare =
            if keeps { thread::with(|thread| thread.waiter.replace(Some(self.0))) } else { Some(self.0) };
        spare.into_iter().for_each(waiter::give_back);
    }
}

impl TakenWaiter {
    /// One that this thread does not wait with.
    pub fn take() -> TakenWaiter {
        let (cached, thread) =
            thread::with(|thread| (thread.waiter.take(), std::ptr::from_ref(thread).addr()));
        let waiter = cached.unwrap_or_else(waiter::spare);
        waiter.open();
        waiter.thread.store(thread, Ordering::Relaxed);
        waiter.state.store(RUNNING, Ordering::SeqCst);
        TakenWaiter(waiter)
    }
}

/// `me` leads none of the queue sets whose heir it is but those of `queues`: its socket may have another owner queue since it was woken.
pub(crate) fn decline_others(me: &'static Waiter, queues: &[&'static QueueSet]) {
    if me.was_heir.swap(false, Ordering::SeqCst) {
        let parks_on = |queue: &QueueSet| queues.iter().any(|q| std::ptr::eq(*q, queue) && !q.is_dead());
        let others = Stack::all_attached().flat_map(Stack::queue_sets).filter(|queue| !parks_on(queue));
        others.for_each(|queue| queue.parking.decline(me));
    }
}

/// What a thread parks on.
#[derive(Debug)]
pub struct ParkOn<'a> {
    pub waiter: &'static Waiter,
    pub queues: &'a [&'static QueueSet],
    /// Descriptors of the call itself; `revents` is filled in.
    pub fds: &'a mut [libc::pollfd],
    pub timeout: Option<Duration>,
    pub sigmask: Option<&'a libc::sigset_t>,
    /// Signals end the sleep, and it is a point at which the thread may be cancelled: then ECANCELED.
    pub cancellable: bool,
}

/// Parks until kicked, interrupted, a descriptor is ready, an engine ends, or the time is over. `ready` is asked once
/// after everything is armed: `true` means do not sleep. EINTR when a signal came; nothing else is told, the caller
/// looks again.
pub fn park(on: ParkOn<'_>, ready: &mut dyn FnMut() -> bool) -> Result<(), Errno> {
    let me = on.waiter;
    decline_others(me, on.queues);
    // One that was kicked since its last look stays so, and does not sleep: what it was told of may be nothing that `ready` asks
    // for, such as that another thread has given its connection away, or has taken it into a queue set that is not in `queues`.
    let _ = me.state.compare_exchange(RUNNING, PARKED, Ordering::SeqCst, Ordering::SeqCst);
    let mut polled = Vec::with_capacity(on.queues.len() * 2 + 2 + on.fds.len());
    let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
    polled.push(entry(me.fd(), libc::POLLIN));
    let mut sessions: Vec<&'static Session> = Vec::with_capacity(1);
    let mut led: Vec<&'static QueueSet> = Vec::with_capacity(on.queues.len());
    let soon = |timeout: Option<Duration>| Some(timeout.map_or(STUCK, |t| t.min(STUCK)));
    let mut timeout = if me.fd.get().is_some() { on.timeout } else { soon(on.timeout) };
    for queue in on.queues.iter().filter(|queue| !queue.is_dead()) {
        if !sessions.iter().any(|session| std::ptr::eq(*session, queue.session)) {
            sessions.push(queue.session);
        }
        let leads = queue.parking.enter(me);
        if leads {
            led.push(queue);
        }
        if queue.arm() && queue.parking.retries(leads) {
            timeout = soon(timeout);
        }
    }
    polled.extend(led.iter().map(|queue| entry(queue.irq_fd, libc::POLLIN)));
    polled.extend(sessions.iter().map(|session| entry(session.control_fd(), libc::POLLRDHUP)));
    let fds_at = polled.len();
    polled.extend_from_slice(on.fds);

    let (outcome, interrupted) = if ready() || me.state.load(Ordering::SeqCst) == KICKED {
        (Ok(0), false)
    } else {
        let mut by = || match wait_calls::ppoll(&mut polled, timeout, on.sigmask) {
            // They are more than RLIMIT_NOFILE, which is for those of the call alone.
            Err(Errno::EINVAL) => select::sleep(&mut polled, fds_at, timeout, on.sigmask),
            outcome => outcome,
        };
        if on.cancellable { sleep(on.sigmask, by) } else { (by(), false) }
    };
    me.state.store(RUNNING, Ordering::SeqCst);
    let any = outcome.is_ok_and(|n| n > 0);
    let signalled = |at: usize| any && polled.get(at).is_some_and(|p: &libc::pollfd| p.revents != 0);
    for queue in on.queues {
        let leads_at = led.iter().position(|led| std::ptr::eq(*led, *queue));
        queue.parking.leave(me, || {
            if leads_at.is_some_and(|at| signalled(1 + at)) {
                queue.quiet();
            }
        });
    }
    if any {
        if signalled(0) {
            me.quiet();
        }
        for (i, session) in sessions.iter().enumerate() {
            sets::on_control(session, polled[1 + led.len() + i].revents);
        }
        on.fds.copy_from_slice(&polled[fds_at..]);
    }
    ended(outcome, interrupted)
}

/// Sleeps by a system call that has this mask, at a point of cancellation. Also says whether a signal has come: then its
/// handler has yet to run, and the thread must not sleep before it has (`signals::let_handlers_run`).
pub fn sleep(
    sigmask: Option<&libc::sigset_t>,
    by: impl FnOnce() -> Result<usize, Errno>,
) -> (Result<usize, Errno>, bool) {
    cancel::sleeping(|| signals::asleep(sigmask.map(sys::mask_of), by))
}

/// What a sleep tells: a signal that came counts, also when the sleep then ended by something else, which the caller finds.
pub(crate) fn ended(outcome: Result<usize, Errno>, interrupted: bool) -> Result<(), Errno> {
    if interrupted { Err(Errno::EINTR) } else { outcome.map(|_| ()) }
}

/// Whether a wait that a signal has ended is to be begun anew.
pub fn restarts(has_time_limit: bool) -> bool {
    !has_time_limit && signals::all_restart().unwrap_or_else(sys::should_restart)
}

/// A signal has ended the sleep of a wait that has moved nothing: its handlers run, and the wait goes on. EINTR, ERESTART: the call ends by that.
pub fn interrupted(has_time_limit: bool) -> Result<(), Errno> {
    if !restarts(has_time_limit) {
        return Err(Errno::EINTR);
    }
    if signals::is_in_a_call() {
        // The handler may not return, and the call finds its descriptor anew: all of it begins again.
        return Err(ERESTART);
    }
    signals::let_handlers_run();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by `make stress`: a thread in recv slept for ever although its connection had been given back before a fork.
    #[test]
    fn who_is_kicked_before_he_parks_does_not_sleep() {
        let (done, slept) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let me = TakenWaiter::take();
            me.kick();
            let on = ParkOn {
                waiter: &me,
                queues: &[],
                fds: &mut [],
                timeout: None,
                sigmask: None,
                cancellable: false,
            };
            let outcome = park(on, &mut || false);
            assert!(!me.kick(), "it is awake");
            done.send(outcome).expect("who waits for it");
        });
        assert_eq!(slept.recv_timeout(Duration::from_secs(10)), Ok(Ok(())));
    }
}
