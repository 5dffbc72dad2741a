//! Two ports that are the ends of one wire in memory: the link of tests that need no kernel. Strict where a real
//! link is lenient: it refuses what its ends did not say they can do.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toe_base::limits::FRAME_MAX;
use toe_wire::eth;
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};

use crate::error::OpenError;
use crate::port::{Port, PortCounter, PortCounters};

/// Frames that one direction of the wire holds.
const WIRE_MAX: usize = 4096;

/// What one end says of itself.
#[derive(Clone, Debug)]
pub struct MemoryLink {
    pub name: String,
    pub mac: MacAddr,
    pub mtu: u32,
    pub caps: LinkCaps,
}

/// One direction of the wire.
type Wire = Arc<Mutex<VecDeque<(Vec<u8>, RxOffload)>>>;

/// One end of the wire.
#[derive(Debug)]
pub struct MemoryPort {
    link: MemoryLink,
    incoming: Wire,
    outgoing: Wire,
    frame: Vec<u8>,
    gathered: Vec<(Vec<u8>, TxOffload)>,
    counters: PortCounters,
}

/// Both ends.
pub fn pair(a: MemoryLink, b: MemoryLink) -> (MemoryPort, MemoryPort) {
    let (to_a, to_b) = (Wire::default(), Wire::default());
    (MemoryPort::new(a, to_a.clone(), to_b.clone()), MemoryPort::new(b, to_b, to_a))
}

impl MemoryPort {
    fn new(link: MemoryLink, incoming: Wire, outgoing: Wire) -> MemoryPort {
        let counters = PortCounters::default();
        MemoryPort { link, incoming, outgoing, frame: Vec::new(), gathered: Vec::new(), counters }
    }

    fn accepts(&self, frame: &[u8], offload: TxOffload) -> bool {
        let payload =
            frame.len().saturating_sub(offload.segmentation.map_or(0, |s| usize::from(s.header_len)));
        let size_fits = match offload.segmentation {
            Some(s) => offload.checksum.is_some() && s.mss > 0 && payload <= self.link.caps.gso_max as usize,
            None => frame.len() <= self.link.mtu as usize + eth::HEADER_LEN,
        };
        let checksum_fits = match offload.checksum {
            Some(c) => {
                self.link.caps.tx_checksum && usize::from(c.start) + usize::from(c.offset) + 2 <= frame.len()
            }
            None => true,
        };
        size_fits && checksum_fits
    }
}

/// A thread that panicked while it held a wire has left whole frames in it.
fn lock(wire: &Wire) -> MutexGuard<'_, VecDeque<(Vec<u8>, RxOffload)>> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port for MemoryPort {
    fn name(&self) -> &str {
        &self.link.name
    }

    fn mac(&self) -> MacAddr {
        self.link.mac
    }

    fn mtu(&self) -> u32 {
        self.link.mtu
    }

    fn caps(&self) -> LinkCaps {
        self.link.caps
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_deadline_us(&self) -> Option<u64> {
        None
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8], RxOffload)) -> io::Result<usize> {
        for count in 0..budget {
            let Some((frame, offload)) = lock(&self.incoming).pop_front() else { return Ok(count) };
            self.counters.received(frame.len());
            each(&frame, offload);
        }
        Ok(budget)
    }

    fn transmit(&mut self) -> &mut dyn FrameSink {
        self
    }

    fn flush(&mut self) -> io::Result<()> {
        for (frame, offload) in std::mem::take(&mut self.gathered) {
            if !self.accepts(&frame, offload) {
                self.counters.add(PortCounter::TxDroppedError, 1);
                continue;
            }
            let mut wire = lock(&self.outgoing);
            if wire.len() >= WIRE_MAX {
                self.counters.add(PortCounter::TxDroppedBusy, 1);
                continue;
            }
            self.counters.sent(frame.len());
            let coalesced_mss = offload.segmentation.map(|s| s.mss);
            wire.push_back((frame, RxOffload { checksum_ok: offload.checksum.is_some(), coalesced_mss }));
        }
        Ok(())
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    /// There is no interface that could disappear.
    fn reopen(&mut self) -> Result<(), OpenError> {
        Ok(())
    }
}

impl FrameSink for MemoryPort {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > FRAME_MAX {
            return None;
        }
        self.frame.clear();
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn commit(&mut self, offload: TxOffload) {
        self.gathered.push((std::mem::take(&mut self.frame), offload));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, last: u8) -> MemoryLink {
        let mac = MacAddr([2, 0, 0, 0, 0, last]);
        MemoryLink { name: name.to_owned(), mac, mtu: 1500, caps: LinkCaps::default() }
    }

    #[test]
    fn frames_cross_in_order_after_a_flush() {
        let (mut a, mut b) = pair(link("a", 1), link("b", 2));
        for n in 0..3u8 {
            a.transmit().frame(60).expect("room").fill(n);
            a.transmit().commit(TxOffload::default());
        }
        let mut seen = Vec::new();
        assert_eq!(b.receive(9, &mut |frame, _| seen.push(frame[0])).ok(), Some(0));
        a.flush().expect("memory");
        assert_eq!(b.receive(2, &mut |frame, _| seen.push(frame[0])).ok(), Some(2));
        assert_eq!(b.receive(9, &mut |frame, _| seen.push(frame[0])).ok(), Some(1));
        assert_eq!(seen, [0, 1, 2]);
    }

    #[test]
    fn what_the_link_cannot_do_is_refused() {
        let (mut a, _b) = pair(link("a", 1), link("b", 2));
        a.transmit().frame(1515).expect("room");
        a.transmit().commit(TxOffload::default());
        a.flush().expect("memory");
        assert_eq!(a.counters().get(PortCounter::TxDroppedError), 1);
    }
}
