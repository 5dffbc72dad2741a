//! UDP sockets of programs that hear from and send by the engine's links (decision 0035): their lanes' memory, and the kernel's way to them.
//! Called by `attach`, by the run loop, and by the engine through `host_side`.

mod crowd;
pub(crate) mod raw;
mod to_kernel;
mod to_socket;
mod unsent;

use crate::control_server::pages::{PagesIn, PagesOut};
use crate::control_server::socket::Answer;
use crate::daemon::Daemon;
use crate::pace::Pace;
use crowd::Crowd;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use to_kernel::ToKernel;
use to_socket::{ByKernel, Late, ToSocket};
use toe_abi::attach::{Reply, Use};
use toe_abi::errno::Errno;
use toe_abi::lane::{LaneLayout, RecordHead};
use toe_base::{Cred, DatagramId, Endpoint, Instant, SessionId};
use toe_engine::udp::Presented;
use toe_engine::{ControlEvent, Delivered, NewEnd, OpenedDatagrams, RxDatagram, RxDatagramError};
use toe_ring::{EventFd, LaneMemory, LaneReceiver, LaneSender, Region};
use unsent::Unsent;
use zerocopy::FromBytes;

/// Datagrams of all of a session's sockets taken in one turn, and what so many bytes of one count beside: some of the most that a record
/// can hold, or many small ones.
const DATAGRAMS_PER_TURN: usize = 64;
const BYTES_AS_ONE: usize = 4096;

/// Where a session's socket puts what it sends.
#[derive(Debug)]
pub(crate) struct FromSocket {
    id: DatagramId,
    end: LaneReceiver,
    /// Memory of this lane and of the one to the socket, until the host has mapped it: it could punch holes there, in which who looks waits.
    unsettled: Vec<(Region, OwnedFd)>,
}

impl Drop for FromSocket {
    fn drop(&mut self) {
        self.end.close();
    }
}

impl FromSocket {
    /// Whether there is something to be taken, or the host has left.
    pub fn has_events(&self) -> bool {
        self.is_there() && self.end.has_events()
    }

    fn is_there(&self) -> bool {
        !self.end.lane().region().is_empty()
    }

    /// Whether nothing is to be taken any more: the host has left, or the lane cannot be believed.
    fn is_left(&mut self) -> bool {
        self.is_there() && self.end.is_empty() && self.end.is_closed()
    }

    /// The next record, its bytes behind the head in `text`. A record without a head is as good as none.
    fn take(&mut self, text: &mut Vec<u8>) -> Option<RecordHead> {
        let record = self.end.first()?;
        let mut head = [0; RecordHead::LEN as usize];
        let memory = self.end.lane();
        // What was there before is written over, so it need not be cleared.
        text.resize(record.len.saturating_sub(RecordHead::LEN) as usize, 0);
        if record.len >= RecordHead::LEN {
            memory.read(record.place, 0, &mut head);
            memory.read(record.place, RecordHead::LEN, text);
        }
        self.end.take(record);
        Some(RecordHead::read_from_bytes(&head).unwrap_or_default())
    }
}

/// Memory of these that their host has mapped by now, or will not map any more; once.
pub(crate) fn unsettled(sockets: &mut [FromSocket]) -> Vec<(Region, OwnedFd)> {
    sockets.iter_mut().flat_map(|socket| std::mem::take(&mut socket.unsettled)).collect()
}

