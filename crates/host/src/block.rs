//! A socket operation that waits: it tries until there is an outcome. The thread parks in between ([`crate::wait`]).

use crate::pace::Pace;
use crate::queue::QueueSet;
use crate::silence::Silence;
use crate::socket::SocketCall;
use crate::spin::{spin, spin_for};
use crate::wait::{ParkOn, TakenWaiter, decline_others, ended, interrupted, park, sleep};
use crate::waiter::{STUCK, Waiter};
use crate::{sys, wait_calls};
use std::cell::Cell;
use std::time::Duration;
use toe_abi::errno::Errno;

/// What a socket operation waits for.
#[derive(Debug)]
pub struct BlockOn<'a> {
    pub call: &'a SocketCall,
    /// When to give up, on the clock of [`sys::now`], and with which errno.
    pub deadline: Option<Duration>,
    /// When to give up because the engine says nothing, with the same errno.
    pub silence: Option<&'a Silence>,
    pub too_late: Errno,
    /// The program's descriptor is a listener's twin, which ends a sleep when it is readable: then this is set.
    pub twin_ready: Option<&'a Cell<bool>>,
    pub on_signal: OnSignal,
    /// Bytes that the call has moved: with any, Linux does not restart it.
    pub moved: Option<&'a Cell<usize>>,
    /// Of a call that wants many bytes: it need not be woken for each segment.
    pub pace: Option<&'a Pace<'a>>,
}

impl BlockOn<'_> {
    /// How long to wait until the next look at most.
    fn left(&self) -> Option<Duration> {
        let left = self.deadline.map(|deadline| deadline.saturating_sub(sys::now()));
        left.into_iter().chain(self.silence.map(Silence::look)).min()
    }
}

/// What a signal does to a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSignal {
    /// Its handler runs when the call is over; the caller may wait on. No point at which the thread may be cancelled.
    Defer,
    /// Its handler runs. If all of them have SA_RESTART, and there is no time limit, Linux restarts the call: ERESTART, or, where
    /// no switch layer stands around it, the wait begins anew; else EINTR.
    Restart,
    /// EINTR. Whether to restart, and when the handler may run, is for the caller to see ([`crate::wait::restarts`]).
    Tell,
}

/// Tries until there is an outcome. `attempt` drains by itself; `None` means nothing yet.
pub fn block_on<T>(
    on: BlockOn<'_>,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    if let Some(outcome) = attempt()? {
        return Ok(outcome);
    }
    on.call.hold()?;
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
    let socket = on.call.socket;
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
        if !on.call.is_on() {
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
    let by = || wait_calls::ppoll(&mut [], Some(pause), None);
    let (outcome, interrupted) = if on_signal == OnSignal::Defer { (by(), false) } else { sleep(None, by) };
    ended(outcome, interrupted)
}

fn parked<T>(
    on: &BlockOn<'_>,
    waiter: &'static Waiter,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    loop {
        let left = on.left();
        if left.is_some_and(|left| left.is_zero()) {
            return attempt()?.ok_or(on.too_late);
        }
        if let Some(pause) = on.pace.and_then(|pace| pace.coalescing_sleep(sys::now())) {
            let slept = sleep_through(left.map_or(pause, |left| left.min(pause)), waiter, on.on_signal);
            if !on.call.is_on() {
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
        let moved = on.call.socket.is_moved();
        let live: Vec<&'static QueueSet> =
            on.call.socket.owner_queues().filter(|owner_queue| !owner_queue.is_dead()).collect();
        let mut outcome = None;
        // Looked for each time: when another thread closes the program's, a copy takes its place.
        let pollfd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut twin = on.twin_ready.and_then(|_| on.call.socket.fds.known()).map(pollfd);
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
        if !on.call.is_on() {
            return Err(Errno::EBADF);
        }
        if moved {
            on.call.socket.settle()?;
        }
        if let Some(outcome) = attempt()? {
            return Ok(outcome);
        }
        result?;
    }
}

/// Bytes that are worth their transfer between two processors: less than the switch to who brings them costs.
const FEW: usize = 4096;
