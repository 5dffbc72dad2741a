//! The lanes by which datagrams come to one socket, in turn with the kernel's queue: what is received next, and when the lanes
//! are open. Knows no descriptor, signal, thread or process; the kernel's queue is what its caller says of it ([`Queue`]).

use crate::program_memory;
use crate::socket::slices::Scatter;
use std::io::IoSliceMut;
use toe_abi::errno::Errno;
use toe_abi::lane::DatagramHeader;
use toe_base::{Addr, Endpoint};
use toe_ring::LaneReceiver;
use toe_ring::lane::Record;
use zerocopy::IntoBytes;

/// Lanes that one socket receives by; what comes from others goes by the kernel.
pub(super) const LANES_MAX: usize = 16;
/// After so many datagrams from lanes the kernel's queue is looked at, so that those who send by it are heard, too.
const KERNEL_HEARD_EVERY: u32 = 64;

/// A datagram takes up at least so many bytes of a socket's queue (Linux counts what it needs for itself).
const QUEUED_LEN_MIN: u64 = 512;

/// What a look at the kernel's queue found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Empty,
    /// First in it is a datagram from there; `None`: nobody knows.
    From(Option<Endpoint>),
}

/// What a receiver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Take {
        lane: usize,
        record: Record,
    },
    /// The kernel's queue comes first, or has its turn. `directly`: whatever is in it does; else it is to be looked at
    /// ([`Incoming::found`]).
    Kernel {
        directly: bool,
    },
    /// All lanes are empty. Unless one is open, all that comes does so by the kernel; `directly` as above.
    Nothing {
        is_open: bool,
        directly: bool,
    },
}

/// A datagram that came by a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes that were copied…
    pub len: usize,
    /// …of so many.
    pub whole: usize,
    pub from: Endpoint,
    /// Where it came to.
    pub own: Addr,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// It is several of so many bytes each, the last perhaps shorter; 0: it is one.
    pub segment: u16,
}

/// How a datagram is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct How {
    /// It stays where it is.
    pub peeks: bool,
    /// Several that lie in one record are one (UDP_GRO).
    pub joins: bool,
}

/// Who is at the other end of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Socket(Endpoint),
    /// For all whose datagrams come by its links: a record says who has sent it.
    Engine,
}

impl Sender {
    /// Whether what that one sends may lie in the lane.
    fn stands_for(self, peer: Endpoint) -> bool {
        match self {
            Sender::Socket(socket) => socket == peer,
            Sender::Engine => !peer.addr.is_loopback(),
        }
    }
}

#[derive(Debug)]
struct Lane {
    end: LaneReceiver,
    from: Sender,
    /// Bytes of the first record's datagrams that have been taken.
    done: u32,
    /// How many datagrams had come by the kernel when the first of this opening was seen here.
    seen_at: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Incoming {
    lanes: Vec<Lane>,
    /// Which lane is looked at first.
    first_index: usize,
    taken: u32,
    /// Counts looks at the lanes.
    looks: u32,
    /// How many datagrams had come by the kernel when a thread began to wait last.
    slept_at: u32,
    /// What had come by lanes that are no more.
    came_before: u64,
    peeked: Option<Peeked>,
    /// Datagrams that have come by lanes since those were opened; `None`: they were not, or it has been asked for.
    fruits: Option<u32>,
}

/// Where the datagram was that was looked at last and not taken since: it stays the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peeked {
    Lane { from: Sender, position: u64 },
    Kernel,
}

/// The head of a record, if it has one, and the bytes that it takes up.
fn header_of(end: &LaneReceiver, from: Sender, record: Record) -> (DatagramHeader, u32) {
    let mut header = DatagramHeader::default();
    if record.len < DatagramHeader::LEN || !record.has_datagram_header && from != Sender::Engine {
        return (header, if from == Sender::Engine { record.len } else { 0 });
    }
    end.lane().read(record.position, 0, header.as_mut_bytes());
    (header, DatagramHeader::LEN)
}

impl Lane {
    fn new(end: LaneReceiver, from: Sender) -> Lane {
        Lane { end, from, done: 0, seen_at: None }
    }

    /// Of a record's `text_len` bytes the part that is taken now: from where, how many, and what of [`Taken::segment`].
    fn part(&self, text_len: u32, segment: u16, joins: bool) -> (u32, u32, u16) {
        let each = u32::from(segment);
        if each == 0 || each >= text_len {
            return (0, text_len, 0);
        }
        // The sender may have written another head meanwhile.
        let from = if self.done < text_len { self.done } else { 0 };
        let rest = text_len - from;
        if joins { (from, rest, if rest > each { segment } else { 0 }) } else { (from, rest.min(each), 0) }
    }

