//! Where a socket finds what has come for it: in its lane, or in the kernel's queue, which wakes whoever sleeps (decision 0035).
//!
//! To hand a datagram to the kernel takes ten times as long as to put it into a lane, and costs the program a call for each. So who sleeps is
//! woken by *one*, the [`WakingDatagram`], which is sent at the end of the round: what comes after it is in the lane by then. Whoever has not come to look [`PATIENCE_US`] later
//! gets one more by the kernel, and so on: that datagram may have been lost on its way. Called by the parent, which has all sockets.

use crate::control_server::pages::PagesOut;
use std::collections::VecDeque;
use toe_abi::lane::{DatagramHeader, RECORD_MAX, RING_LEN_MAX};
use toe_base::{Cred, Endpoint, Instant};
use toe_engine::work::Arrival;
use toe_engine::{Delivered, RxDatagram};
use toe_ring::LaneSender;
use toe_ring::lane::Offer;
use toe_wire::UdpRepr;
use toe_wire::link::FrameTail;
use zerocopy::IntoBytes;

/// How long a program that was woken has to look into its lane: twice as long each time, up to a second.
const PATIENCE_US: u64 = 2_000;
const PATIENCE_MAX_US: u64 = 1 << 20;
/// Records of which the engine remembers where they are from, so that they can go by the kernel yet: with that patience some 20 s go by until there are no
/// more.
const RETURNABLE_MAX: usize = 32;

/// Datagrams of one record that go by the kernel: no peer's UDP_SEGMENT has more. What is more is lost.
const TOGETHER_MAX: usize = 128;
/// Bytes in a lane that nobody has claimed and that are much: more than small datagrams are in so short a time, and still far from all that it holds.
const MUCH: usize = 128 << 10;
/// What an unused buffer keeps.
const RETAINED_LEN: usize = 2048;

/// The kernel's way.
pub(super) trait ByKernel {
    /// `user`: whose programs that wakes.
    fn deliver(&self, user: &PagesOut, datagram: &RxDatagram<'_>) -> Delivered;
}

/// Datagrams whose bytes are still with the link, there from that byte of the frame on.
pub(super) type Late<'a> = (&'a RxDatagram<'a>, (&'a dyn FrameTail, usize));

/// Bytes of the record; `None`: there are none so large.
fn record_len_of(datagram: &RxDatagram<'_>) -> Option<u32> {
    u32::try_from(datagram.text.len())
        .ok()
        .map(|len| len.saturating_add(DatagramHeader::LEN))
        .filter(|len| *len <= RECORD_MAX)
}

#[derive(Debug)]
struct Lane {
    end: LaneSender,
    /// How far the program was when there was no room last: what it had read, and which opening or sleep it was.
    full_at: Option<(u64, u64)>,
    /// There was no room, and the program had come further since the last time.
    is_crowded: bool,
    /// Where the last record is.
    last_position: Option<u64>,
}

/// A datagram on its way to the kernel, which wakes the program.
#[derive(Debug, Default)]
struct WakingDatagram {
    of: Option<(Arrival, UdpRepr)>,
    text: Vec<u8>,
}

/// A record that was put into the lane of a program that was woken, and that it has perhaps not seen.
#[derive(Clone, Copy, Debug)]
struct Unclaimed {
    arrival: Arrival,
    ports: UdpRepr,
    segment: Option<u16>,
    position: u64,
    len: u32,
}

#[derive(Debug)]
pub(super) struct ToSocket {
    lane: Lane,
    /// Whose its program is.
    account: Cred,
    user: PagesOut,
    waking: WakingDatagram,
    /// Of the first ones since it was woken those that have not gone by the kernel; how many those were, and the bytes of all.
    unclaimed: VecDeque<Unclaimed>,
    remembered: usize,
    unclaimed_bytes: usize,
    /// When the first of them goes by the kernel, not known before the first look; and how long that is.
    until: Option<Instant>,
    patience_us: u64,
    /// The parent looks after it.
    is_listed: bool,
}

impl Drop for ToSocket {
    fn drop(&mut self) {
        self.lane.end.close();
    }
}

impl ToSocket {
    pub fn new(end: LaneSender, account: Cred, user: PagesOut) -> ToSocket {
        ToSocket {
            account,
            user,
            lane: Lane { end, full_at: None, is_crowded: false, last_position: None },
            waking: WakingDatagram::default(),
            unclaimed: VecDeque::new(),
            remembered: 0,
            unclaimed_bytes: 0,
            until: None,
            patience_us: PATIENCE_US,
            is_listed: false,
        }
    }

    pub fn charged_to(&self) -> Cred {
        self.account
    }

    pub fn user(&self) -> &PagesOut {
        &self.user
    }

    /// So much that the lane may be full soon, of a program that was just woken. One that has not come for long is stopped, or does not
    /// mean to come, and others have the links as well.
    pub fn holds_much(&self) -> bool {
        self.unclaimed_bytes >= MUCH && self.patience_us == PATIENCE_US
    }

