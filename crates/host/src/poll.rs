//! `poll` over both worlds: the program's kernel descriptors and its sockets on the engine in one array.

use crate::epoll::wait::LEFT_TO_OTHERS;
use crate::epoll::{EpollSet, Watched};
use crate::queue::QueueSet;
use crate::socket::ending::stop_waiting;
use crate::socket::{Kind, Socket, stream};
use crate::wait::{ParkOn, TakenWaiter, park, sleep, spin};
use crate::waiter::Waiter;
use crate::{fd_table, sys, wait_calls};
use std::time::Duration;
use toe_abi::errno::Errno;

/// How often connections are taken back from other processes by a poll that does not wait.
const LOOKS: u32 = 3;

/// Bits that are always reported.
const ALWAYS: u32 = stream::ERR | stream::HUP;

/// Whether any of `fds` needs [`poll`] rather than the kernel's.
pub fn has_toe(fds: &[libc::pollfd]) -> bool {
    // Of a set that another thread may put sockets into while this one waits the kernel would not tell.
    let is_ours = |fd| fd_table::get(fd).is_some() || fd_table::epoll_set(fd).is_some();
    fds.iter().any(|polled| is_ours(polled.fd))
}

/// `ppoll`: fills in `revents` and returns how many are not zero. EINTR: a signal came.
pub fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    if !has_toe(fds) {
        return sleep(sigmask, || wait_calls::ppoll(fds, timeout, sigmask)).0;
    }
    fds.iter_mut().for_each(|polled| polled.revents = 0);
    let sockets: Vec<&'static Socket> = fds.iter().filter_map(|polled| fd_table::get(polled.fd)).collect();
    poll_both(fds, &sockets, timeout, sigmask)
}

fn poll_both(
    fds: &mut [libc::pollfd],
    sockets: &[&'static Socket],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        sockets.iter().for_each(|socket| _ = socket.await_connect());
    }
    let is_brief = timeout.is_some_and(|timeout| timeout.is_zero());
    sockets
        .iter()
        .flat_map(|socket| socket.owner_queues())
        .for_each(|owner_queue| owner_queue.session.settle_first());
    let mut ready = mark_settled(fds, sockets);
    if ready == 0
        && is_brief
        && owner_queues(fds)
            .into_iter()
            .fold(false, |waited, owner_queue| waited | owner_queue.session.settle())
    {
        ready = mark_settled(fds, sockets);
    }
    if ready > 0 || is_brief {
        return with_kernel(fds);
    }
    let has_sockets = !sockets.is_empty() || fds_epoll(fds).any(EpollSet::has_sockets);
    let spun = if has_sockets { spin(&mut || Ok((mark(fds) > 0).then_some(())))? } else { None };
    if spun.is_some() {
        return with_kernel(fds);
    }
    let me = TakenWaiter::take();
    let watch = |on: bool| {
        for socket in sockets {
            if on { socket.add_waiter(&me) } else { stop_waiting(socket, &me) }
        }
    };
    watch(true);
    // Waits in them are not the plain kernel's from now on.
    fds_epoll(fds).for_each(EpollSet::leave_lanes);
    let mut seen = fds.to_vec();
    let outcome = parked(&mut seen, &me, deadline, sigmask);
    watch(false);
    fds.copy_from_slice(&seen);
    outcome
}

fn fds_epoll(fds: &[libc::pollfd]) -> impl Iterator<Item = &'static EpollSet> {
    fds.iter().filter_map(|polled| fd_table::epoll_set(polled.fd))
}

/// The sets among them, and those in these, each once.
fn all_sets(fds: &[libc::pollfd]) -> Vec<&'static EpollSet> {
    let mut sets: Vec<&'static EpollSet> = Vec::new();
    for set in fds_epoll(fds).flat_map(|set| [set].into_iter().chain(set.all_nested())) {
        if !sets.iter().any(|known| std::ptr::eq(*known, set)) {
            sets.push(set);
        }
    }
    sets
}

