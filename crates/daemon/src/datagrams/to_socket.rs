//! Where a socket finds what has come for it: in its lane while its program looks there, else in the kernel's queue, which wakes whoever
//! sleeps (decision 0035).
//!
//! To hand a datagram to the kernel takes ten times as long as to put it into a lane, and costs the program a call for each. So who sleeps is
//! woken by *one*: what comes after it is [`Held`] until the program opens its lane, begins another wait (it is woken anew), or has done
//! neither for [`PATIENCE_US`]: then some go by the kernel, more each time. Called by the parent, which has all sockets.

use super::held::{Held, Total};
use toe_abi::lane::{RECORD_MAX, RING_LEN_MAX, RecordHead};
use toe_base::{Cred, Endpoint, Instant};
use toe_engine::{Delivered, RxDatagram};
use toe_ring::LaneSender;
use toe_ring::lane::Offer;
use toe_wire::link::FrameTail;
use zerocopy::IntoBytes;

/// How long a program that was woken has to look into its lane.
const PATIENCE_US: u64 = 1_000;
/// Datagrams that go by the kernel then, at most: first one, and after as long again twice as many. A program that has no processor for some ms looks in
/// the end, and the kernel's queue holds less than is held here.
const BY_KERNEL_AT_ONCE: usize = 16;

/// Octets that are held and much: more than small datagrams are in so short a time.
const MUCH: usize = 32 << 10;

/// The kernel's way.
pub(super) trait ByKernel {
    fn deliver(&self, datagram: &RxDatagram<'_>) -> Delivered;
}

/// That, and the room that all sockets share.
pub(super) struct Beside<'a> {
    pub kernel: &'a dyn ByKernel,
    pub total: &'a mut Total,
}

/// Datagrams whose octets are still with the link, there from that octet of the frame on.
pub(super) type Late<'a> = (&'a RxDatagram<'a>, (&'a dyn FrameTail, usize));

/// Octets of the record; `None`: there are none so large.
fn record_len_of(datagram: &RxDatagram<'_>) -> Option<u32> {
    u32::try_from(datagram.text.len())
        .ok()
        .map(|len| len.saturating_add(RecordHead::LEN))
        .filter(|len| *len <= RECORD_MAX)
}

#[derive(Debug)]
struct Lane {
    end: LaneSender,
    /// It was full, and its program, which is awake, has not opened it since.
    overflowed: bool,
    /// How far the program was when there was no room last: what it had read, and its waits.
    full_at: Option<(u64, u64)>,
    /// There was no room, and the program had come further since the last time.
    is_crowded: bool,
}

#[derive(Debug)]
pub(super) struct ToSocket {
    lane: Lane,
    /// Whose its program is.
    account: Cred,
    /// Which of the program's waits was ended last by a datagram in the kernel's queue.
    rung: Option<u64>,
    /// The program has left the lane, and this was seen before.
    was_over: bool,
    held: Held,
    /// When some of what is held goes by the kernel, not known before the first look; and how much then.
    until: Option<Instant>,
    at_once: usize,
}

impl Drop for ToSocket {
    fn drop(&mut self) {
        self.lane.end.close();
    }
}

impl ToSocket {
    pub fn new(end: LaneSender, account: Cred) -> ToSocket {
        ToSocket {
            account,
            lane: Lane { end, overflowed: false, full_at: None, is_crowded: false },
            rung: None,
            was_over: false,
            held: Held::new(account),
            until: None,
            at_once: 1,
        }
    }

    pub fn account(&self) -> Cred {
        self.account
    }

    /// So much that copying it is most of the work, for a program that was just woken. One that has not come for long is stopped, or does not
    /// mean to come, and others have the links as well.
    pub fn holds_much(&self) -> bool {
        self.held.octets() >= MUCH && self.at_once == 1
    }

    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether its program reads, or was woken, and was perhaps not let to run: once.
    pub fn take_crowded(&mut self) -> bool {
        std::mem::take(&mut self.lane.is_crowded)
    }

    /// The socket is gone, and what is held with it.
    pub fn give_up(&mut self, total: &mut Total) {
        self.held.give_up(total);
    }

