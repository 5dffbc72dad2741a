//! UDP sockets of the program, which are the kernel's throughout, and the lanes that they have beside it (decisions 0034 and 0035): a
//! [`Datagram`] for each, with nothing in it until the socket has exchanged some datagrams over loopback.
//!
//! [`incoming`] and [`outgoing`] decide what goes which way, [`by_engine`] has what goes by links of an engine's. Here is what they need of the process: the descriptor, other threads,
//! signals, fork, and the engine, which is asked for lanes ([`Datagram::ask`]). Used by the switch layer's calls through the
//! descriptor table.
//!
//! A thread that waits does so in the kernel's own call, with all lanes diverted. If it never comes back from there (it is
//! cancelled, or a handler jumps away) they stay so: the kernel's way is always right.

mod asking;
mod by_engine;
pub mod control;
mod forks;
mod incoming;
pub mod kernel_side;
mod lane_wait;
mod options;
mod outgoing;
mod receiving;
mod room;
mod sending;
mod shutting;
#[cfg(test)]
mod tests;
pub mod ways;

use crate::lock::Lock;
use crate::socket::slices::{Scatter, Target as _};
use crate::stack::Stack;
use crate::{signals, sys, wait};
use asking::Count;
use by_engine::ByEngine;
pub use by_engine::Connected;
pub(crate) use forks::{after_fork, after_fork_in_child, before_child, before_fork};
pub use incoming::Taken;
use incoming::{How, Incoming, Next, Queue};
pub use lane_wait::LaneWait;
pub use options::{Details, Told};
use outgoing::Outgoing;
pub use outgoing::Sent;
pub use receiving::Kernel;
use rustix::fd::RawFd;
use rustix::net::sockopt::{self, Timeout};
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use toe_abi::errno::Errno;
use toe_base::Endpoint;

/// Looks at the lanes of a wait before others are let run, again and again, and for the first time.
const LOOKS: u32 = 16;
const CLOSE_LOOKS: u32 = 64;
/// Of the rounds of a wait that looks, those in which the kernel's queue is looked at, too.
const KERNEL_ROUNDS: u32 = 4;
/// Of the calls that wait while nobody uses the lanes, those that open them and look, where that was in vain the last times; where something
/// came by a lane, each does.
const LOOK_EVERY: u32 = 16;
/// So many of those in a row are in vain before fewer do.
const FRUITLESS_MAX: u32 = 4;

/// All that no descriptor refers to, and those whose locks are held over a fork.
static KEPT: Lock<Kept> = Lock::new(Kept { spare: Vec::new(), at_fork: Vec::new() });

#[derive(Debug)]
struct Kept {
    spare: Vec<&'static Datagram>,
    at_fork: Vec<&'static Datagram>,
}

/// A UDP socket of the program.
#[derive(Debug)]
pub struct Datagram {
    incoming: Lock<Incoming>,
    outgoing: Lock<Outgoing>,
    by_engine: Lock<ByEngine>,
    /// Whether there may be something in that.
    engine: AtomicBool,
    /// Another process may have the socket.
    shared: AtomicBool,
    /// Whether there may be something in these.
    receives: AtomicBool,
    sends: AtomicBool,
    received: Count,
    sent: Count,
    /// What the program wants to be told of datagrams ([`Told`]).
    told: AtomicU32,
    /// Of AF_INET6.
    inet6: AtomicBool,
    /// The program has it non-blocking.
    nonblocking: AtomicBool,
    /// It has no lanes any more: others may have the socket, or it is asked for what lanes do not do.
    kernel_only: AtomicBool,
    /// It has none to receive by: somebody waits for it in a way that is not seen here.
    kernel_receives: AtomicBool,
    /// It has none to send by: some of what it sends only the kernel can, and would overtake the rest.
    kernel_sends: AtomicBool,
    /// It sends nothing any more (SHUT_WR).
    shut: AtomicBool,
    /// The session by which it got its last lane, or null.
    session: AtomicPtr<Stack>,
    /// Descriptors that the program has of it.
    references: AtomicU32,
    /// Threads that wait for the kernel's queue: no lane is opened as long as there are any.
    waiting: AtomicU32,
    /// Calls that have waited there without a look at the lanes.
    slept: AtomicU32,
    /// After so many of these the lanes are opened.
    look_after: AtomicU32,
    /// Times in a row that they were and nothing came.
    fruitless: AtomicU32,
    /// Datagrams that have come by the kernel.
    by_kernel: AtomicU32,
    /// Waits that have looked closely and found nothing, one after the other.
    empty_looks: AtomicU32,
    /// Which socket this is for; the last one may still be in a thread's call.
    generation: AtomicU32,
    /// Its locks are held over a fork.
    at_fork: AtomicBool,
}