/// The sockets' part of the answer when all are this process's. That another one has taken a connection is often found by
/// the look itself; it says nothing of what the program would see.
fn mark_settled(fds: &mut [libc::pollfd], sockets: &[&'static Socket]) -> usize {
    let mut ready = 0;
    for _ in 0..LOOKS {
        for socket in sockets {
            // A claim that fails shows as readiness.
            let _ = socket.settle();
            socket.activate();
        }
        fds_epoll(fds).for_each(EpollSet::take_back_moved);
        ready = mark(fds);
        if !sockets.iter().any(|socket| socket.is_moved()) && !fds_epoll(fds).any(EpollSet::has_moved) {
            break;
        }
    }
    ready
}

/// The sockets' part of the answer; returns how many are ready.
fn mark(fds: &mut [libc::pollfd]) -> usize {
    for owner_queue in owner_queues(fds) {
        owner_queue.drain();
        owner_queue.look();
    }
    let mut ready = 0;
    for polled in fds.iter_mut() {
        let bits = match (fd_table::get(polled.fd), fd_table::epoll_set(polled.fd)) {
            (Some(socket), _) => socket.ready_now(),
            (_, Some(set)) if set.has_sockets() && set.is_ready() => stream::IN,
            _ => continue,
        };
        polled.revents = (bits & (u32::from(polled.events as u16) | ALWAYS)) as i16;
        ready += usize::from(polled.revents != 0);
    }
    ready
}

fn owner_queues(fds: &[libc::pollfd]) -> Vec<&'static QueueSet> {
    let mut owner_queues: Vec<&'static QueueSet> = Vec::new();
    let mut add = |owner_queue: &'static QueueSet| {
        if !owner_queue.is_dead() && !owner_queues.iter().any(|known| std::ptr::eq(*known, owner_queue)) {
            owner_queues.push(owner_queue);
        }
    };
    fds.iter()
        .filter_map(|polled| fd_table::get(polled.fd))
        .flat_map(Socket::owner_queues)
        .for_each(&mut add);
    fds_epoll(fds).for_each(|set| set.each_owner_queue(&mut add));
    owner_queues
}

/// Whether the kernel has a say in `fd`: anything but a connection or a listener without a twin.
fn is_kernels(fd: i32) -> bool {
    fd_table::get(fd).is_none_or(|socket| socket.kind() == Kind::Listener && socket.has_twin())
}

/// The entries that the kernel is to look at, the others made invisible (a negative descriptor is skipped).
fn for_kernel(fds: &[libc::pollfd]) -> Vec<libc::pollfd> {
    let hide = |polled: &libc::pollfd| libc::pollfd {
        fd: if is_kernels(polled.fd) { polled.fd } else { -1 },
        events: polled.events,
        revents: 0,
    };
    fds.iter().map(hide).collect()
}

fn merge(fds: &mut [libc::pollfd], kernel: &[libc::pollfd]) -> usize {
    for (polled, seen) in fds.iter_mut().zip(kernel) {
        polled.revents |= seen.revents;
    }
    fds.iter().filter(|polled| polled.revents != 0).count()
}

/// Adds what the kernel has to say now.
fn with_kernel(fds: &mut [libc::pollfd]) -> Result<usize, Errno> {
    if fds.iter().all(|polled| polled.fd < 0 || !is_kernels(polled.fd)) {
        return Ok(fds.iter().filter(|polled| polled.revents != 0).count());
    }
    let mut kernel = for_kernel(fds);
    wait_calls::ppoll(&mut kernel, Some(Duration::ZERO), None)?;
    Ok(merge(fds, &kernel))
}

fn parked(
    fds: &mut [libc::pollfd],
    waiter: &'static Waiter,
    deadline: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let mut watched = Watched::new(waiter);
    loop {
        watched.follow(|| all_sets(fds));
        let timeout = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
        let has_moved = moved_sockets(fds).next().is_some() || fds_epoll(fds).any(EpollSet::has_moved);
        let moved = has_moved.then_some(LEFT_TO_OTHERS);
        let until = timeout.into_iter().chain(moved).min();
        let queues = owner_queues(fds);
        let mut kernel = for_kernel(fds);
        let on =
            ParkOn { waiter, queues: &queues, fds: &mut kernel, timeout: until, sigmask, cancellable: true };
        let outcome = park(on, &mut || mark(fds) > 0);
        mark(fds);
        let ready = merge(fds, &kernel);
        if ready > 0 {
            return with_kernel(fds);
        }
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(0);
        }
        outcome?;
        for socket in moved_sockets(fds) {
            let _ = socket.settle();
        }
        fds_epoll(fds).for_each(EpollSet::take_back_moved);
    }
}

/// Those of the sockets that are not this process's for now.
fn moved_sockets(fds: &[libc::pollfd]) -> impl Iterator<Item = &'static Socket> {
    fds.iter().filter_map(|polled| fd_table::get(polled.fd)).filter(|socket| socket.is_moved())
}