    /// Datagrams up to there have been taken from a record.
    fn take_to(&mut self, record: Record, text_len: u32, to: u32) {
        self.done = if to < text_len { to } else { 0 };
        if self.done == 0 {
            self.end.take(record);
        }
    }

    /// Others may keep the kernel's queue from ever being empty: all that was in it when something was first seen here has come
    /// when so many have come that it could not hold more.
    fn confirm_after(&mut self, by_kernel: u32) {
        if !self.end.is_fresh() || self.end.is_empty() {
            self.seen_at = None;
            return;
        }
        let came = by_kernel.wrapping_sub(*self.seen_at.get_or_insert(by_kernel));
        if u64::from(came) >= self.end.lane().ring_len() / QUEUED_LEN_MIN {
            self.end.confirm();
        }
    }
}

impl Incoming {
    pub fn is_unused(&self) -> bool {
        self.lanes.is_empty()
    }

    pub fn has_lane_from(&self, peer: Endpoint) -> bool {
        self.lanes.iter().any(|lane| lane.from == Sender::Socket(peer) && !lane.end.is_closed())
    }

    pub fn has_room(&self) -> bool {
        self.lanes.len() < LANES_MAX
    }

    pub fn add(&mut self, from: Endpoint, end: LaneReceiver) {
        self.lanes.push(Lane::new(end, Sender::Socket(from)));
    }

    pub fn add_engine(&mut self, end: LaneReceiver) {
        self.lanes.push(Lane::new(end, Sender::Engine));
    }

