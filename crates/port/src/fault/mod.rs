//! A wrapper that makes any port a bad link: it drops (singly or in bursts), reorders, duplicates, corrupts and delays
//! frames, the same ones for the same seed and traffic; and it makes it a slow link with a queue that overflows.
//!
//! A large frame that stands for many wire segments (GSO) meets its fate as one: with 1 % of frames dropped, 1 % of
//! them are lost whole. To lose single segments, use a link that does not segment, such as a cable (`toe-cable`) with
//! these faults at its ends.

mod bottleneck;
mod congestion_mark;
mod lane;
mod losses;
mod plan;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use core::ops::Range;
use toe_base::Addr;
use toe_base::limits::FRAME_MAX;
use toe_wire::ipv6::Body;
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};
use toe_wire::{Ipv4Repr, Ipv6Repr, Protocol, Sum, eth, ipv6, tcp};

use crate::error::OpenError;
use crate::port::{Port, PortCounters, Steering};
use lane::{Fragile, Lane};
pub use plan::{FaultError, FaultPlan, FaultRates, Rate};

/// Microseconds from any fixed point.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// The machine's clock.
pub fn monotonic_clock() -> Clock {
    let start = Instant::now();
    Box::new(move || u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// A bad link over `inner`.
pub struct FaultPort {
    inner: Box<dyn Port>,
    clock: Clock,
    rx: Lane<RxOffload>,
    tx: Lane<TxOffload>,
    counters: PortCounters,
    /// The frame that the engine is writing.
    frame: Vec<u8>,
    /// Frames that are due and that the inner port has no room for; new ones are refused until they are gone.
    backlog: VecDeque<(Vec<u8>, TxOffload)>,
}

impl fmt::Debug for FaultPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultPort").field("over", &self.inner.name()).finish_non_exhaustive()
    }
}

impl FaultPort {
    pub fn new(inner: Box<dyn Port>, plan: FaultPlan, clock: Clock) -> FaultPort {
        FaultPort {
            inner,
            clock,
            rx: Lane::new(plan.rx, plan.seed, 0),
            tx: Lane::new(plan.tx, plan.seed, 1),
            counters: PortCounters::default(),
            frame: Vec::new(),
            backlog: VecDeque::new(),
        }
    }

    fn drain_backlog(&mut self) {
        while let Some((frame, offload)) = self.backlog.front() {
            let Some(room) = self.inner.transmit().frame(frame.len()) else { return };
            room.copy_from_slice(frame);
            self.inner.transmit().commit(*offload);
            self.backlog.pop_front();
        }
    }
}

/// Passes a frame on, or keeps it when there is no room or others wait already.
fn pass_on(
    inner: &mut dyn Port,
    backlog: &mut VecDeque<(Vec<u8>, TxOffload)>,
    frame: &[u8],
    offload: TxOffload,
) {
    let sink = inner.transmit();
    match sink.frame(frame.len()) {
        Some(room) if backlog.is_empty() => {
            room.copy_from_slice(frame);
            sink.commit(offload);
        }
        _ => backlog.push_back((frame.to_vec(), offload)),
    }
}

impl Port for FaultPort {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn mac(&self) -> MacAddr {
        self.inner.mac()
    }

    fn mtu(&self) -> u32 {
        self.inner.mtu()
    }

    fn caps(&self) -> LinkCaps {
        self.inner.caps()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.poll_fd()
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let now = (self.clock)();
        let held = [self.rx.next_due_us(), self.tx.next_due_us()];
        let own = held.into_iter().flatten().map(|due| due.saturating_sub(now));
        own.chain(self.inner.next_deadline_us()).min()
    }

    fn needs_tending(&self) -> bool {
        self.inner.needs_tending()
    }

    fn tend(&mut self) {
        self.inner.tend();
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8], RxOffload)) -> io::Result<usize> {
        let now = (self.clock)();
        let mut delivered = 0;
        let mut counted = |frame: &[u8], offload: RxOffload| {
            delivered += 1;
            each(frame, offload);
        };
        self.rx.release(now, &mut counted);
        let (rx, counters) = (&mut self.rx, &mut self.counters);
        self.inner
            .receive(budget, &mut |frame, offload| rx.offer(now, frame, offload, counters, &mut counted))?;
        Ok(delivered)
    }

    fn transmit(&mut self) -> &mut dyn FrameSink {
        self
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain_backlog();
        let now = (self.clock)();
        let (inner, backlog) = (&mut *self.inner, &mut self.backlog);
        self.tx.release(now, &mut |frame, offload| pass_on(inner, backlog, frame, offload));
        self.inner.flush()
    }

    fn counters(&self) -> PortCounters {
        self.counters.plus(self.inner.counters())
    }

    fn steering(&mut self) -> Option<&mut dyn Steering> {
        self.inner.steering()
    }

    fn receive_groups(&mut self) -> io::Result<()> {
        self.inner.receive_groups()
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        self.inner.reopen()
    }

    fn refresh(&mut self) -> Result<(), OpenError> {
        self.inner.refresh()
    }
}

impl FrameSink for FaultPort {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.drain_backlog();
        if len > FRAME_MAX || !self.backlog.is_empty() {
            return None;
        }
        self.frame.clear();
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn commit(&mut self, offload: TxOffload) {
        let now = (self.clock)();
        let (inner, backlog) = (&mut *self.inner, &mut self.backlog);
        let mut out = |frame: &[u8], offload| pass_on(inner, backlog, frame, offload);
        self.tx.offer(now, &self.frame, offload, &mut self.counters, &mut out);
    }
}

/// The addresses of a frame's TCP segment, and where that lies.
fn tcp_segment(frame: &[u8]) -> Option<(Addr, Addr, Range<usize>)> {
    let packet = frame.get(eth::HEADER_LEN..)?;
    let (src, dst, protocol, segment, end) = match Ipv4Repr::parse(packet) {
        Ok((ip, segment)) => (ip.src.into(), ip.dst.into(), ip.protocol, segment, usize::from(ip.total_len)),
        Err(_) => {
            let (ip, Body::Whole(segment)) = Ipv6Repr::parse(packet).ok()? else { return None };
            let end = ipv6::HEADER_LEN + usize::from(ip.payload_len);
            (ip.src.into(), ip.dst.into(), ip.protocol, segment, end)
        }
    };
    let end = eth::HEADER_LEN + end;
    let is_tcp = protocol == Protocol::Tcp && segment.len() >= tcp::HEADER_LEN;
    is_tcp.then(|| (src, dst, end - segment.len()..end))
}

impl Fragile for RxOffload {
    /// The link vouched for the checksum, which may not even be filled in; the corrupted frame needs a real one.
    fn ready_to_corrupt(self, frame: &mut [u8]) -> Option<RxOffload> {
        if self.checksum_ok {
            let (src, dst, range) = tcp_segment(frame)?;
            tcp::store_checksum(frame.get_mut(range)?, src, dst);
        }
        Some(RxOffload { checksum_ok: false, ..self })
    }
}

impl Fragile for TxOffload {
    /// The link would compute a right checksum over wrong bytes, so the checksum is computed here first. For a frame
    /// that is still to be segmented that cannot be done.
    fn ready_to_corrupt(self, frame: &mut [u8]) -> Option<TxOffload> {
        if self.segmentation.is_some() {
            return None;
        }
        if let Some(checksum) = self.checksum {
            let start = usize::from(checksum.start);
            let at = start + usize::from(checksum.offset);
            let sum = Sum::of(frame.get(start..)?).checksum();
            frame.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
        }
        Some(TxOffload::default())
    }
}

#[cfg(test)]
mod tests;
