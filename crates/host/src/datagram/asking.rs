//! When the engine is asked for a lane, and what comes of it.

use super::Datagram;
use super::options::SendOptions;
use crate::datagram::count::Count;
use crate::stack::{EngineIdx, Stack};
use crate::sys;
use rustix::fd::RawFd;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use toe_abi::attach::{Reply, Request, Way};
use toe_base::{Addr, Endpoint};
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};

/// Where what a socket sends to there comes from. One that is bound to no address sends from the first of loopback.
fn own_address(fd: RawFd, peer: Endpoint) -> Addr {
    let name = rustix::net::getsockname(sys::borrow(fd)).ok();
    let name = name.and_then(|name| SocketAddr::try_from(name).ok()).map(|name| Endpoint::from(name).addr);
    name.filter(|addr| !addr.is_unspecified()).unwrap_or(peer.addr.localhost())
}

impl Datagram {
    /// So many datagrams have come by the kernel, or gone by it; whether it is time to ask for a lane.
    #[inline]
    pub fn counts(&self, way: Way, datagrams: u32) -> bool {
        if way == Way::Receives {
            // Of threads that count at the same time one may not: the others count on.
            let by_kernel = self.by_kernel.load(Ordering::Relaxed).wrapping_add(datagrams);
            self.by_kernel.store(by_kernel, Ordering::Relaxed);
        }
        self.count(way).more(datagrams) && !self.kernel_only.load(Ordering::Relaxed)
    }

    fn count(&self, way: Way) -> &Count {
        match way {
            Way::Sends => &self.sent,
            Way::Receives => &self.received,
        }
    }

    /// Asks an engine for a lane to `peer`, or from there. `is_connected`: the socket is connected to it. Whether it is the first that
    /// it has now.
    pub fn ask(&self, fd: RawFd, way: Way, peer: Endpoint, is_connected: bool, engine: EngineIdx) -> bool {
        let has_none = !self.receives_by_lanes() && !self.sends_by_lanes();
        let may_have = peer.addr.is_loopback() && !self.has_lane(way, peer) && self.may_have(way);
        let got = may_have && self.fetch(fd, way, peer, is_connected, engine).is_some();
        self.count(way).asked(got);
        got && has_none
    }

    /// The engine need not be asked: there is nobody to have a lane to.
    pub fn note_unasked(&self, way: Way) {
        self.count(way).asked(false);
    }

    pub(super) fn may_have(&self, way: Way) -> bool {
        let is_refused = self.kernel_only.load(Ordering::Acquire)
            || match way {
                Way::Receives => self.kernel_receives.load(Ordering::Acquire),
                Way::Sends => self.kernel_sends.load(Ordering::Acquire),
            };
        !is_refused && !crate::sys::is_filtered() && !crate::process::is_forking()
    }

    fn has_lane(&self, way: Way, peer: Endpoint) -> bool {
        match way {
            Way::Sends => {
                let outgoing = self.outgoing.lock();
                outgoing.has_lane_to(peer) || !outgoing.has_room()
            }
            Way::Receives => {
                let incoming = self.incoming.lock();
                incoming.has_lane_from(peer) || !incoming.has_room()
            }
        }
    }

    fn fetch(
        &self,
        fd: RawFd,
        way: Way,
        peer: Endpoint,
        is_connected: bool,
        engine: EngineIdx,
    ) -> Option<()> {
        if crate::process::is_vfork_child() {
            return None;
        }
        let stack = Stack::get(engine)?;
        let (reply, fds) =
            stack.session.request_fds(Request::AskLane { way, peer }, &[sys::borrow(fd)]).ok()?;
        let Reply::Lane { ring_len } = reply else { return None };
        let memory = LaneMemory::map(fds.first()?, ring_len).ok()?;
        self.session.store(std::ptr::from_ref(&stack.session).cast_mut(), Ordering::Release);
        // Before a fork lanes are closed under these locks: either it is seen here, or what is added is closed there.
        match way {
            Way::Sends => {
                let mut outgoing = self.outgoing.lock();
                if !self.may_have(way) {
                    memory.close();
                    return None;
                }
                outgoing.options = SendOptions::read(fd);
                outgoing.add(peer, LaneSender::new(memory), is_connected, own_address(fd, peer));
                self.sends.store(true, Ordering::Relaxed);
            }
            Way::Receives => {
                let mut incoming = self.incoming.lock();
                if !self.may_have(way) {
                    memory.close();
                    return None;
                }
                incoming.add(peer, LaneReceiver::new(memory));
                self.receives.store(true, Ordering::SeqCst);
            }
        }
        Some(())
    }
}
