//! `epoll_wait` over both worlds.

use crate::epoll::{ALWAYS, EDGE, EpollSet, NO_DESCRIPTOR, ONE_SHOT, WAKE_TAG, Watched, has_twin, once};
use crate::queue::QueueSet;
use crate::spin::spin_for;
use crate::wait::{ParkOn, TakenWaiter, park, sleep};
use crate::waiter::Waiter;
use crate::{fd_table, sys, wait_calls};
use rustix::fd::RawFd;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::errno::Errno;

/// How long a socket that another process has claimed while this one waits is left to it. Both wait for its events, as
/// they may, but only one at a time gets them.
pub const LEFT_TO_OTHERS: Duration = Duration::from_millis(10);

/// `epoll_pwait2`. `timeout` `None`: no limit. EINTR: a signal came; EINVAL: no room in `events`.
///
/// With something ready on the engine it makes no system call, unless the kernel's epoll has something in it, too: then that
/// is asked in each wait, so that what wakes a thread pool or a timer is not kept waiting by busy connections.
pub fn wait(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let Some(set) = fd_table::epoll_set(epfd) else {
        return sleep(sigmask, || wait_calls::epoll_pwait(epfd, events, timeout, sigmask)).0;
    };
    if events.is_empty() {
        return Err(Errno::EINVAL);
    }
    wait_with_lanes(set, epfd, events, timeout, sigmask)
}

/// With UDP sockets in the set whose datagrams may come past the kernel.
fn wait_with_lanes(
    set: &'static EpollSet,
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let sleeper = set.sleep_on();
    let is_brief = timeout.is_some_and(|timeout| timeout.is_zero());
    let lanes = set.begin_lane_wait(epfd, is_brief);
    let Some(lanes) = lanes.as_ref().filter(|lanes| lanes.is_ready()) else {
        let found = wait_in(set, epfd, events, timeout, sigmask);
        drop(lanes);
        drop(sleeper);
        return found;
    };
    // As of the other two worlds: of one place every other turn.
    let wait_count = set.wait_count.fetch_add(1, Ordering::Relaxed);
    let share = (events.len() + wait_count as usize % 2) / 2;
    let found = match share {
        0 => 0,
        _ => wait_in(set, epfd, &mut events[..share], Some(Duration::ZERO), None).unwrap_or(0),
    };
    Ok(set.tell_lanes(lanes, events, found))
}

fn wait_in(
    set: &'static EpollSet,
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
    let left = || deadline.map(|deadline| deadline.saturating_sub(sys::now()));
    let mut sleeper = None;
    loop {
        if set.is_kernels_alone() {
            sleeper.get_or_insert_with(|| set.sleep_on());
            match set.wait_in_kernel(epfd, events, left(), sigmask)? {
                Some(found) => return Ok(found),
                None => continue,
            }
        }
        set.owner_queues().for_each(|owner_queue| owner_queue.session.settle_first());
        set.wake_listeners();
        set.take_back_moved();
        let mut found = set.collect(epfd, events)?;
        if found == 0 {
            set.owner_queues().for_each(|owner_queue| owner_queue.look());
            // That another process has one of them may have been found just now.
            set.take_back_moved();
            found = set.harvest(events);
        }
        let is_brief = timeout.is_some_and(|timeout| timeout.is_zero());
        if found == 0
            && is_brief
            && set.owner_queues().fold(false, |waited, owner_queue| waited | owner_queue.session.settle())
        {
            found = set.collect(epfd, events)?;
        }
        if found > 0 || is_brief {
            return Ok(found);
        }
        sleeper.get_or_insert_with(|| set.sleep_on());
        return set.wait_in_both(epfd, events, deadline, sigmask);
    }
}

impl EpollSet {
    /// What is ready now, of both worlds.
    fn collect(&self, epfd: RawFd, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
        self.drain();
        // With it are all sets in this one.
        if !self.kernel_fds.load(Ordering::Relaxed) {
            return Ok(self.harvest(events));
        }
        let nestings = self.nestings();
        // Half of the room at first, so that neither side keeps the other out; of one place every other turn.
        let wait_count = self.wait_count.fetch_add(1, Ordering::Relaxed);
        let share =
            if self.has_sockets() { (events.len() + wait_count as usize % 2) / 2 } else { events.len() };
        let mut found = if share > 0 { self.ask_kernel(epfd, &mut events[..share])? } else { 0 };
        found += self.harvest(&mut events[found..]);
        if found == 0 && share == 0 {
            found = self.ask_kernel(epfd, events)?;
        }
        let (reported, room) = events.split_at_mut(found);
        Ok(found + self.harvest_nested(epfd, (reported, nestings), room))
    }

    fn ask_kernel(&self, epfd: RawFd, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
        loop {
            let found = wait_calls::epoll_pwait(epfd, events, Some(Duration::ZERO), None)?;
            let left = self.without_wake(epfd, events, found);
            self.note_fired(epfd, &events[..left]);
            let reported = self.without_spent(epfd, events, left);
            // What was left out may have taken the room of something else.
            if reported > 0 || left == 0 {
                return Ok(reported);
            }
        }
    }

