//! The links between engines: one shared wire, with a lane from each engine to each other that has its own faults.
//!
//! A frame is looked at when it is sent ([`crate::checkers::sequence`]), finished and cut as the link can, meets its fate
//! ([`lane`]), and arrives later, when [`meddler`] may change it or add to it.

pub mod lane;
pub mod meddler;

use crate::frame::{self, TcpFrame};
use crate::network::lane::Lane;
use crate::random::Random;
use crate::swarm::{EngineSpec, LinkFaults};
use crate::tally::{Tallies, Tally};
use toe_wire::link::{FrameSink, MacAddr, RxOffload, TxOffload};

/// A frame on its way.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub due_us: u64,
    pub to: usize,
    pub frame: Vec<u8>,
    pub offload: RxOffload,
    /// The segment that it is a piece of, if that is sound.
    pub whole: Option<TcpFrame>,
}

/// Every lane.
#[derive(Debug)]
pub struct Network {
    lanes: Vec<Lane>,
    engines: Vec<EngineSpec>,
    random: Random,
    spare: Vec<Vec<u8>>,
}

/// The hardware address of an engine's link.
pub fn mac_of(node: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, node as u8 + 1])
}

impl Network {
    pub fn new(engines: &[EngineSpec], faults: &LinkFaults, random: Random) -> Network {
        let lanes = engines.len() * engines.len();
        Network {
            lanes: (0..lanes).map(|_| Lane::new(faults.clone())).collect(),
            engines: engines.to_vec(),
            random,
            spare: Vec::new(),
        }
    }

    /// No more faults, on any lane; what is under way arrives.
    pub fn heal(&mut self) {
        for lane in &mut self.lanes {
            lane.heal();
        }
    }

    /// Every lane is like this from now on.
    pub fn set_faults(&mut self, faults: &LinkFaults) {
        for lane in &mut self.lanes {
            lane.set_faults(faults.clone());
        }
    }

    /// The path between two engines carries datagrams of at most `mtu` bytes from now on.
    pub fn set_mtu(&mut self, from: usize, to: usize, mtu: Option<u32>) {
        let at = from * self.engines.len() + to;
        self.lanes[at].set_mtu(mtu);
    }

    /// A buffer for a frame.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// The buffer of a frame that has arrived.
    pub fn recycle(&mut self, mut frame: Vec<u8>) {
        if self.spare.len() < 64 {
            frame.clear();
            self.spare.push(frame);
        }
    }

    /// A frame leaves engine `from`; what becomes of it goes to `out`.
    pub fn launch(
        &mut self,
        now_us: u64,
        from: usize,
        frame: Vec<u8>,
        offload: TxOffload,
        tallies: &mut Tallies,
        out: &mut impl FnMut(InFlight),
    ) {
        tallies.add(Tally::Frames);
        let dst = frame.first_chunk::<6>().map(|mac| MacAddr(*mac));
        for to in 0..self.engines.len() {
            // Groups of IPv6 (RFC 2464 section 7) are for whoever listens to them.
            let is_group =
                dst.is_some_and(|mac| mac == MacAddr::BROADCAST || mac.0.starts_with(&[0x33, 0x33]));
            if to != from && (dst == Some(mac_of(to)) || is_group) {
                self.carry(now_us, (from, to), &frame, offload, tallies, out);
            }
        }
        self.recycle(frame);
    }

    fn carry(
        &mut self,
        now_us: u64,
        (from, to): (usize, usize),
        frame: &[u8],
        offload: TxOffload,
        tallies: &mut Tallies,
        out: &mut impl FnMut(InFlight),
    ) {
        let receiver = self.engines[to];
        let at = from * self.engines.len() + to;
        let (lane, random) = (&mut self.lanes[at], &mut self.random);
        let mut offer = |frame: Vec<u8>, offload: RxOffload, tallies: &mut Tallies| {
            let whole_of = if lane.cuts() { TcpFrame::parse(&frame) } else { None };
            let whole_of = whole_of.filter(|tcp| tcp.checksum_is_valid(&frame));
            let each = |due_us, frame: Vec<u8>, offload| {
                let whole = whole_of.filter(|_| frame::is_piece(&frame));
                out(InFlight { due_us, to, frame, offload, whole });
            };
            let said = lane.offer(now_us, frame, offload, random, tallies, each);
            if let Some(frame) = said {
                let offload = RxOffload::default();
                let back = InFlight { due_us: now_us + 1, to: from, frame, offload, whole: None };
                out(back);
            }
        };
        match offload.segmentation {
            Some(how) if !receiver.takes_large => {
                frame::cut(frame, how, &mut |piece| {
                    tallies.add(Tally::FramesCut);
                    offer(piece, RxOffload::default(), tallies);
                });
            }
            segmentation => {
                let mut copy = self.spare.pop().unwrap_or_default();
                copy.clear();
                copy.extend_from_slice(frame);
                let mut rx = RxOffload { checksum_ok: false, coalesced_mss: segmentation.map(|s| s.mss) };
                match offload.checksum {
                    Some(_) if receiver.takes_partial => rx.checksum_ok = true,
                    Some(partial) => frame::finish(&mut copy, partial),
                    None => {}
                }
                offer(copy, rx, tallies);
            }
        }
    }
}

/// Where an engine's frames gather; like a port, it may have no room.
#[derive(Debug, Default)]
pub struct Outbox {
    frame: Vec<u8>,
    pub sent: Vec<(Vec<u8>, TxOffload)>,
    /// Frames that fit.
    pub room: usize,
    pub refused: u64,
}

impl Outbox {
    /// Gives the next frame room in `buffer`.
    pub fn lend(&mut self, buffer: Vec<u8>) {
        self.frame = buffer;
    }
}

impl FrameSink for Outbox {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.sent.len() >= self.room {
            self.refused += 1;
            return None;
        }
        self.frame.clear();
        // Contents arbitrary, as the contract says: whoever leaves a byte out is noticed.
        self.frame.resize(len, 0xee);
        Some(&mut self.frame)
    }

    fn commit(&mut self, offload: TxOffload) {
        self.sent.push((std::mem::take(&mut self.frame), offload));
    }
}
