//! A peer that is not as it should be, made out of one that is: windows shrink, data overlaps, and segments come that a
//! careful receiver must not believe, though they are near the window.

use crate::checkers::sequence::{Half, Sequences};
use crate::frame::{TcpFrame, Way};
use crate::random::Random;
use crate::swarm::Meddling;
use crate::tally::{Tallies, Tally};
use std::collections::BTreeMap;
use toe_wire::link::RxOffload;
use toe_wire::tcp::{TcpFlags, Timestamps};

/// See the module.
#[derive(Debug)]
pub struct Meddler {
    pub on: Meddling,
    random: Random,
    /// The last frame with text of each direction.
    last: BTreeMap<Way, Vec<u8>>,
}

/// Longest text of a segment that is kept to be sent again in other pieces.
const KEPT_MAX: u32 = 9000;

impl Meddler {
    pub fn new(on: Meddling, random: Random) -> Meddler {
        Meddler { on, random, last: BTreeMap::new() }
    }

    pub fn heal(&mut self) {
        self.on = Meddling::default();
        self.last.clear();
    }

    fn is_off(&self) -> bool {
        self.on == Meddling::default()
    }

    /// A frame is about to arrive: it may change, and others may come before it.
    pub fn meddle(
        &mut self,
        frame: &mut [u8],
        offload: &mut RxOffload,
        sequences: &Sequences,
        tallies: &mut Tallies,
        mut before: impl FnMut(Vec<u8>),
    ) {
        if self.is_off() {
            return;
        }
        let Some(tcp) = TcpFrame::parse(frame) else { return };
        if !offload.checksum_ok && !tcp.checksum_is_valid(frame) {
            return;
        }
        let (Some(half), Some(back)) = (sequences.half(tcp.way), sequences.half(tcp.way.back())) else {
            return;
        };
        if tcp.header.flags.intersects(TcpFlags::SYN | TcpFlags::RST) || !sequences.is_open(tcp.way) {
            return;
        }
        // Of another life of the connection.
        if tcp.seq_end().diff(half.sent_max) > 0 || tcp.header.seq.before(half.iss) {
            return;
        }
        if self.random.ppm(self.on.overlap_ppm)
            && let Some(overlapping) = self.overlap(&tcp, frame)
        {
            tallies.add(Tally::Overlaps);
            before(overlapping);
        }
        if self.random.ppm(self.on.garbage_ppm)
            && let Some(garbage) = self.garbage(&tcp, frame, half, back)
        {
            tallies.add(Tally::Garbage);
            before(garbage);
        }
        if self.random.ppm(self.on.shrink_ppm) {
            tallies.add(Tally::WindowsShrunk);
            self.shrink(&tcp, frame, offload);
        }
        if self.on.overlap_ppm > 0 && !tcp.is_empty() && tcp.len() <= KEPT_MAX {
            self.last.insert(tcp.way, frame.to_vec());
        }
    }

    fn shrink(&mut self, tcp: &TcpFrame, frame: &mut [u8], offload: &mut RxOffload) {
        let window = u32::from(tcp.header.window.0);
        let smaller = if self.random.one_in(3) { 0 } else { self.random.below(window + 1) };
        frame[tcp.tcp_at + 14..tcp.tcp_at + 16].copy_from_slice(&(smaller as u16).to_be_bytes());
        tcp.store_checksum(frame);
        offload.checksum_ok = false;
    }

    /// A segment that starts in the last one and ends in this one, of the same bytes.
    fn overlap(&mut self, tcp: &TcpFrame, frame: &[u8]) -> Option<Vec<u8>> {
        let earlier = self.last.get(&tcp.way)?;
        let first = TcpFrame::parse(earlier)?;
        let joins = first.header.seq.plus(first.len()) == tcp.header.seq && !first.header.flags.fin();
        if !joins || tcp.is_empty() {
            return None;
        }
        let from = self.random.below(first.len());
        let upto = self.random.between(1, tcp.len());
        let mut text = first.payload(earlier)[from as usize..].to_vec();
        text.extend_from_slice(&tcp.payload(frame)[..upto as usize]);
        let mut header = tcp.header;
        header.seq = first.header.seq.plus(from);
        header.flags = header.flags.without(TcpFlags::FIN | TcpFlags::URG);
        header.urgent = 0;
        Some(tcp.rebuilt(frame, &header, &text))
    }

    /// A segment of the right connection that its receiver must not take, each kind for a reason of its own.
    fn garbage(&mut self, tcp: &TcpFrame, frame: &[u8], half: &Half, back: &Half) -> Option<Vec<u8>> {
        // What the receiver has acknowledged and offered.
        let (acked, edge) = (back.acked?, back.offered?);
        let beyond = back.takes_nothing_from()?;
        let random = &mut self.random;
        let mut text = vec![0xba; random.any_size(1400) as usize + 1];
        let len = text.len() as u32;
        let mut header = tcp.header;
        header.flags = TcpFlags::ACK;
        header.urgent = 0;
        header.options.sack = Default::default();
        let stamps_count = half.stamps_offered && back.stamps_offered && back.has_spoken;
        match random.below(9) {
            // Beyond the window (RFC 9293 section 3.10.7.4).
            0 => header.seq = beyond.plus(random.any_size(100_000)),
            // Before it.
            1 => header.seq = acked.minus(len + random.any_size(10_000)),
            // An inexact reset (RFC 5961 section 3).
            2 => {
                header.flags = TcpFlags::RST;
                header.ack = None;
                header.seq = within(half, edge, random)?;
                text.clear();
            }
            // A SYN in the window (RFC 5961 section 4).
            3 => {
                header.flags = TcpFlags::SYN;
                header.ack = random.one_in(2).then_some(half.acked?);
                header.seq = within(half, edge, random)?;
                text.clear();
            }
            // An acknowledgement of what was not sent yet (RFC 9293 section 3.10.7.4).
            4 => header.ack = Some(back.sent_max.plus(1 + random.any_size(100_000))),
            // An old timestamp (RFC 7323 section 5.3), and none (section 3.2).
            5 if stamps_count => {
                let value = half.first_stamp.wrapping_sub(1 + random.any_size(1 << 20));
                header.options.timestamps = Some(Timestamps { value, echo: 0 });
            }
            6 if stamps_count => header.options.timestamps = None,
            // No acknowledgement at all.
            7 => header.ack = None,
            // A checksum that is wrong by one bit.
            _ => {
                let mut wrong = tcp.rebuilt(frame, &header, &text);
                let bit = random.below(16);
                wrong[tcp.tcp_at + 16 + (bit / 8) as usize] ^= 1 << (bit % 8);
                return Some(wrong);
            }
        }
        Some(tcp.rebuilt(frame, &header, &text))
    }
}

/// A number in the window that cannot be the next one expected: nothing was delivered up to there.
fn within(half: &Half, edge: toe_base::SeqNum, random: &mut Random) -> Option<toe_base::SeqNum> {
    let room = edge.distance_from(half.delivered_max);
    if room < 3 {
        return None;
    }
    Some(half.delivered_max.plus(1 + random.below(room - 2)))
}