/// What a call that receives does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Took(Taken),
    /// The kernel's call, which must not wait; if it finds nothing, once more from the beginning, with this `look`. `one`: for one
    /// datagram.
    Kernel {
        one: bool,
        look: u32,
    },
    /// The kernel's call, which may wait; then [`Datagram::end_wait`].
    Sleep {
        generation: u32,
    },
    Failed(Errno),
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

/// What becomes of a wait for several sockets at one of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waits {
    /// Its lanes are diverted until [`Datagram::end_wait`].
    Asleep(u32),
    /// Something is in a lane; so much has ever come by lanes.
    Readable(u64),
    /// Nothing is in a lane, and the call does not wait.
    Nothing,
}

/// What a call wants that receives.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// The datagram stays where it is.
    pub peeks: bool,
    pub waits: bool,
}

impl Datagram {
    /// For a new socket.
    pub fn take(inet6: bool, nonblocking: bool) -> &'static Datagram {
        let spare = KEPT.lock().spare.pop();
        let datagram = spare.unwrap_or_else(|| Box::leak(Box::new(Datagram::new())));
        for count in [&datagram.received, &datagram.sent] {
            count.reset();
        }
        datagram.inet6.store(inet6, Ordering::Relaxed);
        datagram.nonblocking.store(nonblocking, Ordering::Relaxed);
        datagram.kernel_only.store(false, Ordering::Relaxed);
        datagram.kernel_receives.store(false, Ordering::Relaxed);
        datagram.kernel_sends.store(false, Ordering::Relaxed);
        datagram.shut.store(false, Ordering::Relaxed);
        datagram.shared.store(false, Ordering::Relaxed);
        datagram.told.store(0, Ordering::Relaxed);
        datagram.look_after.store(LOOK_EVERY, Ordering::Relaxed);
        datagram.fruitless.store(0, Ordering::Relaxed);
        datagram.waiting.store(0, Ordering::SeqCst);
        datagram
    }

    fn new() -> Datagram {
        Datagram {
            incoming: Lock::new(Incoming::default()),
            outgoing: Lock::new(Outgoing::default()),
            by_engine: Lock::new(ByEngine::default()),
            engine: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            receives: AtomicBool::new(false),
            sends: AtomicBool::new(false),
            received: Count::new(),
            sent: Count::new(),
            told: AtomicU32::new(0),
            inet6: AtomicBool::new(false),
            nonblocking: AtomicBool::new(false),
            kernel_only: AtomicBool::new(false),
            kernel_receives: AtomicBool::new(false),
            kernel_sends: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            session: AtomicPtr::new(std::ptr::null_mut()),
            references: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            slept: AtomicU32::new(0),
            look_after: AtomicU32::new(LOOK_EVERY),
            fruitless: AtomicU32::new(0),
            by_kernel: AtomicU32::new(0),
            empty_looks: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            at_fork: AtomicBool::new(false),
        }
    }

    pub(crate) fn add_reference(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn drop_reference(&'static self) {
        if self.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.outgoing.lock().close();
            // First: an engine that finds only the lane closed by which it sends hands what it holds to whoever has the name.
            if self.engine.swap(false, Ordering::Relaxed) {
                self.by_engine.lock().drop_all(!self.shared.load(Ordering::Relaxed));
            }
            let mut incoming = self.incoming.lock();
            self.generation.fetch_add(1, Ordering::Relaxed);
            incoming.drop_all();
            self.note_lanes(&incoming);
            drop(incoming);
            self.sends.store(false, Ordering::Relaxed);
            KEPT.lock().spare.push(self);
        }
    }

    pub fn is_inet6(&self) -> bool {
        self.inet6.load(Ordering::Relaxed)
    }

    pub fn nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Whether something may come by a lane.
    #[inline]
    pub fn receives_by_lanes(&self) -> bool {
        self.receives.load(Ordering::Relaxed)
    }

    fn note_lanes(&self, incoming: &Incoming) {
        self.receives.store(!incoming.is_unused(), Ordering::SeqCst);
    }

    /// Ends all lanes; there may be new ones.
    pub fn leave(&self) {
        self.outgoing.lock().close();
        self.sends.store(false, Ordering::Relaxed);
        self.incoming.lock().close();
    }

    /// Ends the lanes to and from other sockets, which are looked at anew by the engine; there may be new ones.
    pub fn meet_again(&self) {
        self.outgoing.lock().close();
        self.sends.store(false, Ordering::Relaxed);
        self.incoming.lock().close_sockets();
    }

    /// Ends all lanes for good.
    pub fn leave_to_kernel(&self) {
        if !self.kernel_only.swap(true, Ordering::AcqRel) {
            self.leave();
        }
    }

    /// Ends the lanes that it receives by, for good.
    pub fn receive_from_kernel(&self) {
        if !self.kernel_receives.swap(true, Ordering::AcqRel) {
            self.incoming.lock().close();
        }
    }

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
                    let how = How { peeks: how.peeks, joins: self.told().has(Told::JOINED) };
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
                match was_empty {
                    true => {
                        if may_open {
                            incoming.open();
                        }
                        return Step::Failed(Errno::EAGAIN);
                    }
                    false if directly => {
                        // Who reads no more than he is told of never finds it empty.
                        if self.is_worth_a_look(is_open, may_open) {
                            incoming.open();
                        }
                        return Step::kernel(&incoming, false);
                    }
                    false => {}
                }
                match self.look_at_kernel(fd, &mut incoming) {
                    Found::Nothing if !incoming.has_something() => return Step::Failed(Errno::EAGAIN),
                    Found::Lane | Found::Nothing => continue,
                    found => return found.step(&incoming),
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
            if signals::is_any_kept() {
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

    /// The thread is about to wait for the socket in a call of the kernel's; then [`Datagram::end_wait`]. `None`: something is in
    /// a lane.
    pub fn begin_wait(&self) -> Option<u32> {
        if let Some(generation) = self.begin_wait_without_lanes() {
            return Some(generation);
        }
        let mut incoming = self.incoming.lock();
        let alone = self.waiting.load(Ordering::SeqCst) == 0;
        let asleep = incoming.divert(alone, self.by_kernel.load(Ordering::Relaxed));
        if asleep && let Some(fruits) = incoming.take_fruits() {
            let before = self.look_after.load(Ordering::Relaxed);
            let fruitless = if fruits > 0 { 0 } else { self.fruitless.load(Ordering::Relaxed) + 1 };
            self.fruitless.store(fruitless.min(FRUITLESS_MAX), Ordering::Relaxed);
            // A sender that has no processor at the moment is no reason to go all the way by the kernel.
            let stays = fruitless == 0 || before == 0 && fruitless < FRUITLESS_MAX;
            let after = if stays { 0 } else { (before * 2).clamp(1, LOOK_EVERY) };
            self.look_after.store(after, Ordering::Relaxed);
        }
        asleep.then(|| {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.generation.load(Ordering::Relaxed)
        })
    }

    /// The same of a socket without lanes; `None`: it has some. No lock is taken.
    pub fn begin_wait_without_lanes(&self) -> Option<u32> {
        let generation = self.generation.load(Ordering::Relaxed);
        if self.receives.load(Ordering::Relaxed) {
            return None;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Whoever adds a lane from here on sees that it must not be opened.
        if !self.receives.load(Ordering::SeqCst) {
            return Some(generation);
        }
        self.end_wait(generation);
        None
    }

    /// The thread does not wait any more. Not of the socket that has this one's place by now, if it was closed.
    pub fn end_wait(&self, generation: u32) {
        if self.generation.load(Ordering::Relaxed) == generation {
            let one_less = |waiting: u32| waiting.checked_sub(1);
            let _ = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        }
    }

    /// As [`Datagram::begin_wait`], for a wait that tells news only once.
    pub(crate) fn begin_wait_or_tell(&self) -> Waits {
        match self.begin_wait() {
            Some(generation) => Waits::Asleep(generation),
            None => Waits::Readable(self.incoming.lock().came()),
        }
    }

    /// The same for a call that only looks.
    pub(crate) fn tell(&self) -> Waits {
        if self.has_something() { Waits::Readable(self.incoming.lock().came()) } else { Waits::Nothing }
    }

    /// Which socket it is for.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether somebody may be about to send by a lane.
    pub(crate) fn has_open_lane(&self) -> bool {
        self.receives_by_lanes() && self.incoming.lock().is_open()
    }

    /// Whether something is in a lane.
    pub fn has_something(&self) -> bool {
        self.receives_by_lanes() && self.incoming.lock().has_something()
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
fn look_at_queue(fd: RawFd) -> Result<Queue, Errno> {
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
fn interruption(fd: RawFd) -> Errno {
    let limit = || sockopt::socket_timeout(sys::borrow(fd), Timeout::Recv);
    let has_limit = !sys::is_filtered() && limit().is_ok_and(|limit| limit.is_some());
    if has_limit { Errno::EINTR } else { signals::interruption() }
}
