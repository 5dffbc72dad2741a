//! UDP sockets of programs that hear from and send by the engine's links (decision 0035): their lanes' memory, and the kernel's way to them.
//! Called by `attach`, by the run loop, and by the engine through `host_side`.

mod to_kernel;
mod unsent;

use crate::attach::Answer;
use crate::daemon::Daemon;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use to_kernel::ToKernel;
use toe_abi::attach::{Reply, Use};
use toe_abi::errno::Errno;
use toe_abi::lane::{RECORD_MAX, RING_LEN_MAX, RecordHead};
use toe_base::{DatagramId, Endpoint, Instant, SessionId};
use toe_engine::udp::Shown;
use toe_engine::{Delivered, NewEnd, OpenedDatagrams, RxDatagram, RxDatagramError};
use toe_ring::lane::Offer;
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};
use unsent::Unsent;
use zerocopy::{FromBytes, IntoBytes};

/// Datagrams of all of a session's sockets taken in one turn, and what so many octets of one count beside: some of the most that a record
/// can hold, or many small ones.
const DATAGRAMS_PER_TURN: usize = 64;
const OCTETS_AS_ONE: usize = 4096;

/// Where a session's socket puts what it sends.
#[derive(Debug)]
pub(crate) struct FromSocket {
    id: DatagramId,
    end: LaneReceiver,
}

/// Where a socket finds what has come for it.
#[derive(Debug)]
struct ToSocket(LaneSender);

impl Drop for FromSocket {
    fn drop(&mut self) {
        self.end.close();
    }
}

impl Drop for ToSocket {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl FromSocket {
    /// Whether there is something to be taken, or the host has left.
    pub fn has_news(&self) -> bool {
        self.end.has_news()
    }

    /// Whether nothing is to be taken any more: the host has left, or the lane cannot be believed.
    fn is_left(&mut self) -> bool {
        self.end.is_empty() && self.end.is_closed()
    }

    /// The next record, its octets behind the head in `text`. A record without a head is as good as none.
    fn take(&mut self, text: &mut Vec<u8>) -> Option<RecordHead> {
        let record = self.end.first()?;
        let mut head = [0; RecordHead::LEN as usize];
        text.clear();
        let memory = self.end.lane();
        if record.len >= RecordHead::LEN {
            text.resize((record.len - RecordHead::LEN) as usize, 0);
            memory.read(record.place, 0, &mut head);
            memory.read(record.place, RecordHead::LEN, text);
        }
        self.end.take(record);
        Some(RecordHead::read_from_bytes(&head).unwrap_or_default())
    }
}

/// All that the engine hands datagrams to.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    sockets: HashMap<DatagramId, ToSocket>,
    kernel: Option<ToKernel>,
    unsent: Unsent,
}

impl Datagrams {
    /// Opens the kernel's way. Without it no socket can be shown.
    pub fn open(&mut self) {
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
        let socket = to.and_then(|id| self.sockets.get_mut(&id));
        match socket.map_or(Delivered::Nowhere, |socket| socket.put(datagram)) {
            // The kernel takes them one by one.
            Delivered::Nowhere if datagram.segment.is_some() => Delivered::Nowhere,
            Delivered::Nowhere => {
                self.kernel.as_ref().map_or(Delivered::Nowhere, |kernel| kernel.deliver(datagram))
            }
            delivered => delivered,
        }
    }

    pub fn deliver_error(&self, error: &RxDatagramError<'_>) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.deliver_error(error))
    }
}