/// All that the engine hands datagrams to.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    sockets: HashMap<DatagramId, ToSocket>,
    /// Those whose programs are to be woken at the end of the round, or were and have not come.
    waiting: Vec<DatagramId>,
    crowd: Crowd,
    /// Frames that went to programs since this was asked last.
    heard: usize,
    /// When they are to gather.
    pub(crate) pace: Pace,
    kernel: Option<ToKernel>,
    /// By whom go packets of which it is not known whose programs they wake, if those take long; made with the first one.
    others: Option<PagesOut>,
    /// Counts what such threads do.
    handed: Arc<AtomicU64>,
    unsent: Unsent,
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
                self.crowd.note(socket.account());
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

    /// The same where the bytes are still with the link ([`toe_engine::HostSide::deliver_datagram_tail`]).
    pub fn deliver_tail(&mut self, to: DatagramId, late: Late<'_>, bytes: &mut Vec<u8>) -> Option<Delivered> {
        let socket = self.sockets.get_mut(&to)?;
        let delivered = socket.put_tail(late, bytes);
        if socket.take_crowded() {
            self.crowd.note(socket.account());
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
                crowd.note(socket.account());
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

    pub(crate) fn remove(&mut self, id: DatagramId) {
        self.sockets.remove(&id);
    }

    pub fn deliver_error(&mut self, error: &RxDatagramError<'_>) -> bool {
        let Some(kernel) = &self.kernel else { return false };
        others(&mut self.others, &self.handed).is_some_and(|others| kernel.deliver_error(others, error))
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

impl Daemon {
    /// A program shows a socket for what comes and goes by the engine's links.
    pub(crate) fn open_datagrams(
        &mut self,
        session: SessionId,
        purpose: Use,
        peer: Endpoint,
        presented: &Presented,
    ) -> Answer {
        if !self.sessions.datagrams.is_open() {
            return Err(Errno::EOPNOTSUPP);
        }
        // What it has closed of others is free for this one.
        self.take_some_datagrams(self.clock.now(), session);
        self.sweep_datagrams(session);
        let opened = self.engine.open_datagrams(self.clock.now(), session, (purpose, peer), presented)?;
        let OpenedDatagrams { end, source, path_mtu, link_mtu } = opened;
        let reply = |ring_len| Reply::Datagrams { ring_len, source, path_mtu, link_mtu };
        let Some(NewEnd { id, ring_len }) = end else {
            return Ok((reply(0), Vec::new()));
        };
        match self.make_lanes(session, id, ring_len) {
            Ok(files) => Ok((reply(ring_len), files.into())),
            Err(error) => {
                tracing::debug!(%error, "no lanes to a socket");
                let event = ControlEvent::DatagramsClosed(session, id);
                self.engine.handle_control(self.clock.now(), event, &mut self.sessions);
                Err(Errno::ENOMEM)
            }
        }
    }

    fn make_lanes(
        &mut self,
        session: SessionId,
        id: DatagramId,
        ring_len: u32,
    ) -> rustix::io::Result<[OwnedFd; 2]> {
        let (to_socket, to_socket_file) = LaneMemory::create(LaneLayout::from_engine(ring_len))?;
        let (from_socket, from_socket_file) = LaneMemory::create(ring_len)?;
        // Nobody else has it yet.
        let mut end = LaneReceiver::new(from_socket);
        end.open();
        let mut unsettled = Vec::new();
        for (memory, file) in [(&to_socket, &to_socket_file), (end.lane(), &from_socket_file)] {
            memory.region().withhold();
            unsettled.push((memory.region().clone(), rustix::io::fcntl_dupfd_cloexec(file, 0)?));
        }
        if let Some(session) = self.sessions.get_mut(session) {
            session.datagrams.push(FromSocket { id, end, unsettled });
            let to_socket =
                ToSocket::new(LaneSender::new(to_socket), session.account, session.user().clone());
            self.sessions.datagrams.sockets.insert(id, to_socket);
        }
        Ok([to_socket_file, from_socket_file])
    }

    /// Takes what a session's sockets send, as much as a turn is long: who fills his lane as fast as it is read has no longer one. Returns how
    /// much it was.
    pub(crate) fn take_some_datagrams(&mut self, now: Instant, id: SessionId) -> usize {
        let most = DATAGRAMS_PER_TURN;
        let count = self.sessions.get(id).map_or(0, |session| session.datagrams.len());
        let mut taken = 0;
        let mut text = std::mem::take(&mut self.record);
        for at in (0..count).rev() {
            if !self.has_datagrams(id, at) {
                continue;
            }
            // One look at the ports in a turn, not one for each socket: who has many is not to have them taken for stuck.
            if taken >= most || !self.engine.takes_datagrams() {
                // The one that is next in turn is the last of the list then.
                if let Some(session) = self.sessions.get_mut(id) {
                    let behind = session.datagrams.len().saturating_sub(1 + at);
                    session.datagrams.rotate_right(behind);
                }
                break;
            }
            taken += self.take_datagrams_of(now, id, at, &mut text, most.saturating_sub(taken));
        }
        self.record = text;
        taken
    }

    fn has_datagrams(&self, id: SessionId, at: usize) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| session.datagrams.get(at).is_some_and(FromSocket::has_events))
    }

    fn take_datagrams_of(
        &mut self,
        now: Instant,
        id: SessionId,
        at: usize,
        text: &mut Vec<u8>,
        most: usize,
    ) -> usize {
        let mut taken = 0;
        while taken < most && self.has_datagrams(id, at) && self.engine.takes_datagrams() {
            let session = self.sessions.get_mut(id);
            let Some(socket) = session.and_then(|session| session.datagrams.get_mut(at)) else { break };
            let end = socket.id;
            match socket.take(text) {
                Some(head) => {
                    taken += self.engine.handle_datagrams(now, end, &head, text, &mut self.sessions);
                    taken += text.len() / BYTES_AS_ONE;
                }
                None => {
                    // It is empty and closed: the host has left.
                    self.close_datagrams(id, at);
                    return taken + 1;
                }
            }
        }
        taken
    }

    /// Lets go of what a session has closed.
    fn sweep_datagrams(&mut self, id: SessionId) {
        let count = self.sessions.get(id).map_or(0, |session| session.datagrams.len());
        for at in (0..count).rev() {
            let session = self.sessions.get_mut(id);
            if session.is_some_and(|session| session.datagrams.get_mut(at).is_some_and(FromSocket::is_left)) {
                self.close_datagrams(id, at);
            }
        }
    }

    fn close_datagrams(&mut self, id: SessionId, at: usize) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| at < session.datagrams.len()) else {
            return;
        };
        let memory = unsettled(&mut session.datagrams[at..=at]);
        let end = session.datagrams.swap_remove(at).id;
        self.sessions.leave_unsettled(memory, std::iter::once(id));
        self.sessions.datagrams.remove(end);
        let event = ControlEvent::DatagramsClosed(id, end);
        self.engine.handle_control(self.clock.now(), event, &mut self.sessions);
    }

    /// A session is about to end: what its sockets have sent is to be sent all the same.
    pub(crate) fn keep_all_unsent(&mut self, session: SessionId) {
        let Some(of_session) = self.sessions.get_mut(session) else { return };
        let account = of_session.account;
        let mut sockets = std::mem::take(&mut of_session.datagrams);
        self.sessions.leave_unsettled(unsettled(&mut sockets), std::iter::once(session));
        for socket in sockets {
            self.keep_unsent(account, socket);
        }
    }

    /// The kernel has the socket no more, whichever sessions had it.
    pub(crate) fn socket_gone(&mut self, now: Instant, identity: u64) {
        let ends = self.engine.view().datagram_ends(identity);
        for &id in &ends {
            for session in self.sessions.live().to_vec() {
                let Some(session) = self.sessions.get_mut(session) else { continue };
                let account = session.account;
                if let Some(at) = session.datagrams.iter().position(|socket| socket.id == id) {
                    let socket = session.datagrams.swap_remove(at);
                    self.keep_unsent(account, socket);
                }
            }
        }
        self.engine.handle_control(now, ControlEvent::SocketGone(identity), &mut self.sessions);
        ends.into_iter().for_each(|id| self.sessions.datagrams.remove(id));
    }

    /// Sockets that are gone and of which something is to be sent yet.
    #[cfg(test)]
    pub(crate) fn unsent_count(&self) -> usize {
        self.sessions.datagrams.unsent.len()
    }
}
