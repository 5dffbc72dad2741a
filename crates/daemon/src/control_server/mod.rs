//! The control server: everything of the control socket that a program could make somebody wait with. It accepts connections,
//! receives messages and the descriptors beside them, finds out what those are, and closes them, on threads of its own;
//! the engine's thread gets plain values ([`ask`]).
//!
//! Closing the last copy of a descriptor can take as long as whoever made it likes (a TCP socket that lingers, a file that
//! a program serves), and so can looking at one. So each user has a thread of his own ([`user`]) in each network
//! namespace, on which his programs' descriptors arrive and end; one that stands still is his loss, and root's of a
//! container is not that of root outside. Who may attach at all is decided before, by the thread
//! that accepts ([`door`]), which touches nothing that a program has sent. It also watches the kernel sockets that were
//! shown ([`watch`]), so that a user whose thread stands still does not keep names that the kernel has given to others.
//!
//! Pages of a session's region go back to the system on its user's thread, too ([`pages`]).
//!
//! Started by `daemon` once hosts may come; heard by the run loop.

pub(crate) mod ask;
mod door;
mod evidence;
mod listening;
mod next_look;
pub(crate) mod pages;
pub(crate) mod socket;
mod user;
pub(crate) mod wake;
mod watch;

use crate::anchor_root::AnchorRoot;
use crate::anchors::Supplies;
use crate::policy::{Allowed, Policy};
use crate::poller::{Poller, Token};
use ask::Ask;
use door::{Door, DoorErrand, STRANGERS_MAX, USERS_MAX};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use toe_ring::EventFd;
use user::Desk;

/// One of each user, and one of the door.
const ASKS_MAX: usize = USERS_MAX + STRANGERS_MAX + 8;
/// The same where nobody but the engine's user and root attaches, with their threads in other network namespaces, and perhaps
/// some to whom the right was handed on.
const FEW_USERS_MAX: usize = 16;
/// How long the end of the engine waits until its directories are removed; what is not is removed by the next one.
const REMOVAL_MAX: Duration = Duration::from_secs(1);

/// The control server as the engine's thread sees it.
#[derive(Debug)]
pub struct ControlServer {
    asks: Receiver<Ask>,
    /// Readable when there are asks.
    eventfd: Arc<EventFd>,
    errands: SyncSender<DoorErrand>,
    door_eventfd: Arc<EventFd>,
    /// Until its thread runs.
    door: Option<Door>,
    refused: Arc<AtomicU64>,
    /// Wake-ups that users' threads were to make.
    handed: Arc<AtomicU64>,
    /// Where directories are to be removed: disconnected when they are, or the door's thread never ran.
    removed: Option<Receiver<()>>,
    /// Asks taken and errands given.
    dealings: u64,
}

impl ControlServer {
    /// `policy` says who may attach; it is asked at each connection.
    /// `roots` are removed in the end.
    pub fn new(
        policy: Arc<Policy>,
        supplies: Supplies,
        roots: [Arc<AnchorRoot>; 2],
        poller: &Poller,
    ) -> std::io::Result<ControlServer> {
        let (eventfd, door_eventfd) = (Arc::new(EventFd::new()?), Arc::new(EventFd::new()?));
        poller.add(&*eventfd, Token::ControlServer)?;
        let (to_engine, asks) = sync_channel(ASKS_MAX);
        let (errands, from_engine) = sync_channel(ASKS_MAX);
        let refused = Arc::new(AtomicU64::new(0));
        let handed = Arc::new(AtomicU64::new(0));
        let desk = Desk {
            asks: to_engine,
            eventfd: Arc::clone(&eventfd),
            control_server: Arc::clone(&door_eventfd),
            supplies,
            handed: Arc::clone(&handed),
        };
        let (done, removed) = sync_channel(1);
        let roots: Vec<_> = roots.into_iter().filter(|root| root.is_somewhere()).collect();
        let removed = Some(removed).filter(|_| !roots.is_empty());
        let door = Door::new(desk, policy, from_engine, Arc::clone(&refused), (roots, done));
        Ok(ControlServer {
            asks,
            eventfd,
            errands,
            door_eventfd,
            door: Some(door),
            refused,
            handed,
            removed,
            dealings: 0,
        })
    }

    /// Lets hosts come in through `socket`, which listens already.
    pub fn listen(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        self.send(DoorErrand::Listen(socket))
    }

    /// Serves a host that is connected already.
    pub fn serve(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        self.send(DoorErrand::Serve(socket))
    }

    /// Names rest on these kernel sockets, which were shown a while ago: whether they are still there is to be looked at now.
    pub fn look_at_twins(&mut self, twins: Vec<u64>) {
        self.dealings += 1;
        // When there is no room they are looked at a second later at most, as all are.
        let _ = self.errands.try_send(DoorErrand::LookAtTwins(twins));
        let _ = self.door_eventfd.signal();
    }

    fn send(&mut self, errand: DoorErrand) -> std::io::Result<()> {
        if let Some(door) = self.door.take() {
            crate::cores::spawn("toe-control", move || door.run())?;
        }
        self.errands.try_send(errand).map_err(|_| std::io::Error::other("the control server is gone"))?;
        Ok(self.door_eventfd.signal()?)
    }

    /// Makes the eventfd quiet, before asks are taken.
    pub(crate) fn hear(&self) {
        let _ = self.eventfd.drain();
    }

    /// There may be more asks than were taken.
    pub(crate) fn ring(&self) {
        let _ = self.eventfd.signal();
    }

    /// The next ask.
    pub(crate) fn take(&mut self) -> Option<Ask> {
        let ask = self.asks.try_recv().ok()?;
        self.dealings += 1;
        Some(ask)
    }

    /// Connections that were turned away because there were too many.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Wake-ups of hosts that took so long that their users' threads made them.
    pub(crate) fn handed(&self) -> &Arc<AtomicU64> {
        &self.handed
    }

    #[cfg(test)]
    pub(crate) fn dealings(&self) -> u64 {
        self.dealings
    }

    /// Disconnected once no thread of the control server has anything left to do.
    #[cfg(test)]
    pub(crate) fn settle(&mut self) -> Receiver<()> {
        let (settled, receiver) = std::sync::mpsc::channel();
        if self.door.is_none() {
            self.send(DoorErrand::Settle(settled)).expect("the control server");
        }
        receiver
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The door sees that nobody is there any more.
        let (errands, _) = sync_channel(1);
        self.errands = errands;
        let _ = self.door_eventfd.signal();
        drop(self.door.take());
        if let Some(removed) = &self.removed {
            let _ = removed.recv_timeout(REMOVAL_MAX);
        }
    }
}

/// For how many threads of users there may be work that is their own.
pub(crate) fn threads_max(allowed: &Allowed) -> usize {
    if allowed.is_nobody() { FEW_USERS_MAX } else { USERS_MAX + 1 }
}