    /// Whether it is to be looked after, and is not yet: once.
    pub fn begins_to_wait(&mut self) -> bool {
        self.is_waiting() && !std::mem::replace(&mut self.is_listed, true)
    }

    fn is_waiting(&self) -> bool {
        self.waking.of.is_some() || !self.unclaimed.is_empty()
    }

    /// Whether its program reads, or was woken, and was perhaps not let to run: once.
    pub fn take_crowded(&mut self) -> bool {
        std::mem::take(&mut self.lane.is_crowded)
    }

    /// By the lane, or lost there; `Nowhere`: it goes by the kernel.
    pub fn put(&mut self, datagram: &RxDatagram<'_>, kernel: &dyn ByKernel) -> Delivered {
        if let Some(delivered) = self.put_into_lane(datagram) {
            return delivered;
        }
        // Perhaps it has left the lane, and this one is younger.
        self.ring(kernel);
        if record_len_of(datagram).is_none() || !self.lane.end.begin_ring(false) {
            return Delivered::Nowhere;
        }
        self.forget_unclaimed();
        self.wake_with(datagram, kernel)
    }

    fn put_into_lane(&mut self, datagram: &RxDatagram<'_>) -> Option<Delivered> {
        let delivered = self.lane.put(datagram);
        if delivered == Some(Delivered::ByLane) {
            self.note_unclaimed(datagram);
        }
        delivered
    }

    /// The program sleeps: the first one goes by the kernel, the others of the same frame are there when it looks.
    fn wake_with(&mut self, datagram: &RxDatagram<'_>, kernel: &dyn ByKernel) -> Delivered {
        let text = &*datagram.text;
        let first = datagram.segment.map_or(text.len(), |len| usize::from(len).min(text.len()));
        let (first, rest) = text.split_at(first);
        self.waking.of = Some((datagram.arrival, datagram.ports));
        self.waking.text.clear();
        self.waking.text.extend_from_slice(first);
        if rest.is_empty() {
            return Delivered::ByKernel;
        }
        let rest = RxDatagram { text: rest.into(), ..*datagram };
        self.put_into_lane(&rest).unwrap_or_else(|| {
            self.ring(kernel);
            one_by_one(&rest, kernel, &self.user)
        })
    }

    /// Of datagrams whose bytes are still with the link: by the lane, or lost there. `None`: they are wanted first, and in `bytes` if they are
    /// not with the link any more.
    pub fn put_tail(&mut self, late: Late<'_>, bytes: &mut Vec<u8>) -> Option<Delivered> {
        let delivered = self.lane.put_tail(late, bytes);
        if delivered == Some(Delivered::ByLane) {
            self.note_unclaimed(late.0);
        }
        delivered
    }

    #[inline]
    fn note_unclaimed(&mut self, datagram: &RxDatagram<'_>) {
        if self.lane.end.is_asleep() {
            self.note_unclaimed_record(datagram);
        }
    }

    fn note_unclaimed_record(&mut self, datagram: &RxDatagram<'_>) {
        let RxDatagram { arrival, ports, segment, .. } = *datagram;
        self.unclaimed_bytes += datagram.text.len();
        // None behind one that is not remembered: that one is older.
        if self.remembered < RETURNABLE_MAX
            && let (Some(len), Some(position)) = (record_len_of(datagram), self.lane.last_position)
        {
            self.remembered += 1;
            self.unclaimed.push_back(Unclaimed { arrival, ports, segment, position, len });
        }
    }

    fn forget_unclaimed(&mut self) {
        self.unclaimed.clear();
        (self.remembered, self.unclaimed_bytes) = (0, 0);
        (self.until, self.patience_us) = (None, PATIENCE_US);
    }

    /// Sends what wakes the program, if it has not gone yet: whether it had not.
    pub fn ring(&mut self, kernel: &dyn ByKernel) -> bool {
        let Some((arrival, ports)) = self.waking.of.take() else { return false };
        // What finds no room in the kernel's queue is lost, as anywhere; then there is what wakes the program.
        let text = self.waking.text.as_slice().into();
        kernel.deliver(&self.user, &RxDatagram { arrival, ports, headers: &[], text, segment: None });
        self.lane.end.end_ring();
        self.waking.text.clear();
        self.waking.text.shrink_to(RETAINED_LEN);
        true
    }

    /// In each round while something is looked after: how many records went by the kernel.
    pub fn look(&mut self, now: Instant, kernel: &dyn ByKernel) -> usize {
        let rung = usize::from(self.ring(kernel));
        if self.unclaimed_bytes > 0 && !self.lane.end.is_unclaimed() {
            self.forget_unclaimed();
        }
        let mut returned = 0;
        if !self.unclaimed.is_empty() && now >= *self.until.get_or_insert(now.after_us(self.patience_us)) {
            returned = self.return_one(kernel);
            self.patience_us = (self.patience_us * 2).min(PATIENCE_MAX_US);
            self.until = Some(now.after_us(self.patience_us));
        }
        self.is_listed = self.is_waiting();
        rung + returned
    }

