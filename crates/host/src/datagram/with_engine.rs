//! A UDP socket that sends and hears by an engine.

use crate::datagram::by_engine::EMSGSIZE;
use crate::datagram::options::{Details, SendOptions};
use crate::datagram::{Datagram, room};
use crate::queue::sets;
use crate::session::Session;
use crate::socket::slices::Gather;
use crate::stack::{EngineIdx, Stack};
use crate::{sys, wait};
use rustix::fd::RawFd;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use toe_abi::attach::{Reply, Request, Use, Way};
use toe_abi::errno::Errno;
use toe_abi::lane::{DATAGRAM_MAX, LaneLayout};
use toe_base::{Addr, Endpoint};
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};

impl Datagram {
    /// Shows the socket to an engine. Which address that speaks to `peer` from; or why it does not.
    pub fn open_by_engine(
        &self,
        fd: RawFd,
        (purpose, peer): (Use, Endpoint),
        engine: EngineIdx,
    ) -> Result<Addr, Errno> {
        if crate::process::is_vfork_child() || crate::sys::is_filtered() {
            return Err(Errno::ENETUNREACH);
        }
        let session = &Stack::get_or_why(engine)?.session;
        if purpose == Use::Connects {
            // What lay in the lane from the engine was for the socket as it was: it gets others.
            self.by_engine.lock().close();
        }
        let request = Request::OpenDatagrams { purpose, peer };
        let (reply, fds) = session.request_fds(request, &[sys::borrow(fd)])?;
        let Reply::Datagrams { ring_len, source, path_mtu, link_mtu } = reply else {
            return Err(Errno::EPROTO);
        };
        if ring_len != 0 {
            let [from_engine, to_engine] = fds.as_slice() else { return Err(Errno::EPROTO) };
            let map = |file, ring_len| LaneMemory::map(file, ring_len).map_err(|_| Errno::ENOMEM);
            let (to, from) =
                (map(to_engine, ring_len)?, map(from_engine, LaneLayout::from_engine(ring_len))?);
            session.request(Request::DatagramsMapped, &[]).inspect_err(|_| {
                // An engine that did not answer in time may hear it yet: nobody is here.
                to.close();
                from.close();
            })?;
            let end = LaneSender::new(to);
            self.hear_engine(from, session);
            let mut by_engine = self.by_engine.lock();
            by_engine.end = Some((end, session));
            by_engine.options = SendOptions::read(fd);
            self.engine.store(true, Ordering::Relaxed);
        }
        let mut by_engine = self.by_engine.lock();
        if purpose != Use::Hears && by_engine.end.is_some() {
            by_engine.note(peer.addr, Some([path_mtu, link_mtu]));
        }
        Ok(source)
    }

    /// What comes by the engine's links may come by the lane, while somebody looks there. Else by the kernel.
    fn hear_engine(&self, memory: LaneMemory, session: &'static Session) {
        let mut incoming = self.incoming.lock();
        if !self.may_have(Way::Receives) || !incoming.has_room() {
            return memory.close();
        }
        self.session.store(std::ptr::from_ref(session).cast_mut(), Ordering::Release);
        incoming.add_engine(LaneReceiver::new(memory));
        self.receives.store(true, Ordering::SeqCst);
    }

    /// Whether what goes there goes by the engine; `None`: that is to be asked.
    pub fn is_engines(&self, to: Addr) -> Option<bool> {
        let by_engine = self.by_engine.lock();
        by_engine.known.iter().find(|known| known.addr == to).map(|known| known.mtus.is_some())
    }

    /// Bytes of the largest packets that get there by the engine, as far as is known.
    pub fn path_mtu(&self, to: Addr) -> Option<u16> {
        let by_engine = self.by_engine.lock();
        let known = by_engine.known.iter().find(|known| known.addr == to)?;
        known.mtus.map(|[path, _]| path)
    }

    /// Some path takes less than it did: the engine is asked again.
    pub fn forget_paths(&self) {
        self.by_engine.lock().known.clear();
    }

    /// The socket as it is named sends nothing there by an engine.
    pub fn note_kernels(&self, to: Addr) {
        self.by_engine.lock().note(to, None);
    }

    /// Sends by the engine, and waits for room in the lane if it `waits`: see [`room`]. EAGAIN: there is none. ENETDOWN: there is no engine any
    /// more.
    pub fn send_by_engine(
        &self,
        (fd, waits): (RawFd, bool),
        to: Endpoint,
        details: &Details,
        from: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        Gather::prepare_all(from);
        let mut attempt = || {
            let mut by_engine = self.by_engine.lock();
            let header = by_engine.header(to, details);
            let len = from.iter().fold(0usize, |len, part| len.saturating_add(part.len()));
            if len > DATAGRAM_MAX as usize {
                return Err(EMSGSIZE);
            }
            self.may_send(header.segment != 0, || by_engine.may_go(to.addr, &header, len))?;
            // One that was killed leaves the lane as it is.
            by_engine.session().into_iter().for_each(sets::look);
            by_engine.put(&header, from)
        };
        let mut outcome = attempt().transpose();
        if outcome.is_none() {
            outcome = wait::spin(&mut attempt).transpose();
        }
        let sent = outcome.unwrap_or_else(|| match waits {
            true => room::wait_for(fd, &mut attempt),
            false => self.send_without_room(fd, &mut attempt),
        });
        if sent == Err(Errno::ENETDOWN) {
            self.lose_engine();
        }
        sent
    }

    #[cold]
    fn send_without_room(
        &self,
        fd: RawFd,
        attempt: &mut dyn FnMut() -> Result<Option<usize>, Errno>,
    ) -> Result<usize, Errno> {
        let again = std::mem::replace(&mut self.by_engine.lock().refused, true);
        room::look_again(fd, again, attempt)
    }

    fn lose_engine(&self) {
        let mut by_engine = self.by_engine.lock();
        by_engine.leave_to_parent();
    }
}
