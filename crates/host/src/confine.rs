//! Programs that take rights away from themselves: after chroot(2), with a low limit of descriptors or behind a seccomp(2) filter
//! they cannot do what this library does when it first needs something. So what they may need is done before. Called by the switch layer.

use crate::socket::Socket;
use crate::stack::{EngineIdx, Stack};
use crate::wait::Waiter;
use crate::{fd_table, sys, wait};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

static FILTERED: AtomicBool = AtomicBool::new(false);

/// System calls of the process may be filtered: only reading, writing, polling and futexes are made from here on.
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

fn sockets() -> Vec<&'static Socket> {
    let mut sockets = Vec::new();
    fd_table::for_each(0, i32::MAX, |fd| sockets.extend(fd_table::get(fd)));
    sockets
}

/// The process is about to lose sight of the engine's socket: attaches when it has sockets of the engine's from its
/// parent.
pub fn before_losing_sight() {
    if !sockets().is_empty() {
        EngineIdx::all().filter_map(Stack::get).for_each(|stack| {
            let _ = stack.my_queue();
        });
        make_ready_to_wait();
    }
}

/// Descriptors that a session takes with all that comes with it later, such as wake-ups of channels.
const DESCRIPTORS_ROOM: usize = 16;

/// Whether so many numbers below `limit` are free.
fn has_room_below(limit: u64) -> bool {
    let numbers = 0..i32::try_from(limit).unwrap_or(i32::MAX);
    let free = numbers.filter(|fd| sys::fcntl(*fd, libc::F_GETFD, 0).is_err());
    free.take(DESCRIPTORS_ROOM).count() == DESCRIPTORS_ROOM
}

/// The process is about to have no descriptor of number `limit` or above: claims the sockets that came from the parent, for which it
/// would be sent some, and makes what waiting needs.
pub fn before_few_descriptors(limit: u64) {
    let sockets = sockets();
    if !sockets.is_empty() && !is_filtered() && !has_room_below(limit) {
        claim(sockets);
        make_ready_to_wait();
    }
}

fn claim(sockets: Vec<&'static Socket>) {
    for socket in sockets {
        let _ = socket.settle();
        socket.keep_carried();
        socket.set_nonblocking(socket.nonblocking());
    }
}

/// What a thread needs to wait, before there is no more leave for descriptors or for looking at the machine.
fn make_ready_to_wait() {
    let _ = (sys::now(), sys::coarse_ms());
    // This thread keeps it.
    let waiter = Waiter::take();
    if Stack::all_attached().next().is_none() || BELL.load(Ordering::Acquire) != NO_FD {
        return;
    }
    let Ok(set) = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC) else { return };
    let set = sys::move_to_high(sys::Fd::from(set));
    let of = |stack: &'static Stack| stack.queue_sets().map(|queue| queue.irq_fd).chain([stack.control_fd()]);
    for fd in Stack::all_attached().flat_map(of).chain([waiter.fd()]) {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        let _ =
            sys::epoll_ctl(set.raw(), libc::EPOLL_CTL_ADD, fd, Some(libc::epoll_event { events, u64: 0 }));
    }
    fd_table::mark_internal(set.raw());
    WAITS_BY_IT.store(std::ptr::from_ref(*waiter).cast_mut(), Ordering::Release);
    BELL.store(set.into_raw(), Ordering::Release);
}

const NO_FD: i32 = -1;
/// One descriptor that is readable when any of those is that a thread waits for: where RLIMIT_NOFILE allows no more, poll
/// takes no more.
static BELL: AtomicI32 = AtomicI32::new(NO_FD);
/// Whose waiter is in it.
static WAITS_BY_IT: AtomicPtr<Waiter> = AtomicPtr::new(std::ptr::null_mut());

/// The one descriptor to wait by, for the thread that has been confined.
pub fn bell(waiter: &'static Waiter) -> Option<i32> {
    std::ptr::eq(WAITS_BY_IT.load(Ordering::Acquire), waiter).then(|| BELL.load(Ordering::Acquire))
}

/// In the child of a fork: all of it is the parent's.
pub fn after_fork_in_child() {
    let set = BELL.swap(NO_FD, Ordering::AcqRel);
    WAITS_BY_IT.store(std::ptr::null_mut(), Ordering::Release);
    if set != NO_FD {
        fd_table::forget_internal(set);
        let _ = sys::close(set);
    }
}

/// System calls are about to be filtered: claims the sockets that came from the parent, and makes what waiting needs.
pub fn before_filter() {
    let sockets = sockets();
    if sockets.is_empty() {
        return;
    }
    claim(sockets);
    make_ready_to_wait();
    wait::yield_no_more();
    FILTERED.store(true, Ordering::Relaxed);
}

/// There is no filter after all. What was made ready stays so.
pub fn filter_refused() {
    FILTERED.store(false, Ordering::Relaxed);
}