    /// When that is to be done again.
    pub fn next_look(&self, now: Instant) -> Instant {
        if self.waking.of.is_some() {
            now
        } else {
            self.until.unwrap_or_else(|| now.after_us(self.patience_us))
        }
    }

    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// What woke the program was lost, or it does not come: the next one goes by the kernel. Its bytes are the program's memory by now, to which they
    /// go back; from whom they are it cannot say.
    #[cold]
    fn return_one(&mut self, kernel: &dyn ByKernel) -> usize {
        let Some(Unclaimed { arrival, ports, segment, position, len }) = self.unclaimed.pop_front() else {
            return 0;
        };
        if !self.lane.end.begin_ring(true) {
            return 0;
        }
        let mut text = std::mem::take(&mut self.waking.text);
        text.resize(len.saturating_sub(DatagramHeader::LEN) as usize, 0);
        self.lane.end.lane().read(position, DatagramHeader::LEN, &mut text);
        self.lane.end.void(position, len);
        let datagram = RxDatagram { arrival, ports, headers: &[], text: text.as_slice().into(), segment };
        one_by_one(&datagram, kernel, &self.user);
        self.lane.end.end_ring();
        text.clear();
        text.shrink_to(RETAINED_LEN);
        self.waking.text = text;
        1
    }
}

/// To the kernel, which knows no datagrams that lie behind each other.
fn one_by_one(datagram: &RxDatagram<'_>, kernel: &dyn ByKernel, user: &PagesOut) -> Delivered {
    let each = datagram.segment.map_or(datagram.text.len(), usize::from).max(1);
    if datagram.text.is_empty() {
        return kernel.deliver(user, &RxDatagram { text: (&[]).into(), segment: None, ..*datagram });
    }
    let mut delivered = Delivered::Nowhere;
    for text in datagram.text.chunks(each).take(TOGETHER_MAX) {
        delivered = kernel.deliver(user, &RxDatagram { text: text.into(), segment: None, ..*datagram });
    }
    delivered
}

impl Lane {
    /// By the lane, or lost there; `None`: the program does not look.
    fn put(&mut self, datagram: &RxDatagram<'_>) -> Option<Delivered> {
        let len = record_len_of(datagram)?;
        let position = match self.begin(len, datagram) {
            Ok(position) => position,
            Err(delivered) => return delivered,
        };
        self.end.lane().write(position, DatagramHeader::LEN, &datagram.text);
        self.end.publish(len).then_some(Delivered::ByLane)
    }

    /// The same, and the link writes the bytes itself.
    fn put_tail(&mut self, (datagram, (tail, at)): Late<'_>, bytes: &mut Vec<u8>) -> Option<Delivered> {
        let len = record_len_of(datagram)?;
        let position = match self.begin(len, datagram) {
            Ok(position) => position,
            Err(delivered) => return delivered,
        };
        let lane = self.end.lane();
        let text_len = datagram.text.len();
        let [first, second] = lane.pieces_from(position, DatagramHeader::LEN, text_len as u32);
        let lend = |(offset, len): (u64, usize)| lane.region().lend(offset, len);
        let (Ok(first), Ok(second)) = (lend(first), lend(second)) else { return Some(Delivered::Nowhere) };
        if !tail.take(at, &[first, second]) {
            return Some(Delivered::Nowhere);
        }
        if self.end.publish(len) {
            return Some(Delivered::ByLane);
        }
        // The program has just begun to wait, and the link does not have them any more.
        bytes.resize(text_len, 0);
        self.end.lane().read(position, DatagramHeader::LEN, bytes);
        None
    }

    /// Where a record may be written, of which the head is already. Else what became of the datagram, as [`Lane::put`] says it.
    fn begin(&mut self, len: u32, datagram: &RxDatagram<'_>) -> Result<u64, Option<Delivered>> {
        match self.end.offer(len) {
            Offer::Lane { position } => {
                let arrival = &datagram.arrival;
                let header = DatagramHeader {
                    peer: datagram.from().into(),
                    own: Endpoint { addr: arrival.dst, port: 0 }.into(),
                    hop_limit: arrival.hop_limit,
                    traffic_class: arrival.traffic_class,
                    segment: datagram.segment.unwrap_or(0),
                    ..DatagramHeader::default()
                };
                self.last_position = Some(position);
                self.end.lane().write(position, 0, header.as_bytes());
                Ok(position)
            }
            Offer::Full => Err(self.is_full()),
            Offer::Kernel => Err(None),
        }
    }

    /// Something is lost that a program would have had that had been let to run: once for each that it does.
    fn note_full(&mut self) {
        let now = Some((self.end.done_with(), self.end.opening()));
        self.is_crowded |= self.full_at != now;
        self.full_at = now;
    }

    /// It holds more than the kernel's queue would: what finds no room there would find none in that, and costs the engine nothing. Of the
    /// largest that is not known.
    #[cold]
    fn is_full(&mut self) -> Option<Delivered> {
        self.note_full();
        let is_larger = self.end.lane().ring_len() < u64::from(RING_LEN_MAX);
        if is_larger || self.end.is_asleep() || !self.end.overflow() {
            return Some(Delivered::QueueFull);
        }
        None
    }
}

#[cfg(test)]
mod tests;
