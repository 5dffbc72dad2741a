//! UDP sockets of programs that hear from and send by the engine's links (decision 0035): their lanes' memory, and the kernel's way to them.
//! What comes for them is here, called by the run loop, and by `host_side`; what they send is in [`sending`].

mod crowd;
pub(crate) mod from_socket;
pub(crate) mod raw;
pub(crate) mod sending;
mod to_kernel;
mod to_socket;
mod unsent;

use crate::control_server::pages::{PagesIn, PagesOut};
use crate::pace::Pace;
use crowd::Crowd;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use to_kernel::ToKernel;
use to_socket::{ByKernel, ToSocket};
use toe_base::{Cred, DatagramId, Instant};
use toe_engine::{Delivered, ForSocket, RxDatagram, RxDatagramError};
use toe_ring::{EventFd, LaneSender};

/// All that the engine hands datagrams to.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    sockets: HashMap<DatagramId, ToSocket>,
    /// Those whose programs are to be woken at the end of the round, or were and have not come.
    waiting: Vec<DatagramId>,
    crowd: Crowd,
    /// Room for the bytes of a large frame that no lane takes from the link.
    pub(crate) large: Vec<u8>,
    /// Frames that went to programs since this was asked last.
    heard: usize,
    /// When they are to gather.
    pub(crate) pace: Pace,
    kernel: Option<ToKernel>,
    /// By whom go packets of which it is not known whose programs they wake, if those take long; made with the first one.
    others: Option<PagesOut>,
    /// Counts what such threads do.
    handed: Arc<AtomicU64>,
}

impl Datagrams {
    /// Opens the kernel's way. Without it no socket can be shown. `handed` counts what other threads send.
    pub fn open(&mut self, handed: &Arc<AtomicU64>) {
        self.handed = Arc::clone(handed);
        match ToKernel::open() {
            Ok(kernel) => self.kernel = Some(kernel),
            Err(error) => {
                tracing::warn!(%error, "UDP stays the kernel's: no raw socket; grant CAP_NET_RAW");
            }
        }
    }

    /// Whether sockets can be shown.
    pub fn is_open(&self) -> bool {
        self.kernel.is_some()
    }

    pub fn deliver(&mut self, to: Option<DatagramId>, datagram: &RxDatagram<'_>) -> Delivered {
        let mut delivered = Delivered::Nowhere;
        let Some(kernel) = &self.kernel else { return delivered };
        let socket = to.and_then(|id| Some((id, self.sockets.get_mut(&id)?)));
        // The kernel takes them one by one.
        let goes_on = |delivered| delivered == Delivered::Nowhere && datagram.segment.is_none();
        if let Some((id, socket)) = socket {
            delivered = socket.put(datagram, kernel);
            if socket.take_crowded() {
                self.crowd.note(socket.charged_to());
            }
            if socket.begins_to_wait() {
                self.waiting.push(id);
            }
            self.heard += 1;
            if goes_on(delivered) {
                delivered = kernel.deliver(socket.user(), datagram);
            }
        } else if goes_on(delivered)
            && let Some(others) = others(&mut self.others, &self.handed)
        {
            delivered = kernel.deliver(others, datagram);
        }
        delivered
    }

    /// The same where the bytes are still with the link. `None`: they are to be delivered as others are; they are in `bytes` if there are any, and else
    /// still with the link.
    pub fn deliver_tail(&mut self, one: &ForSocket<'_>, bytes: &mut Vec<u8>) -> Option<Delivered> {
        let (to, tail) = (one.to?, one.tail?);
        let socket = self.sockets.get_mut(&to)?;
        let delivered = socket.put_tail((&one.datagram, tail), bytes);
        if socket.take_crowded() {
            self.crowd.note(socket.charged_to());
        }
        if socket.begins_to_wait() {
            self.waiting.push(to);
        }
        self.heard += usize::from(delivered.is_some());
        delivered
    }

    /// A round begins: looks after programs that were woken. How many records went by the kernel.
    pub fn begin_round(&mut self, now: Instant) -> usize {
        self.crowd.begin_round(now);
        self.look_after_waiting(now)
    }

    /// Frames have come: wakes the programs that slept. How many datagrams went by the kernel.
    pub fn look_after_waiting(&mut self, now: Instant) -> usize {
        let Datagrams { sockets, waiting, heard, crowd, kernel: Some(kernel), .. } = self else {
            return 0;
        };
        let mut moved = 0;
        waiting.retain(|id| {
            let Some(socket) = sockets.get_mut(id) else { return false };
            moved += socket.look(now, kernel);
            // Until they look, or for a while, what comes stays with the links, if that is much.
            if socket.holds_much() {
                crowd.note(socket.charged_to());
            }
            socket.is_listed()
        });
        *heard += moved;
        moved
    }

    /// Whether others are to be let run before more is taken from links, which would be lost.
    pub fn is_crowded(&self) -> bool {
        self.crowd.is_some()
    }

    /// The same, once: for whose program.
    pub fn take_crowded(&mut self) -> Option<Cred> {
        self.crowd.take()
    }

    /// They were, for so long.
    pub fn gave_way(&mut self, now: Instant, took_us: u64) {
        self.crowd.gave_way(now, took_us);
    }

    /// Frames that went to programs since the last call.
    pub fn take_heard(&mut self) -> usize {
        std::mem::take(&mut self.heard)
    }

    /// When that is to be called again.
    pub fn next_look(&self, now: Instant) -> Instant {
        let of_sockets = self.waiting.iter().filter_map(|id| self.sockets.get(id));
        of_sockets.map(|socket| socket.next_look(now)).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// A socket of a user's, whose program is woken by `user`.
    fn add(&mut self, id: DatagramId, end: LaneSender, account: Cred, user: PagesOut) {
        self.sockets.insert(id, ToSocket::new(end, account, user));
    }

    pub(crate) fn remove(&mut self, id: DatagramId) {
        self.sockets.remove(&id);
    }

    pub fn deliver_error(&mut self, error: &RxDatagramError<'_>) -> Delivered {
        let Some(kernel) = &self.kernel else { return Delivered::Nowhere };
        let others = others(&mut self.others, &self.handed);
        others.map_or(Delivered::Nowhere, |others| kernel.deliver_error(others, error))
    }
}

/// The way to the thread that is nobody's. `None`: there is none.
fn others<'a>(known: &'a mut Option<PagesOut>, handed: &Arc<AtomicU64>) -> Option<&'a PagesOut> {
    if known.is_none() {
        let end = PagesIn::new(&Arc::new(EventFd::new().ok()?), handed);
        let out = end.out();
        crate::cores::spawn("toe-datagrams", move || end.run()).ok()?;
        *known = Some(out);
    }
    known.as_ref()
}
