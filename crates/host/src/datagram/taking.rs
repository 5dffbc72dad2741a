//! A receive of a UDP socket: lanes or the kernel's queue, which of them has what was sent first.

use crate::datagram::incoming::{How, Incoming, Next, Queue};
use crate::datagram::options::Ancillary;
use crate::datagram::{CLOSE_LOOKS, Datagram, KERNEL_ROUNDS, LOOK_EVERY, LOOKS, Receive, Step};
use crate::socket::slices::{Scatter, Target as _};
use crate::{signals, sys, wait};
use rustix::fd::RawFd;
use rustix::net::sockopt;
use rustix::net::sockopt::Timeout;
use std::io::IoSliceMut;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;
use toe_base::Endpoint;

/// Nothing was in a lane for who does not wait: what he is told, by the kernel or at once. `None`: something has come meanwhile.
fn without_wait(
    datagram: &Datagram,
    (fd, incoming): (RawFd, &mut Incoming),
    (is_open, directly, was_empty): (bool, bool, bool),
    may_open: bool,
) -> Option<Step> {
    if was_empty {
        if may_open {
            incoming.open();
        }
        return Some(Step::Failed(Errno::EAGAIN));
    }
    if directly {
        // Who reads no more than he is told of never finds it empty.
        if datagram.is_worth_a_look(is_open, may_open) {
            incoming.open();
        }
        return Some(Step::kernel(incoming, false));
    }
    match datagram.look_at_kernel(fd, incoming) {
        Found::Nothing if !incoming.has_something() => Some(Step::Failed(Errno::EAGAIN)),
        Found::Lane | Found::Nothing => None,
        found => Some(found.step(incoming)),
    }
}

