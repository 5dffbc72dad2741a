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
mod count;
mod forks;
mod incoming;
pub mod kernel_side;
mod lane_wait;
mod options;
mod outgoing;
mod receiving;
mod room;
mod sending;
mod setting;
mod shutting;
mod taking;
mod waiting;

impl Datagram {
    /// What it is told beside datagrams.
    pub fn ancillary(&self) -> Ancillary {
        Ancillary(self.ancillary.load(Ordering::Relaxed))
    }

    /// What it is connected to by an engine.
    pub fn connected(&self) -> Option<Connected> {
        if self.has_engine() { self.by_engine.lock().connected } else { None }
    }

    pub fn set_connected(&self, connected: Option<Connected>) {
        self.by_engine.lock().connected = connected;
    }

    /// Another process may get the socket.
    pub fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Whether anything of it goes by an engine.
    #[inline]
    pub fn has_engine(&self) -> bool {
        self.engine.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
pub mod ways;
mod with_engine;

use crate::datagram::count::Count;
use crate::lock::Lock;
use crate::session::Session;
use by_engine::ByEngine;
pub use by_engine::Connected;
pub(crate) use forks::{after_fork, after_fork_in_child, before_child, before_fork};
use incoming::Incoming;
pub use incoming::Taken;
pub use lane_wait::LaneWait;
pub use options::{Ancillary, Details};
use outgoing::Outgoing;
pub use outgoing::Sent;
pub use receiving::Kernel;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use toe_abi::errno::Errno;

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
static POOL: Lock<DatagramPool> = Lock::new(DatagramPool { spare: Vec::new(), at_fork: Vec::new() });

#[derive(Debug)]
struct DatagramPool {
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
    /// What the program wants to be told of datagrams ([`Ancillary`]).
    ancillary: AtomicU32,
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
    session: AtomicPtr<Session>,
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
        let spare = POOL.lock().spare.pop();
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
        datagram.ancillary.store(0, Ordering::Relaxed);
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
            ancillary: AtomicU32::new(0),
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
            POOL.lock().spare.push(self);
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
}