impl ToSocket {
    /// By the lane, or lost there; `Nowhere`: it goes by the kernel.
    fn put(&mut self, datagram: &RxDatagram<'_>) -> Delivered {
        let len = RecordHead::LEN + datagram.text.len() as u32;
        if len > RECORD_MAX {
            return Delivered::Nowhere;
        }
        match self.0.offer(len) {
            Offer::Lane { place } => {
                let arrival = &datagram.arrival;
                let head = RecordHead {
                    peer: datagram.from().into(),
                    own: Endpoint { addr: arrival.dst, port: 0 }.into(),
                    hop_limit: arrival.hop_limit,
                    traffic_class: arrival.traffic_class,
                    segment: datagram.segment.unwrap_or(0),
                    ..RecordHead::default()
                };
                self.0.lane().write(place, 0, head.as_bytes());
                self.0.lane().write(place, RecordHead::LEN, datagram.text);
                if self.0.publish(len) { Delivered::ByLane } else { Delivered::Nowhere }
            }
            // It holds more than the kernel's queue would: what finds no room there would find none in that, and costs the engine nothing. Of
            // the largest that is not known.
            Offer::Full if self.0.lane().ring_len() < u64::from(RING_LEN_MAX) || !self.0.overflow() => {
                Delivered::QueueFull
            }
            Offer::Full => Delivered::Nowhere,
            Offer::Kernel => Delivered::Nowhere,
        }
    }
}

impl Daemon {
    /// A program shows a socket for what comes and goes by the engine's links.
    pub(crate) fn open_datagrams(
        &mut self,
        session: SessionId,
        purpose: Use,
        peer: Endpoint,
        shown: &Shown,
    ) -> Answer {
        if !self.sessions.datagrams.is_open() {
            return Err(Errno::EOPNOTSUPP);
        }
        // What it has closed of others is free for this one.
        self.take_some_datagrams(self.clock.now(), session);
        self.sweep_datagrams(session);
        let opened = self.engine.open_datagrams(self.clock.now(), session, (purpose, peer), shown)?;
        let OpenedDatagrams { end, source, path_mtu, link_mtu } = opened;
        let reply = |ring_len| Reply::Datagrams { ring_len, source, path_mtu, link_mtu };
        let Some(NewEnd { id, ring_len }) = end else {
            return Ok((reply(0), Vec::new()));
        };
        match self.make_lanes(session, id, ring_len) {
            Ok(files) => Ok((reply(ring_len), files.into())),
            Err(error) => {
                tracing::debug!(%error, "no lanes to a socket");
                self.engine.close_datagrams(session, id);
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
        let (to_socket, to_socket_file) = LaneMemory::create(ring_len)?;
        let (from_socket, from_socket_file) = LaneMemory::create(ring_len)?;
        let mut end = LaneReceiver::new(from_socket);
        end.open();
        self.sessions.datagrams.sockets.insert(id, ToSocket(LaneSender::new(to_socket)));
        if let Some(session) = self.sessions.get_mut(session) {
            session.datagrams.push(FromSocket { id, end });
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
        session.is_some_and(|session| session.datagrams.get(at).is_some_and(FromSocket::has_news))
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
                    taken += text.len() / OCTETS_AS_ONE;
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
        let end = session.datagrams.swap_remove(at).id;
        self.sessions.datagrams.sockets.remove(&end);
        self.engine.close_datagrams(id, end);
    }

    /// A session is about to end.
    pub(crate) fn leave_datagrams(&mut self, session: SessionId) {
        if let Some(of_session) = self.sessions.get_mut(session) {
            let account = of_session.account;
            for socket in std::mem::take(&mut of_session.datagrams) {
                self.keep_unsent(account, socket);
            }
        }
        for id in self.engine.leave_datagrams(session) {
            self.sessions.datagrams.sockets.remove(&id);
        }
    }

    /// The kernel has the socket no more, whichever sessions had it.
    pub(crate) fn datagram_socket_gone(&mut self, identity: u64) {
        for id in self.engine.datagram_ends(identity) {
            for session in self.sessions.live().to_vec() {
                let Some(session) = self.sessions.get_mut(session) else { continue };
                let account = session.account;
                if let Some(at) = session.datagrams.iter().position(|socket| socket.id == id) {
                    let socket = session.datagrams.swap_remove(at);
                    self.keep_unsent(account, socket);
                }
            }
        }
        for id in self.engine.datagram_socket_gone(identity) {
            self.sessions.datagrams.sockets.remove(&id);
        }
    }

    /// Sockets that are gone and of which something is to be sent yet.
    #[cfg(test)]
    pub(crate) fn unsent_count(&self) -> usize {
        self.sessions.datagrams.unsent.len()
    }
}