    /// By the lane at once or soon, or lost there; `Nowhere`: it goes by the kernel.
    pub fn put(&mut self, datagram: &RxDatagram<'_>, beside: &mut Beside<'_>) -> Delivered {
        if self.holds() {
            self.settle(beside);
        }
        if self.holds() {
            return self.hold(datagram, beside);
        }
        if let Some(delivered) = self.lane.put(datagram) {
            return delivered;
        }
        match self.wait_to_end() {
            Waits::Unknown => Delivered::Nowhere,
            Waits::Ended => self.hold(datagram, beside),
            Waits::Sleeps(wait) => {
                self.rung = Some(wait);
                self.wake_with(datagram, beside)
            }
        }
    }

    /// Of datagrams whose octets are still with the link: by the lane, or lost there. `None`: they are wanted first, and in `octets` if they are
    /// not with the link any more.
    pub fn put_tail(
        &mut self,
        (datagram, tail): Late<'_>,
        octets: &mut Vec<u8>,
        beside: &mut Beside<'_>,
    ) -> Option<Delivered> {
        if self.holds() {
            self.settle(beside);
        }
        if !self.holds() {
            return self.lane.put_tail((datagram, tail), octets);
        }
        if self.held.has_room(datagram.text.len(), beside.total) {
            return None;
        }
        self.lane.note_full();
        Some(Delivered::QueueFull)
    }

    fn hold(&mut self, datagram: &RxDatagram<'_>, beside: &mut Beside<'_>) -> Delivered {
        if self.held.push(datagram, beside.total) {
            // Who was woken is let to run before more comes, which then goes straight into the lane.
            self.lane.note_full();
            return Delivered::ByLane;
        }
        self.lane.note_full();
        Delivered::QueueFull
    }

    /// The program sleeps: the first one goes by the kernel, the others of the same frame are held.
    fn wake_with(&mut self, datagram: &RxDatagram<'_>, beside: &mut Beside<'_>) -> Delivered {
        let Some(segment) = datagram.segment.map(usize::from) else { return Delivered::Nowhere };
        let Some((first, rest)) = datagram.text.split_at_checked(segment) else { return Delivered::Nowhere };
        let delivered = beside.kernel.deliver(&RxDatagram { text: first, segment: None, ..*datagram });
        if delivered == Delivered::ByKernel {
            return self.hold(&RxDatagram { text: rest, ..*datagram }, beside);
        }
        delivered
    }

    /// What the program is doing that does not look.
    fn wait_to_end(&mut self) -> Waits {
        if self.lane.end.is_over() && self.holds() && !std::mem::replace(&mut self.was_over, true) {
            // Perhaps the socket is closed. Then the next round knows, and what is held is not for whoever has the name after it.
            return Waits::Ended;
        }
        match self.lane.end.waits() {
            _ if self.lane.end.is_over() || self.lane.overflowed => Waits::Unknown,
            0 => Waits::Unknown,
            wait if self.rung == Some(wait) => Waits::Ended,
            wait => Waits::Sleeps(wait),
        }
    }

    /// Moves what is held into the lane if that is open by now, or wakes the program if it sleeps anew. How many datagrams that was.
    fn settle(&mut self, beside: &mut Beside<'_>) -> usize {
        let mut moved = 0;
        while let Some(first) = self.held.first() {
            let len = first.text.len();
            match self.lane.put(&first) {
                Some(Delivered::ByLane) => {
                    self.held.pop(len, beside.total);
                    self.at_once = 1;
                }
                Some(_) => break,
                None => match self.wait_to_end() {
                    Waits::Unknown if moved < BY_KERNEL_AT_ONCE => self.pass_to_kernel(beside),
                    Waits::Unknown | Waits::Ended => break,
                    Waits::Sleeps(wait) => {
                        // The more, the more often it has waited without a look into its lane.
                        self.rung = Some(wait);
                        (0..self.at_once).for_each(|_| self.pass_to_kernel(beside));
                        self.at_once = (self.at_once * 2).min(BY_KERNEL_AT_ONCE);
                        // Once a call: the word is the program's, which may count on while it is looked at, and each way by the kernel is dear.
                        return moved + 1;
                    }
                },
            }
            moved += 1;
        }
        moved
    }

