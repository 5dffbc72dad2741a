//! One-shot registrations of listeners. Both stacks may fire one, each on its side, and it is disarmed on both then: what the
//! engine has fired is taken out of the kernel's set until it is armed anew, because there is no way to disarm it there (one that
//! asks for nothing still hears of the end); what the kernel has fired is found out by /proc.

use super::{EXCLUSIVE, EpollSet, Interest, ONE_SHOT, has_twin};
pub(super) use crate::epoll::kernel::{is_disarmed, remove_twin};
use crate::errno::EEXIST;
use crate::fd_table;
use crate::slots::SlotId;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

/// What is asked of the kernel for a program's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelOp {
    /// This operation.
    Ask(i32),
    /// Nothing: this is the answer.
    Answer(Result<(), Errno>),
}

/// How EPOLL_CTL_ADD, MOD or DEL of a kernel descriptor, with these events, is asked for: one that has been a listener of the
/// engine may be registered, and not be in the kernel's set.
pub fn kernel_op(epfd: RawFd, fd: RawFd, op: i32, events: u32) -> KernelOp {
    let Some(set) = fd_table::epoll_set(epfd) else { return KernelOp::Ask(op) };
    let mut inner = set.inner.lock();
    if !inner.kernel.get(&fd).is_some_and(|registered| registered.absent) {
        return KernelOp::Ask(op);
    }
    match op {
        libc::EPOLL_CTL_ADD => KernelOp::Answer(Err(EEXIST)),
        // Of what is registered it cannot be asked for any more.
        libc::EPOLL_CTL_MOD if events & EXCLUSIVE != 0 => KernelOp::Answer(Err(Errno::EINVAL)),
        libc::EPOLL_CTL_MOD => KernelOp::Ask(libc::EPOLL_CTL_ADD),
        libc::EPOLL_CTL_DEL => {
            inner.kernel.remove(&fd);
            KernelOp::Answer(Ok(()))
        }
        _ => KernelOp::Ask(op),
    }
}

impl EpollSet {
    /// The kernel has reported these: one-shot listeners among them are disarmed.
    pub(super) fn note_fired(&self, epfd: RawFd, reported: &[libc::epoll_event]) {
        if reported.is_empty() || !self.fires_once.load(Ordering::Relaxed) {
            return;
        }
        // By the data alone it could be another one.
        let may_be_it = |interest: &Interest| {
            interest.armed
                && interest.events & ONE_SHOT != 0
                && reported.iter().any(|event| { event.u64 } == interest.data)
                && has_twin(interest.socket)
        };
        let found: Vec<(SlotId, RawFd)> = {
            let inner = self.inner.lock();
            let those = inner.interests.iter().filter(|(_, interest)| may_be_it(interest));
            those.map(|(slot_id, interest)| (slot_id, interest.fd)).collect()
        };
        for (slot_id, fd) in found.into_iter().filter(|(_, fd)| is_disarmed(epfd, *fd).unwrap_or(true)) {
            if let Some(interest) = self.inner.lock().interests.get_mut(slot_id) {
                interest.armed = false;
            }
            let _ = remove_twin(epfd, fd);
        }
    }
}