    /// The plain kernel call, for a set that is the kernel's alone. `None`: it is no more.
    fn wait_in_kernel(
        &self,
        epfd: RawFd,
        events: &mut [libc::epoll_event],
        timeout: Option<Duration>,
        sigmask: Option<&libc::sigset_t>,
    ) -> Result<Option<usize>, Errno> {
        let epfd = self.descriptor(epfd);
        self.kernel_waiters.fetch_add(1, Ordering::SeqCst);
        let mut was_rung = false;
        let outcome = if !self.is_kernels_alone() {
            Ok(None)
        } else {
            let (waited, interrupted) =
                sleep(sigmask, || wait_calls::epoll_pwait(epfd, events, timeout, sigmask));
            waited.and_then(|found| {
                let left = without_wake(events, found);
                was_rung = left < found;
                self.note_reported(epfd, &events[..left]);
                // The library's own event is none.
                if found > 0 && left == 0 && interrupted {
                    return Err(Errno::EINTR);
                }
                Ok((found == 0 || left > 0).then_some(left))
            })
        };
        let is_last = self.kernel_waiters.fetch_sub(1, Ordering::SeqCst) == 1;
        // The others are still to get out by the eventfd, if it is for them.
        let is_alone = self.is_kernels_alone();
        let takes_it = if is_alone { was_rung } else { is_last };
        if takes_it {
            self.take_always_readable_out(epfd);
        }
        outcome
    }

    /// Takes the library's own event out of `events[..found]`, and the eventfd out of the set once nobody needs it.
    fn without_wake(&self, epfd: RawFd, events: &mut [libc::epoll_event], found: usize) -> usize {
        let left = without_wake(events, found);
        if left < found && self.kernel_waiters.load(Ordering::SeqCst) == 0 {
            self.take_always_readable_out(epfd);
        }
        left
    }

    /// Waits for sockets of the engine alone, in a set that no descriptor stands for.
    pub(crate) fn wait_for_sockets(&self, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
        self.wait_in_both(super::NO_DESCRIPTOR, events, None, None)
    }

    fn wait_in_both(
        &self,
        epfd: RawFd,
        events: &mut [libc::epoll_event],
        deadline: Option<Duration>,
        sigmask: Option<&libc::sigset_t>,
    ) -> Result<usize, Errno> {
        let found = Cell::new(0);
        let mut look = || {
            self.drain();
            found.set(self.harvest(events));
            Ok((found.get() > 0).then_some(found.get()))
        };
        // Without sockets of its own there is nothing to look at.
        let has_own = self.sockets.load(Ordering::Relaxed) > 0;
        let spun = if has_own { spin_for(|| found.get() > 1, &mut look)? } else { None };
        if let Some(found) = spun {
            return Ok(found);
        }
        let me = TakenWaiter::take();
        self.add_waiter(&me);
        let outcome = self.parked(&me, epfd, events, deadline, sigmask);
        self.remove_waiter(&me);
        outcome
    }

    fn parked(
        &self,
        waiter: &'static Waiter,
        epfd: RawFd,
        events: &mut [libc::epoll_event],
        deadline: Option<Duration>,
        sigmask: Option<&libc::sigset_t>,
    ) -> Result<usize, Errno> {
        let mut inner = Watched::new(waiter);
        loop {
            let epfd = self.descriptor(epfd);
            // Which sets are in this one may have changed, of which a kick tells, too.
            inner.follow(|| self.all_nested());
            // Listed as a waiter by now: of a listener that is added from here on it is told by a kick.
            self.wake_listeners();
            let moved = self.has_moved().then_some(LEFT_TO_OTHERS);
            let timeout = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
            let until = timeout.into_iter().chain(moved).min();
            let mut owner_queues: Vec<&'static QueueSet> = Vec::new();
            self.each_owner_queue(&mut |owner_queue| {
                if !owner_queues.iter().any(|known| std::ptr::eq(*known, owner_queue)) {
                    owner_queues.push(owner_queue);
                }
            });
            let mut kernel = [libc::pollfd { fd: epfd, events: libc::POLLIN, revents: 0 }];
            let in_kernel = usize::from(self.kernel_fds.load(Ordering::SeqCst));
            let mut found = 0;
            let fds = &mut kernel[..in_kernel];
            let on =
                ParkOn { waiter, queues: &owner_queues, fds, timeout: until, sigmask, cancellable: true };
            let outcome = park(on, &mut || {
                found = self.harvest(events);
                if found == 0 {
                    found = self.harvest_nested(epfd, (&[], 0), events);
                }
                found > 0
            });
            if found == 0 {
                found = self.collect(epfd, events)?;
            }
            if found > 0 || timeout.is_some_and(|timeout| timeout.is_zero()) {
                return Ok(found);
            }
            outcome?;
            if moved.is_some() {
                self.take_back_moved();
            }
        }
    }

    /// Takes what is ready into `out`; returns how many.
    fn harvest(&self, out: &mut [libc::epoll_event]) -> usize {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let tells_past = self.epfd.load(Ordering::Relaxed) == NO_DESCRIPTOR;
        let mut taken = 0;
        for _ in 0..inner.ready.len() {
            if taken == out.len() {
                break;
            }
            let Some(slot_id) = inner.ready.pop_front() else { break };
            let Some(interest) = inner.interests.get_mut(slot_id) else { continue };
            let happened = std::mem::take(&mut interest.happened) & (interest.events | ALWAYS);
            let due = if tells_past { happened } else { interest.due() };
            interest.queued = false;
            if due == 0 {
                continue;
            }
            out[taken] = libc::epoll_event { events: due, u64: interest.data };
            taken += 1;
            if interest.events & ONE_SHOT != 0 {
                interest.armed = false;
                if has_twin(interest.socket) {
                    let _ = once::remove_twin(self.epfd.load(Ordering::Relaxed), interest.fd);
                }
            } else if interest.events & EDGE == 0 {
                interest.queued = true;
                inner.ready.push_back(slot_id);
            }
        }
        taken
    }
}

/// Takes the library's own event out of `events[..found]`; returns how many are left.
fn without_wake(events: &mut [libc::epoll_event], found: usize) -> usize {
    let tag = |event: &libc::epoll_event| event.u64;
    let Some(at) = events[..found].iter().position(|event| tag(event) == WAKE_TAG) else { return found };
    events[at..found].rotate_left(1);
    found - 1
}
