//! Fork: what a child takes over, and what stays its parent's.
//!
//! Before a fork connections leave their channels ([`crate::channel`]), and all locks that guard what the child goes on using are taken, so that the child's copy is whole. In the
//! child the session is its parent's ([`Stack::abandon_in_child`]): sockets stay in the descriptor table, and each is
//! claimed for the child's own session at its first use there, by showing its anchor ([`crate::socket::Socket::settle`]).
//! In both, sockets that existed at the fork count as shared from then on: their last close in this process just
//! closes the descriptor, because another process may hold it still.

use crate::queue::draining::give_up_at;
use crate::queue::{Queue, QueueSet};
use crate::stack::{self, Stack};
use crate::{datagram, epoll, process, signals, socket, thread, waiter};
use std::sync::Once;
use toe_abi::attach::Request;
use toe_abi::errno::Errno;

static HANDLERS: Once = Once::new();

/// Watches for forks from now on.
pub fn install_handlers() {
    HANDLERS.call_once(|| {
        process::note_process();
        // SAFETY: needed to learn of forks; the three functions live as long as the library, which is never unloaded
        // (its thread-local destructors pin it).
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

/// A child is about to be made in another way than by fork; it gets copies of descriptors all the same.
pub fn before_child() {
    process::note_child();
    datagram::before_child();
    share_all();
}

/// How often the engine is asked again when it had no room to tell of all that changes.
const SHARE_TRIES: u32 = 100;

/// Before a child: what is only in this process's reach goes back to the engine, and nothing new gets there that a child
/// could come to need.
fn share_all() {
    Stack::all_attached().for_each(share);
}

fn share(stack: &'static Stack) {
    if stack.queue_sets().all(|queue| queue.lock().has_nothing_to_share()) {
        return;
    }
    // What peers have said to send is waited for before, without a lock.
    for queue in stack.queue_sets() {
        queue.lock().begin_leaving();
    }
    stack.queue_sets().for_each(QueueSet::wait_until_left);
    give_back(stack);
    // And for what began to use a channel meanwhile, or could not be given back at once: this process may not get round to it
    // before the child needs it.
    let end = give_up_at();
    let has_left = |queue: &Queue| !queue.is_leaving() && !queue.awaits_rest();
    stack.queue_sets().for_each(|set| set.drain_until(end, has_left));
}

fn give_back(stack: &'static Stack) {
    // None comes to them that is not locked.
    let _opening = stack.opening_lock().lock();
    // All locked until all is given back: what another thread is handed after the engine has answered must not be taken
    // for one of those that went back.
    let mut queues: Vec<_> = stack.queue_sets().map(|queue| queue.lock()).collect();
    // What the program has accepted must be known to be its own.
    queues.iter_mut().for_each(|queue| queue.settle_pending());
    let mut is_counted = false;
    for _ in 0..SHARE_TRIES {
        let outcome = stack.session.request(Request::Share, &[]);
        queues.iter_mut().for_each(|queue| {
            queue.drain();
        });
        is_counted = outcome.is_ok();
        if outcome.err() != Some(Errno::EAGAIN) {
            break;
        }
    }
    for queue in &mut queues {
        if !is_counted {
            let sockets = queue.streams.iter().filter_map(|(_, stream)| stream.custody.socket());
            sockets.for_each(|socket| socket.copies().note_uncounted());
        }
        queue.write_options(None);
        queue.give_back_connections();
        queue.leave_all();
    }
}

/// Before a fork. Called by the C library, or by whoever forks past it; then [`in_parent`] and [`in_child`], too.
#[cold]
pub extern "C" fn prepare() {
    signals::before_fork();
    process::begin_fork();
    datagram::before_child();
    share_all();
    stack::attach_lock().lock_raw();
    socket::registry_lock().lock_raw();
    epoll::registry_lock().lock_raw();
    waiter::spare_lock().lock_raw();
    stack::note_at_fork();
    for stack in stack::at_fork() {
        // First of its locks: those of the queue sets that there are now are given back afterwards, and no others, or a thread that
        // has just opened one would have its lock taken away.
        stack.opening_lock().lock_raw();
        for queue in stack.queue_sets() {
            queue.raw_lock().lock_raw();
        }
        stack.session.anchors().lock().lock_raw();
        stack.session.own_fds().as_lock().lock_raw();
    }
    epoll::lock_all();
    datagram::before_fork();
}

/// `settle` is told of each queue set once its lock is free.
fn unlock(settle: impl Fn(&QueueSet)) {
    datagram::after_fork();
    epoll::unlock_all();
    for stack in stack::at_fork().rev() {
        stack.session.own_fds().as_lock().unlock_raw();
        stack.session.anchors().lock().unlock_raw();
        for queue in stack.queue_sets() {
            queue.raw_lock().unlock_raw();
            settle(queue);
        }
        stack.opening_lock().unlock_raw();
    }
    waiter::spare_lock().unlock_raw();
    epoll::registry_lock().unlock_raw();
    socket::registry_lock().unlock_raw();
    stack::attach_lock().unlock_raw();
}

/// After a fork, in the parent.
#[cold]
pub extern "C" fn in_parent() {
    process::note_fork();
    unlock(|queue| queue.pending_wakes().pay());
    signals::after_fork(false);
}

/// After a fork, in the child.
#[cold]
pub extern "C" fn in_child() {
    leave_to_parent();
    signals::after_fork(true);
}

/// The sessions of this process end, and what they had is claimed at its first use, as in a child of this process.
/// There is no other thread.
pub fn leave_sessions() {
    prepare();
    leave_to_parent();
    // What was kept of signals is still this process's.
    signals::after_fork(false);
}

#[cold]
fn leave_to_parent() {
    process::note_fork_in_child();
    // Whom the parent owes a wake-up, the parent wakes.
    unlock(|queue| queue.pending_wakes().forget());
    // All waiters are the parent's.
    waiter::forget_all(thread::with(|thread| thread.waiter.take()));
    crate::cancel::after_fork_in_child();
    socket::watch::after_fork_in_child();
    epoll::after_fork_in_child();
    datagram::after_fork_in_child();
    stack::at_fork().for_each(Stack::abandon_in_child);
}