    fn pass_to_kernel(&mut self, beside: &mut Beside<'_>) {
        let Some(first) = self.held.first() else { return };
        let len = first.segment.map_or(first.text.len(), |len| usize::from(len).min(first.text.len()));
        // What finds no room in its queue is lost, as anywhere.
        beside.kernel.deliver(&RxDatagram { text: &first.text[..len], segment: None, ..first });
        self.held.pop(len, beside.total);
    }

    /// The same in each round while something is held.
    pub fn look(&mut self, now: Instant, beside: &mut Beside<'_>) -> usize {
        let mut moved = self.settle(beside);
        if moved > 0 || !self.holds() {
            self.until = None;
        }
        if !self.holds() {
            return moved;
        }
        if now >= *self.until.get_or_insert(now.after_us(PATIENCE_US)) {
            (0..self.at_once).for_each(|_| self.pass_to_kernel(beside));
            moved += self.at_once;
            self.until = None;
            self.at_once = (self.at_once * 2).min(BY_KERNEL_AT_ONCE);
        }
        moved
    }
}

/// Of a program that does not look into its lane.
enum Waits {
    /// It has left the lane, or does not tell.
    Unknown,
    /// Something is in the kernel's queue for the wait that was its last.
    Ended,
    /// It sleeps, or is about to: in that wait.
    Sleeps(u64),
}

impl Lane {
    /// By the lane, or lost there; `None`: the program does not look.
    fn put(&mut self, datagram: &RxDatagram<'_>) -> Option<Delivered> {
        let len = record_len_of(datagram)?;
        let place = match self.begin(len, datagram) {
            Ok(place) => place,
            Err(delivered) => return delivered,
        };
        self.end.lane().write(place, RecordHead::LEN, datagram.text);
        self.end.publish(len).then_some(Delivered::ByLane)
    }

    /// The same, and the link writes the octets itself.
    fn put_tail(&mut self, (datagram, (tail, at)): Late<'_>, octets: &mut Vec<u8>) -> Option<Delivered> {
        let len = record_len_of(datagram)?;
        let place = match self.begin(len, datagram) {
            Ok(place) => place,
            Err(delivered) => return delivered,
        };
        let lane = self.end.lane();
        let text_len = datagram.text.len();
        let [first, second] = lane.pieces_from(place, RecordHead::LEN, text_len as u32);
        let lend = |(offset, len): (u64, usize)| lane.region().lend(offset, len);
        let (Ok(first), Ok(second)) = (lend(first), lend(second)) else { return Some(Delivered::Nowhere) };
        if !tail.take(at, &[first, second]) {
            return Some(Delivered::Nowhere);
        }
        if self.end.publish(len) {
            return Some(Delivered::ByLane);
        }
        // The program has just begun to wait, and the link does not have them any more.
        octets.resize(text_len, 0);
        self.end.lane().read(place, RecordHead::LEN, octets);
        None
    }

    /// Where a record may be written, of which the head is already. Else what became of the datagram, as [`Lane::put`] says it.
    fn begin(&mut self, len: u32, datagram: &RxDatagram<'_>) -> Result<u64, Option<Delivered>> {
        match self.end.offer(len) {
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
                self.overflowed = false;
                self.end.lane().write(place, 0, head.as_bytes());
                Ok(place)
            }
            Offer::Full => Err(self.is_full()),
            Offer::Kernel => Err(None),
        }
    }

    /// Something is lost that a program would have had that had been let to run: once for each that it does.
    fn note_full(&mut self) {
        let now = Some((self.end.done_with(), self.end.waits()));
        self.is_crowded |= self.full_at != now;
        self.full_at = now;
    }

    /// It holds more than the kernel's queue would: what finds no room there would find none in that, and costs the engine nothing. Of the
    /// largest that is not known.
    #[cold]
    fn is_full(&mut self) -> Option<Delivered> {
        self.note_full();
        if self.end.lane().ring_len() < u64::from(RING_LEN_MAX) {
            return Some(Delivered::QueueFull);
        }
        self.overflowed = self.end.overflow();
        if self.overflowed { None } else { Some(Delivered::QueueFull) }
    }
}

#[cfg(test)]
mod tests;