    /// Ends all lanes; what is in them stays to be read.
    pub fn close(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.end.close());
    }

    /// Ends those from other sockets.
    pub fn close_sockets(&mut self) {
        let of_sockets = self.lanes.iter_mut().filter(|lane| lane.from != Sender::Engine);
        of_sockets.for_each(|lane| lane.end.close());
    }

    /// Ends them, and nobody is going to read what is in them.
    pub fn drop_all(&mut self) {
        self.close();
        *self = Incoming::default();
    }

    /// `may_open`: nobody waits for the kernel's queue. `by_kernel`: how many datagrams have come by that.
    pub fn next(&mut self, may_open: bool, by_kernel: u32) -> Next {
        self.looks = self.looks.wrapping_add(1);
        self.note_woken(by_kernel);
        let came_before = &mut self.came_before;
        self.lanes.retain_mut(|lane| {
            let stays = !lane.end.is_closed() || !lane.end.is_empty();
            *came_before += if stays { 0 } else { lane.end.came() };
            stays
        });
        if let Some(next) = self.as_peeked() {
            return next;
        }
        let count = self.lanes.len();
        let (mut is_open, mut waits, mut is_confirmed) = (false, false, false);
        for n in 0..count {
            let at = (self.first_index + n) % count;
            let Some(lane) = self.lanes.get_mut(at) else { break };
            lane.confirm_after(by_kernel);
            let end = &mut lane.end;
            if end.is_empty() {
                if may_open && end.is_wanted() {
                    end.open();
                }
                let is_this_open = !end.is_diverted() && !end.is_closed();
                is_open |= is_this_open;
                is_confirmed |= is_this_open && !end.is_fresh();
                continue;
            }
            if end.is_asleep() {
                // It was woken, and the engine has put more into the lane.
                if !end.claim(may_open) {
                    continue;
                }
                self.fruits.get_or_insert(0);
            }
            waits = true;
            if end.is_fresh() {
                continue;
            }
            is_confirmed = true;
            if self.taken < KERNEL_HEARD_EVERY
                && let Some(record) = end.first()
            {
                return Next::Take { lane: at, record };
            }
        }
        let directly = !is_confirmed;
        if waits { Next::Kernel { directly } } else { Next::Nothing { is_open, directly } }
    }

    /// What a call has looked at is what the next one gets, as long as it is there.
    fn as_peeked(&mut self) -> Option<Next> {
        match self.peeked? {
            Peeked::Kernel => return Some(Next::Kernel { directly: true }),
            Peeked::Lane { from, position } => {
                let found = self.lanes.iter_mut().enumerate().find(|(_, lane)| lane.from == from);
                if let Some((lane, record)) = found.and_then(|(at, lane)| Some((at, lane.end.first()?)))
                    && record.position == position
                {
                    return Some(Next::Take { lane, record });
                }
            }
        }
        self.peeked = None;
        None
    }

    /// The kernel's queue is what is received from, or looked at.
    pub fn leave_to_kernel(&mut self, peeks: bool) {
        self.peeked = peeks.then_some(Peeked::Kernel);
    }

    /// Which look was the last.
    pub fn looks(&self) -> u32 {
        self.looks
    }

    /// What came of a look at the kernel's queue after [`Incoming::next`]: whether a datagram is to be received from there now.
    pub fn found(&mut self, queue: Queue) -> bool {
        self.taken = 0;
        match queue {
            Queue::Empty => {
                self.kernel_was_empty(self.looks);
                false
            }
            // What its sender put into the lane before is older, unless it came before the lane was opened.
            Queue::From(Some(peer)) => {
                let mut of_peer = self.lanes.iter_mut().filter(|lane| lane.from.stands_for(peer));
                !of_peer.any(|lane| !lane.end.is_fresh() && !lane.end.is_empty())
            }
            Queue::From(None) => true,
        }
    }

    /// The kernel's queue was found empty after that look at the lanes. What others have seen since then may be younger.
    pub fn kernel_was_empty(&mut self, look: u32) {
        if self.peeked == Some(Peeked::Kernel) {
            self.peeked = None;
        }
        if look == self.looks {
            self.lanes.iter_mut().for_each(|lane| lane.end.confirm());
        }
    }

    /// Opens all lanes: somebody looks.
    pub fn open(&mut self) {
        self.lanes.iter_mut().filter(|lane| lane.end.is_diverted()).for_each(|lane| lane.end.open());
        self.fruits.get_or_insert(0);
    }

    /// How many datagrams came by lanes since they were opened, once.
    pub fn take_fruits(&mut self) -> Option<u32> {
        self.fruits.take()
    }

    /// Copies a datagram out, and takes it unless it is only to be looked at.
    pub fn take(
        &mut self,
        at: usize,
        record: Record,
        into: &mut [IoSliceMut<'_>],
        how: How,
    ) -> Result<Taken, Errno> {
        let Some(lane) = self.lanes.get_mut(at) else { return Err(Errno::EAGAIN) };
        let (header, header_len) = header_of(&lane.end, lane.from, record);
        let from = match lane.from {
            Sender::Socket(from) => from,
            Sender::Engine => header.peer.to_endpoint().unwrap_or(Endpoint::UNSPECIFIED_V4),
        };
        let text_len = record.len - header_len;
        let (part_at, part_len, segment) = lane.part(text_len, header.segment, how.joins);
        let whole = part_len as usize;
        let mut scatter = Scatter::new(into);
        let (mut len, mut copied) = (0, Ok(()));
        for (offset, piece) in lane.end.lane().pieces_from(record.position, header_len + part_at, part_len) {
            let piece = piece.min(scatter.left());
            if piece == 0 {
                continue;
            }
            let Ok(bytes) = lane.end.lane().region().lend(offset, piece) else { break };
            copied = scatter
                .fill(piece, |done, room| {
                    let from = bytes.as_ptr().cast::<u8>().wrapping_add(done);
                    // SAFETY: needed because the one is shared with another process and the other may not be there. `room` is
                    // the program's, which asked for it; from `done` on there are as many bytes as it has.
                    unsafe { program_memory::copy(room.as_mut_ptr(), from, room.len()) }
                })
                .map(|done| len += done);
            if copied.is_err() {
                break;
            }
        }
        self.peeked = how.peeks.then_some(Peeked::Lane { from: lane.from, position: record.position });
        if !how.peeks {
            lane.take_to(record, text_len, part_at + part_len);
            self.taken += 1;
            self.fruits = self.fruits.map(|fruits| fruits.saturating_add(1));
            self.first_index = if lane.end.is_empty() { at + 1 } else { at };
        }
        // Linux has taken it out of its queue, too, when the buffer turns out not to be there.
        let own = header.own.to_endpoint().map_or(from.addr.localhost(), |own| own.addr);
        copied.map(|()| Taken { len, whole, from, own, traffic_class: header.traffic_class, segment })
    }

    /// Bytes of records that have come by lanes.
    pub fn came(&mut self) -> u64 {
        self.looks = self.looks.wrapping_add(1);
        self.came_before + self.lanes.iter_mut().map(|lane| lane.end.came()).sum::<u64>()
    }

    /// Whether a sender may use a lane.
    pub fn is_open(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.end.is_diverted() && !lane.end.is_closed())
    }

    /// Whether a lane has something.
    pub fn has_something(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.lanes.iter_mut().any(|lane| !lane.end.is_empty())
    }

    /// What woke the program has come, whatever the engine says yet, which may have lost its processor by that.
    fn note_woken(&mut self, by_kernel: u32) {
        if by_kernel != self.slept_at {
            self.lanes.iter_mut().for_each(|lane| lane.end.wakes());
        }
    }

    /// A thread is about to wait for the kernel's queue, `alone` or as others do already; so many have come by that. `false`: something is in a lane.
    pub fn divert(&mut self, alone: bool, by_kernel: u32) -> bool {
        self.note_woken(by_kernel);
        self.slept_at = by_kernel;
        self.lanes.iter_mut().all(|lane| match lane.from {
            Sender::Engine => lane.end.sleep(alone).is_ok(),
            Sender::Socket(_) => lane.end.divert().is_ok(),
        })
    }
}