impl Datagram {
    /// Receives a datagram, or says how the kernel's call is to be made. `empty`: the one of [`Step::Kernel`] has just found nothing.
    pub fn receive(
        &self,
        fd: RawFd,
        into: &mut [IoSliceMut<'_>],
        how: Receive,
        mut empty: Option<u32>,
    ) -> Step {
        let generation = self.generation.load(Ordering::Relaxed);
        // Of how many bytes the next one is, is not known: those of more than a page may be waited for under the lock.
        Scatter::of_program(into).prepare(0);
        loop {
            let mut incoming = self.incoming.lock();
            if self.generation.load(Ordering::Relaxed) != generation {
                return Step::Failed(Errno::EBADF);
            }
            let may_open = self.waiting.load(Ordering::SeqCst) == 0;
            empty.into_iter().for_each(|look| incoming.kernel_was_empty(look));
            let was_empty = empty.take().is_some();
            let (is_open, directly) = match incoming.next(may_open, self.by_kernel.load(Ordering::Relaxed)) {
                Next::Take { lane, record } => {
                    let how = How { peeks: how.peeks, joins: self.ancillary().has(Ancillary::JOINED) };
                    return incoming.take(lane, record, into, how).map_or_else(Step::Failed, Step::Took);
                }
                Next::Kernel { directly: true } => {
                    incoming.leave_to_kernel(how.peeks);
                    return Step::kernel(&incoming, false);
                }
                Next::Kernel { directly: false } => match self.look_at_kernel(fd, &mut incoming) {
                    Found::Lane | Found::Nothing => continue,
                    found => {
                        incoming.leave_to_kernel(how.peeks);
                        return found.step(&incoming);
                    }
                },
                Next::Nothing { is_open, directly } => (is_open, directly),
            };
            self.note_lanes(&incoming);
            if !how.waits {
                let seen = (is_open, directly, was_empty);
                match without_wait(self, (fd, &mut incoming), seen, may_open) {
                    Some(step) => return step,
                    None => continue,
                }
            }
            let is_worth = self.is_worth_a_look(is_open, may_open);
            if !was_empty && directly && (is_open || is_worth) {
                incoming.open();
                return Step::kernel(&incoming, false);
            }
            drop(incoming);
            if is_open || was_empty {
                match self.look_again(fd) {
                    Found::Lane => continue,
                    Found::Nothing => {}
                    found => return found.step(&self.incoming.lock()),
                }
            }
            if let Some(generation) = self.begin_wait() {
                return Step::Sleep { generation };
            }
        }
    }

    /// Lets others run once, where lanes have borne fruit: who sends by them may need this processor, and would find them diverted whenever he
    /// has it. Whether something has come.
    fn lets_sender_run(&self) -> bool {
        if self.look_after.load(Ordering::Relaxed) > 0 {
            return false;
        }
        rustix::thread::sched_yield();
        self.has_something()
    }

    /// Looks at the kernel's queue when the lanes have been looked at.
    fn look_at_kernel(&self, fd: RawFd, incoming: &mut Incoming) -> Found {
        match look_at_queue(fd) {
            Ok(queue) if incoming.found(queue) => Found::Kernel,
            Ok(Queue::Empty) => Found::Nothing,
            Ok(Queue::From(_)) => Found::Lane,
            Err(error) => Found::Error(error),
        }
    }

    /// Whether a call that has to wait looks again before it sleeps: while its sender uses a lane, and else now and then, as all but
    /// the kernel's own call is in vain where datagrams come seldom, or faster than they are read.
    fn is_worth_a_look(&self, is_open: bool, may_open: bool) -> bool {
        let slept = self.slept.load(Ordering::Relaxed);
        let is_worth = may_open && !is_open && slept >= self.look_after.load(Ordering::Relaxed);
        self.slept.store(if is_open || is_worth { 0 } else { slept + 1 }, Ordering::Relaxed);
        is_worth
    }

    /// Looks a few times without letting others run in between: what a sender on another core answers is there before the system call
    /// for that is over. Where that was in vain, it is only tried now and then.
    fn looks_closely(&self) -> bool {
        let empty_looks = self.empty_looks.load(Ordering::Relaxed);
        if empty_looks > 0 && !empty_looks.is_multiple_of(LOOK_EVERY) {
            self.empty_looks.store(empty_looks.wrapping_add(1), Ordering::Relaxed);
            return false;
        }
        let mut incoming = self.incoming.lock();
        for _ in 0..CLOSE_LOOKS {
            if incoming.has_something() {
                self.empty_looks.store(0, Ordering::Relaxed);
                return true;
            }
            std::hint::spin_loop();
        }
        self.empty_looks.store(empty_looks.wrapping_add(1), Ordering::Relaxed);
        false
    }

    /// Looks for a short time whether something comes, with the lanes open.
    fn look_again(&self, fd: RawFd) -> Found {
        if self.looks_closely() {
            return Found::Lane;
        }
        let mut round = 0;
        let mut attempt = || {
            let mut incoming = self.incoming.lock();
            for _ in 0..LOOKS {
                if incoming.has_something() {
                    return Ok(Some(Found::Lane));
                }
                std::hint::spin_loop();
            }
            if signals::is_any_deferred() {
                // A handler is to run, and the call begins anew or ends.
                return Ok(Some(Found::Error(interruption(fd))));
            }
            let is_due = round % KERNEL_ROUNDS == 0;
            round += 1;
            if !is_due {
                return Ok(None);
            }
            match self.look_at_kernel(fd, &mut incoming) {
                Found::Nothing => Ok(None),
                found => Ok(Some(found)),
            }
        };
        match wait::spin(&mut attempt).ok().flatten() {
            None if self.lets_sender_run() => Found::Lane,
            found => found.unwrap_or(Found::Nothing),
        }
    }

    /// Bytes of the datagram that is next, if that is in a lane: it stays the next.
    pub fn next_len(&self, fd: RawFd) -> Option<usize> {
        if !self.has_something() {
            return None;
        }
        let mut empty = None;
        // Of threads that receive meanwhile each may change it.
        for _ in 0..LOOKS {
            match self.receive(fd, &mut [], Receive { peeks: true, waits: false }, empty) {
                Step::Took(taken) => return Some(taken.whole),
                Step::Kernel { look, .. } if look_at_queue(fd) == Ok(Queue::Empty) => empty = Some(look),
                _ => break,
            }
        }
        None
    }
}

/// The address of the first datagram in the socket's queue. What waits as an error is taken, as by any call that receives.
pub(super) fn look_at_queue(fd: RawFd) -> Result<Queue, Errno> {
    // SAFETY: needed for a place that the kernel writes to. All zeros are an address.
    let mut from: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let mut nothing = [0u8; 1];
    let args = [
        fd as usize,
        nothing.as_mut_ptr().addr(),
        0,
        flags as usize,
        (&raw mut from).addr(),
        (&raw mut len).addr(),
    ];
    // SAFETY: needed because the C library's function is a point of cancellation. The kernel writes an address of at most `len`
    // bytes, and that; both are locals.
    match unsafe { sys::raw(libc::SYS_recvfrom, args) } {
        0.. => Ok(Queue::From(endpoint_of(&from))),
        error if -error == libc::EAGAIN as isize => Ok(Queue::Empty),
        error => Err(Errno((-error) as u16)),
    }
}

fn endpoint_of(from: &libc::sockaddr_storage) -> Option<Endpoint> {
    match libc::c_int::from(from.ss_family) {
        libc::AF_INET => {
            // SAFETY: needed because addresses are told apart by their first field; the kernel has written a whole one.
            let inet = unsafe { std::ptr::from_ref(from).cast::<libc::sockaddr_in>().read() };
            Some(Endpoint::new(u32::from_be(inet.sin_addr.s_addr).to_be_bytes(), u16::from_be(inet.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let inet = unsafe { std::ptr::from_ref(from).cast::<libc::sockaddr_in6>().read() };
            let ip = std::net::Ipv6Addr::from(inet.sin6_addr.s6_addr);
            let addr = toe_base::Addr::checked_v6(ip, inet.sin6_scope_id)?;
            Some(Endpoint { addr, port: u16::from_be(inet.sin6_port) })
        }
        _ => None,
    }
}

/// How a signal that has been kept ends a call that would wait. With SO_RCVTIMEO Linux restarts none.
pub(super) fn interruption(fd: RawFd) -> Errno {
    let limit = || sockopt::socket_timeout(sys::borrow(fd), Timeout::Recv);
    let has_limit = !sys::is_filtered() && limit().is_ok_and(|limit| limit.is_some());
    if has_limit { Errno::EINTR } else { signals::interruption() }
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Lane,
    /// Something that is to be received from the kernel.
    Kernel,
    Error(Errno),
}

impl Found {
    fn step(self, incoming: &Incoming) -> Step {
        match self {
            Found::Error(error) => Step::Failed(error),
            _ => Step::kernel(incoming, true),
        }
    }
}

impl Step {
    fn kernel(incoming: &Incoming, one: bool) -> Step {
        Step::Kernel { one, look: incoming.looks() }
    }
}
