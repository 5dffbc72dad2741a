//! One direction of a bad link: what becomes of each frame.

use crate::frame::{self, IP_AT, TcpFrame};
use crate::random::Random;
use crate::swarm::LinkFaults;
use crate::tally::{Tallies, Tally};
use toe_wire::link::RxOffload;

/// See the module.
#[derive(Debug)]
pub struct Lane {
    faults: LinkFaults,
    /// In a burst (Gilbert and Elliott's bad state).
    bad: bool,
    /// When the bottleneck has sent what it has.
    free_at_us: u64,
    mtu: Option<u32>,
}

impl Lane {
    pub fn new(faults: LinkFaults) -> Lane {
        Lane { faults, bad: false, free_at_us: 0, mtu: None }
    }

    pub fn heal(&mut self) {
        self.faults = self.faults.healed();
        self.bad = false;
        self.mtu = None;
    }

    pub fn set_faults(&mut self, faults: LinkFaults) {
        self.faults = faults;
    }

    /// Datagrams may come in pieces.
    pub fn cuts(&self) -> bool {
        self.faults.fragment_ppm > 0
    }

    pub fn set_mtu(&mut self, mtu: Option<u32>) {
        self.mtu = mtu;
    }

    /// Takes a frame; `out` gets it with the time at which it arrives, once, twice or not at all. Returns what the path says
    /// to the sender.
    pub fn offer(
        &mut self,
        now_us: u64,
        mut frame: Vec<u8>,
        mut offload: RxOffload,
        random: &mut Random,
        tallies: &mut Tallies,
        mut out: impl FnMut(u64, Vec<u8>, RxOffload),
    ) -> Option<Vec<u8>> {
        if self.is_too_large(&frame, offload) {
            tallies.add(Tally::TooLarge);
            let tells = self.faults.tells_mtu && random.one_in(2);
            return self.mtu.filter(|_| tells).and_then(|mtu| frame::too_large(&frame, mtu));
        }
        if self.is_lost(random, tallies) {
            return None;
        }
        let Some(sent_us) = self.through_bottleneck(now_us, frame.len() as u64) else {
            tallies.add(Tally::QueueFull);
            return None;
        };
        let faults = &self.faults;
        if random.ppm(faults.corrupt_ppm) && corrupt(&mut frame, &mut offload, random) {
            tallies.add(Tally::Corrupted);
        }
        let arrives = |random: &mut Random, tallies: &mut Tallies| {
            let mut due = sent_us + u64::from(faults.delay_us);
            if faults.jitter_us > 0 {
                due += u64::from(random.below(faults.jitter_us));
            }
            if random.ppm(faults.reorder_ppm) {
                tallies.add(Tally::Reordered);
                due += u64::from(random.between(1, faults.reorder_us));
            }
            due
        };
        if random.ppm(faults.mark_ppm) && frame::mark_congestion(&mut frame) {
            tallies.add(Tally::Marked);
        }
        let due = arrives(random, tallies);
        if random.ppm(faults.fragment_ppm) && offload.coalesced_mss.is_none() && !offload.checksum_ok {
            let pieces = frame::pieces(&frame, random);
            if pieces.len() > 1 {
                tallies.add(Tally::Fragmented);
                for piece in pieces {
                    let due = arrives(random, tallies);
                    out(due, piece, offload);
                }
                return None;
            }
        }
        if random.ppm(faults.duplicate_ppm) {
            tallies.add(Tally::Duplicated);
            let again = arrives(random, tallies);
            out(again, frame.clone(), offload);
        }
        out(due, frame, offload);
        None
    }

    /// A datagram beyond the path's MTU gets nowhere; of one that several wire segments make, each counts for itself.
    fn is_too_large(&self, frame: &[u8], offload: RxOffload) -> bool {
        let Some(mtu) = self.mtu else { return false };
        let len = match offload.coalesced_mss {
            Some(mss) => TcpFrame::parse(frame).map_or(0, |tcp| tcp.payload_at - IP_AT + usize::from(mss)),
            None => frame.len() - IP_AT,
        };
        // Every path carries so much of IPv6 (RFC 8200 section 5).
        let is_ipv6 = TcpFrame::parse(frame).is_some_and(|tcp| tcp.way.to.0.is_ipv6());
        len > if is_ipv6 { mtu.max(1280) } else { mtu } as usize
    }

    fn is_lost(&mut self, random: &mut Random, tallies: &mut Tallies) -> bool {
        if random.ppm(self.faults.loss_ppm) {
            tallies.add(Tally::Lost);
            return true;
        }
        let Some(burst) = self.faults.burst else { return false };
        let turns = if self.bad { burst.ends_ppm } else { burst.begins_ppm };
        self.bad ^= random.ppm(turns);
        let lost = self.bad && random.ppm(burst.loss_ppm);
        if lost {
            tallies.add(Tally::LostInBurst);
        }
        lost
    }

    /// When the last byte has left the bottleneck; `None`: its queue is full.
    fn through_bottleneck(&mut self, now_us: u64, bytes: u64) -> Option<u64> {
        let Some(bottleneck) = self.faults.bottleneck else { return Some(now_us) };
        let start = self.free_at_us.max(now_us);
        if start - now_us > u64::from(bottleneck.queue_us) {
            return None;
        }
        self.free_at_us = start + (bytes * 8).div_ceil(u64::from(bottleneck.mbit_per_s));
        Some(self.free_at_us)
    }
}

/// Flips a bit where a checksum covers it. `false`: the frame has no such place.
fn corrupt(frame: &mut [u8], offload: &mut RxOffload, random: &mut Random) -> bool {
    let Some(tcp) = TcpFrame::parse(frame) else { return false };
    if offload.checksum_ok {
        tcp.store_checksum(frame);
        offload.checksum_ok = false;
    }
    // The header of IPv6 has no checksum.
    let from = if tcp.way.to.0.is_ipv4() { IP_AT } else { tcp.tcp_at };
    let bit = random.below(((tcp.end - from) * 8) as u32) as usize;
    frame[from + bit / 8] ^= 1 << (bit % 8);
    true
}
