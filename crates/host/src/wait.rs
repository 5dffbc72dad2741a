//! Waiting: look again a little ([`crate::looking`]), then park.
//!
//! A thread that has nothing to do registers its [`Waiter`] with what it waits for and parks in one `ppoll` on: its
//! waiter's own eventfd (whoever finds something for it *kicks* it), the interrupts of the queue sets that it leads,
//! the control sockets (an engine that ends wakes everybody) and whatever descriptors the call itself waits for.
//!
//! Of the threads parked on one queue set one *leads*: it alone arms and listens to the interrupt, drains the queue
//! set when it comes and kicks the threads whose sockets changed. When it leaves, it wakes one of the others, its *heir*,
//! which then leads, or, when its own wait is over, wakes another one. So an interrupt wakes one thread and not all.
//!
//! Used by the socket operations through [`block_on`], by [`crate::epoll`] and [`crate::poll`] through [`park`].

use crate::errno::ERESTART;
use crate::pace::Pace;
use crate::queue::QueueSet;
use crate::socket::Turn;
use crate::spin::spin_for;
pub use crate::spin::{spin, spin_beside_peer, yield_no_more};
use crate::stack::Stack;
use crate::waiter::{self, KICKED, PARKED, RUNNING, STUCK, Waiter};
use crate::{cancel, select, signals, sys, thread};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::errno::Errno;

/// Bytes that are worth their transfer between two processors: less than the switch to who brings them costs.
const FEW: usize = 4096;

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

/// In the child of a fork: all waiters are the parent's.
#[cold]
pub fn after_fork_in_child() {
    waiter::forget_all(thread::with(|thread| thread.waiter.take()));
}

impl TakenWaiter {
    /// One that this thread does not wait with.
    pub fn take() -> TakenWaiter {
        let (kept, thread) = thread::with(|thread| (thread.waiter.take(), std::ptr::from_ref(thread).addr()));
        let waiter = kept.unwrap_or_else(waiter::spare);
        waiter.open();
        waiter.thread.store(thread, Ordering::Relaxed);
        waiter.state.store(RUNNING, Ordering::SeqCst);
        TakenWaiter(waiter)
    }
}

