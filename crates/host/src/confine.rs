//! Programs that take rights away from themselves: after chroot(2), with a low limit of descriptors or behind a seccomp(2) filter
//! they cannot do what this library does when it first needs something. So what they may need is done before. Called by the switch layer.

use crate::socket::Socket;
use crate::stack::{EngineIdx, Stack};
use crate::wait::TakenWaiter;
use crate::{fd_table, sys, wait};

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
    if !sys::is_filtered() && !has_room_below(limit) {
        claim_all(|_| ());
    }
}

/// What could not be done later: claims the sockets that came from the parent, and makes what waiting needs. `attach` is told first of
/// each engine that has some. `false`: there are none.
pub fn claim_all(attach: impl Fn(EngineIdx)) -> bool {
    let sockets = sockets();
    let has_some = |engine: &EngineIdx| sockets.iter().any(|socket| socket.engine() == *engine);
    EngineIdx::all().filter(has_some).for_each(attach);
    for socket in &sockets {
        let _ = socket.settle();
        socket.set_nonblocking(socket.nonblocking());
    }
    if !sockets.is_empty() {
        make_ready_to_wait();
    }
    !sockets.is_empty()
}

/// What a thread needs to wait, before there is no more leave for descriptors or for looking at the machine.
fn make_ready_to_wait() {
    let _ = (sys::now(), sys::coarse_ms());
    // This thread keeps it.
    drop(TakenWaiter::take());
}

/// System calls are about to be filtered: claims the sockets that came from the parent, and makes what waiting needs.
pub fn before_filter() {
    if claim_all(|_| ()) {
        wait::yield_no_more();
        sys::note_filter(true);
    }
}

/// There is no filter after all. What was made ready stays so.
pub fn filter_refused() {
    sys::note_filter(false);
}