/// `me` leads none of the queue sets whose heir it is but those of `queues`: its socket may have another home since it was woken.
fn decline_others(me: &'static Waiter, queues: &[&'static QueueSet]) {
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
    let mut stacks: Vec<&'static Stack> = Vec::with_capacity(1);
    let mut led: Vec<&'static QueueSet> = Vec::with_capacity(on.queues.len());
    let soon = |timeout: Option<Duration>| Some(timeout.map_or(STUCK, |t| t.min(STUCK)));
    let mut timeout = if me.fd.get().is_some() { on.timeout } else { soon(on.timeout) };
    for queue in on.queues.iter().filter(|queue| !queue.is_dead()) {
        if !stacks.iter().any(|stack| std::ptr::eq(*stack, queue.stack)) {
            stacks.push(queue.stack);
        }
        if queue.parking.enter(me) {
            led.push(queue);
        }
        if queue.arm() {
            timeout = soon(timeout);
        }
    }
    polled.extend(led.iter().map(|queue| entry(queue.irq_fd, libc::POLLIN)));
    polled.extend(stacks.iter().map(|stack| entry(stack.control_fd(), libc::POLLRDHUP)));
    let fds_at = polled.len();
    polled.extend_from_slice(on.fds);

    let (outcome, interrupted) = if ready() || me.state.load(Ordering::SeqCst) == KICKED {
        (Ok(0), false)
    } else {
        let mut by = || match sys::ppoll(&mut polled, timeout, on.sigmask) {
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
        for (i, stack) in stacks.iter().enumerate() {
            stack.on_control(polled[1 + led.len() + i].revents);
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
fn ended(outcome: Result<usize, Errno>, interrupted: bool) -> Result<(), Errno> {
    if interrupted { Err(Errno::EINTR) } else { outcome.map(|_| ()) }
}

/// What a socket operation waits for.
#[derive(Debug)]
pub struct BlockOn<'a> {
    pub turn: &'a Turn,
    /// When to give up, on the clock of [`sys::now`], and with which errno.
    pub deadline: Option<Duration>,
    pub too_late: Errno,
    /// The program's descriptor is a listener's twin, which ends a sleep when it is readable: then this is set.
    pub twin_ready: Option<&'a Cell<bool>>,
    pub on_signal: OnSignal,
    /// Bytes that the call has moved: with any, Linux does not restart it.
    pub moved: Option<&'a Cell<usize>>,
    /// Of a call that wants many bytes: it need not be woken for each segment.
    pub pace: Option<&'a Pace<'a>>,
}

/// What a signal does to a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSignal {
    /// Its handler runs when the call is over; the caller may wait on. No point at which the thread may be cancelled.
    Defer,
    /// Its handler runs. If all of them have SA_RESTART, and there is no time limit, Linux restarts the call: ERESTART, or, where
    /// no switch layer stands around it, the wait begins anew; else EINTR.
    Restart,
    /// EINTR. Whether to restart, and when the handler may run, is for the caller to see ([`restarts`]).
    Tell,
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

/// Tries until there is an outcome. `attempt` drains by itself; `None` means nothing yet.
pub fn block_on<T>(
    on: BlockOn<'_>,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    if let Some(outcome) = attempt()? {
        return Ok(outcome);
    }
    on.turn.hold()?;
    let found = match on.moved {
        Some(moved) => {
            let had = moved.get();
            spin_for(|| moved.get() - had > FEW, attempt)?
        }
        None => spin(attempt)?,
    };
    if let Some(outcome) = found {
        return Ok(outcome);
    }
    let socket = on.turn.socket;
    loop {
        let me = TakenWaiter::take();
        socket.add_waiter(&me);
        let outcome = parked(&on, &me, attempt);
        socket.remove_waiter(&me);
        drop(me);
        let is_interrupted = on.on_signal == OnSignal::Restart && matches!(outcome, Err(Errno::EINTR));
        let has_moved = on.moved.is_some_and(|moved| moved.get() > 0);
        if !is_interrupted || has_moved {
            return outcome;
        }
        interrupted(on.deadline.is_some())?;
        if !on.turn.is_on() {
            return Err(Errno::EBADF);
        }
        if let Some(outcome) = attempt()? {
            return Ok(outcome);
        }
    }
}

/// Sleeps so long whatever comes, but for signals.
fn sleep_through(pause: Duration, me: &'static Waiter, on_signal: OnSignal) -> Result<(), Errno> {
    // Somebody else is to lead meanwhile.
    decline_others(me, &[]);
    let by = || sys::ppoll(&mut [], Some(pause), None);
    let (outcome, interrupted) = if on_signal == OnSignal::Defer { (by(), false) } else { sleep(None, by) };
    ended(outcome, interrupted)
}

fn parked<T>(
    on: &BlockOn<'_>,
    waiter: &'static Waiter,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    loop {
        let left = on.deadline.map(|deadline| deadline.saturating_sub(sys::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return attempt()?.ok_or(on.too_late);
        }
        if let Some(pause) = on.pace.and_then(|pace| pace.coalescing_sleep(sys::now())) {
            let slept = sleep_through(left.map_or(pause, |left| left.min(pause)), waiter, on.on_signal);
            if !on.turn.is_on() {
                return Err(Errno::EBADF);
            }
            // Twice: what ends the call otherwise than by bytes (the direction is shut, an error) shows only where there are no more.
            for _ in 0..2 {
                if let Some(outcome) = attempt()? {
                    return Ok(outcome);
                }
            }
            slept?;
            continue;
        }
        let moved = on.turn.socket.is_moved();
        let live: Vec<&'static QueueSet> = on.turn.socket.homes().filter(|home| !home.is_dead()).collect();
        let mut outcome = None;
        // Looked for each time: when another thread closes the program's, a copy takes its place.
        let pollfd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut twin = on.twin_ready.and_then(|_| on.turn.socket.descriptor()).map(pollfd);
        let result = park(
            ParkOn {
                waiter,
                queues: &live,
                fds: twin.as_mut_slice(),
                // Another process has the flow now: give it some time before taking it back.
                timeout: if moved { Some(left.map_or(STUCK, |left| left.min(STUCK))) } else { left },
                sigmask: None,
                cancellable: on.on_signal != OnSignal::Defer,
            },
            &mut || {
                outcome = attempt().transpose();
                outcome.is_some()
            },
        );
        if let (Some(twin), Some(ready)) = (twin, on.twin_ready) {
            ready.set(twin.revents != 0);
        }
        if let Some(outcome) = outcome {
            return outcome;
        }
        if !on.turn.is_on() {
            return Err(Errno::EBADF);
        }
        if moved {
            on.turn.socket.settle()?;
        }
        if let Some(outcome) = attempt()? {
            return Ok(outcome);
        }
        result?;
    }
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
