//! Puts packets together from their fragments (RFC 791 section 3.2, RFC 815; RFC 8200 section 4.5).
//!
//! Whoever sends fragments makes others keep memory, so all of it is bounded: in total, for each sender, for each packet,
//! and in time. Fragments that overlap spoil their packet (RFC 5722, which IPv4 gains by as well): nobody honest sends
//! such, and what the bytes would be is for whoever comes last to say. Nothing is answered for what is given up.

use crate::counter::Counter;
use crate::work::{Arrival, Piece};
use std::collections::HashMap;
use toe_base::{Addr, Instant};

/// Bytes of all fragments together, with what keeping them costs.
const MEMORY_MAX: usize = 4 << 20;
/// The same of one sender.
const MEMORY_OF_SENDER_MAX: usize = MEMORY_MAX / 8;
/// Fragments of one packet: as many as the largest has over links of 576 bytes.
const PIECES_MAX: usize = 128;
/// Bytes of the largest packet behind its headers.
const PACKET_MAX: u32 = 65_535;
/// What keeping a packet or a piece costs beside its bytes.
const OVERHEAD: usize = 128;
/// RFC 8200 section 4.5; Linux waits 30 s for IPv4 (RFC 1122 section 3.3.2 asks for 60 to 120 s, which only helps floods).
const WAIT_V4_US: u64 = 30_000_000;
const WAIT_V6_US: u64 = 60_000_000;
/// Marks that say "congestion experienced" (RFC 3168 section 5).
const CE: u8 = 0b11;

/// Whose pieces belong together. In IPv6 the protocol does not count: only the first piece says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    src: Addr,
    dst: Addr,
    protocol: Option<u8>,
    ident: u32,
}

/// A packet that is not complete.
#[derive(Debug)]
struct Partial {
    /// As its first piece came, when that is there.
    arrival: Arrival,
    protocol: u8,
    /// Some piece came through a congested queue (RFC 3168 section 5.3).
    is_marked: bool,
    /// By offset; none lies over another.
    pieces: Vec<(u32, Vec<u8>)>,
    /// Bytes of the whole, known from the last piece.
    len: Option<u32>,
    /// Pieces overlapped: all others are dropped, too.
    is_spoilt: bool,
    until: Instant,
}

/// A packet put together.
#[derive(Debug, PartialEq, Eq)]
pub struct Whole {
    pub arrival: Arrival,
    pub protocol: u8,
    pub bytes: Vec<u8>,
}

/// All packets that are not complete.
#[derive(Debug, Default)]
pub struct Fragments {
    partial: HashMap<Key, Partial>,
    /// What each sender's fragments cost.
    of_sender: HashMap<Addr, usize>,
    memory: usize,
    /// Not after any [`Partial::until`].
    next_due: Option<Instant>,
}

impl Fragments {
    /// One more piece. `Ok(Some)`: it was the last that was missing.
    pub fn add(&mut self, now: Instant, piece: &Piece<'_>) -> Result<Option<Whole>, Counter> {
        let end = piece.offset + piece.bytes.len() as u32;
        let is_sound = !piece.bytes.is_empty() && (!piece.more || piece.bytes.len().is_multiple_of(8));
        if !is_sound || end > PACKET_MAX {
            return Err(Counter::DropFragment);
        }
        let is_v4 = piece.arrival.src.is_v4();
        let key = Key {
            src: piece.arrival.src,
            dst: piece.arrival.dst,
            protocol: is_v4.then_some(piece.protocol),
            ident: piece.ident,
        };
        let cost = piece.bytes.len() + OVERHEAD + if self.partial.contains_key(&key) { 0 } else { OVERHEAD };
        let of_sender = self.of_sender.get(&key.src).copied().unwrap_or(0);
        if self.memory + cost > MEMORY_MAX || of_sender + cost > MEMORY_OF_SENDER_MAX {
            return Err(Counter::DropFragmentLimit);
        }
        let until = now.after_us(if is_v4 { WAIT_V4_US } else { WAIT_V6_US });
        let partial = self.partial.entry(key).or_insert_with(|| Partial::new(piece, until));
        let is_new = partial.pieces.is_empty() && !partial.is_spoilt;
        if is_new {
            self.next_due = Some(self.next_due.map_or(until, |due| due.min(until)));
        }
        match partial.put(piece, end) {
            Put::Held => {
                self.charge(key.src, cost);
                Ok(self.take_if_whole(key))
            }
            Put::Known => Ok(None),
            Put::Spoilt => {
                self.spoil(key, if is_new { OVERHEAD } else { 0 });
                Err(Counter::DropFragment)
            }
        }
    }

    fn charge(&mut self, sender: Addr, cost: usize) {
        self.memory += cost;
        *self.of_sender.entry(sender).or_default() += cost;
    }

    fn release(&mut self, sender: Addr, cost: usize) {
        self.memory -= cost;
        if let Some(charged) = self.of_sender.get_mut(&sender) {
            *charged -= cost;
            if *charged == 0 {
                self.of_sender.remove(&sender);
            }
        }
    }

    /// Nothing is kept of the packet but that it is spoilt.
    fn spoil(&mut self, key: Key, cost: usize) {
        self.charge(key.src, cost);
        let Some(partial) = self.partial.get_mut(&key) else { return };
        let freed = partial.cost() - OVERHEAD;
        partial.pieces = Vec::new();
        partial.is_spoilt = true;
        self.release(key.src, freed);
    }

    fn take_if_whole(&mut self, key: Key) -> Option<Whole> {
        if !self.partial.get(&key)?.is_whole() {
            return None;
        }
        let partial = self.partial.remove(&key)?;
        self.release(key.src, partial.cost());
        let traffic_class = partial.arrival.traffic_class | if partial.is_marked { CE } else { 0 };
        Some(Whole {
            arrival: Arrival { traffic_class, ..partial.arrival },
            protocol: partial.protocol,
            bytes: partial.pieces.into_iter().flat_map(|(_, bytes)| bytes).collect(),
        })
    }

    pub fn next_deadline(&self) -> Instant {
        self.next_due.unwrap_or(Instant::FAR_FUTURE)
    }

    /// Gives up what has waited too long; returns how many packets.
    pub fn on_timeout(&mut self, now: Instant) -> usize {
        if self.next_deadline() > now {
            return 0;
        }
        let late: Vec<Key> =
            self.partial.iter().filter(|(_, p)| p.until <= now).map(|(key, _)| *key).collect();
        for key in &late {
            if let Some(partial) = self.partial.remove(key) {
                self.release(key.src, partial.cost());
            }
        }
        self.next_due = self.partial.values().map(|partial| partial.until).min();
        late.len()
    }
}

/// What became of a piece.
enum Put {
    Held,
    /// It is there already.
    Known,
    Spoilt,
}

impl Partial {
    fn new(piece: &Piece<'_>, until: Instant) -> Partial {
        Partial {
            arrival: piece.arrival,
            protocol: piece.protocol,
            is_marked: false,
            pieces: Vec::new(),
            len: None,
            is_spoilt: false,
            until,
        }
    }

    fn put(&mut self, piece: &Piece<'_>, end: u32) -> Put {
        if self.is_spoilt || self.pieces.len() == PIECES_MAX {
            return Put::Spoilt;
        }
        let at = self.pieces.partition_point(|(offset, _)| *offset < piece.offset);
        let next = self.pieces.get(at);
        // A network may double a packet (RFC 8200 section 4.5 allows to leave out exact copies).
        if next.is_some_and(|(offset, bytes)| *offset == piece.offset && *bytes == piece.bytes) {
            return Put::Known;
        }
        let before = at.checked_sub(1).and_then(|at| self.pieces.get(at));
        let overlaps = before.is_some_and(|(offset, bytes)| offset + bytes.len() as u32 > piece.offset)
            || next.is_some_and(|(offset, _)| *offset < end);
        let reach = self.pieces.last().map_or(0, |(offset, bytes)| offset + bytes.len() as u32);
        let contradicts = match self.len {
            Some(len) => !piece.more && len != end || end > len,
            None => !piece.more && reach > end,
        };
        if overlaps || contradicts {
            return Put::Spoilt;
        }
        if !piece.more {
            self.len = Some(end);
        }
        if piece.offset == 0 {
            (self.arrival, self.protocol) = (piece.arrival, piece.protocol);
        }
        self.is_marked |= piece.arrival.traffic_class & CE == CE;
        self.pieces.insert(at, (piece.offset, piece.bytes.to_vec()));
        Put::Held
    }

    fn bytes(&self) -> usize {
        self.pieces.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Without overlaps, so many bytes can only be all of them.
    fn is_whole(&self) -> bool {
        self.len.is_some_and(|len| self.bytes() == len as usize)
    }

    fn cost(&self) -> usize {
        OVERHEAD + self.bytes() + self.pieces.len() * OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_wire::link::MacAddr;

    fn arrival(src: Addr) -> Arrival {
        let dst = if src.is_v4() { Addr::from([10, 0, 0, 2]) } else { Addr::LOCALHOST_V6 };
        Arrival { from_mac: MacAddr::default(), src, dst, hop_limit: 64, traffic_class: 0, zone: 1 }
    }

    fn piece(ident: u32, offset: u32, more: bool, bytes: &[u8]) -> Piece<'_> {
        Piece { arrival: arrival([10, 0, 0, 1].into()), protocol: 6, ident, offset, more, bytes }
    }

    const T0: Instant = Instant::ZERO;

    fn is_empty(fragments: &Fragments) -> bool {
        fragments.memory == 0 && fragments.partial.is_empty() && fragments.of_sender.is_empty()
    }

    #[test]
    fn pieces_in_any_order_make_the_packet() {
        let bytes: Vec<u8> = (0..29).collect();
        let cut = |from: usize, to: usize| piece(7, from as u32, to < 29, &bytes[from..to]);
        let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]];
        let pieces = [cut(0, 8), cut(8, 16), cut(16, 24), cut(24, 29)];
        for order in orders {
            let mut fragments = Fragments::default();
            let mut found = Vec::new();
            for at in order {
                found.push(fragments.add(T0, &pieces[at]).expect("sound"));
                assert_eq!(fragments.add(T0, &pieces[order[0]]).map(|whole| whole.is_some()), Ok(false));
            }
            let whole = found.pop().flatten().expect("complete");
            assert_eq!((whole.bytes.as_slice(), whole.protocol), (bytes.as_slice(), 6));
            assert!(found.iter().all(Option::is_none));
            // The copy that was added after the last piece began anew.
            fragments.on_timeout(T0.after_us(WAIT_V4_US));
            assert!(is_empty(&fragments), "{fragments:?}");
        }
    }

    #[test]
    fn what_overlaps_spoils_the_packet_for_as_long_as_it_is_waited_for() {
        for (offset, len, more) in
            [(0, 16, true), (8, 8, true), (16, 16, true), (12, 3, false), (8, 24, true)]
        {
            let mut fragments = Fragments::default();
            let bytes = [1; 64];
            fragments.add(T0, &piece(7, 0, true, &bytes[..8])).expect("sound");
            fragments.add(T0, &piece(7, 8, true, &bytes[..16])).expect("sound");
            let evil = piece(7, offset, more, &bytes[..len]);
            assert_eq!(fragments.add(T0, &evil), Err(Counter::DropFragment), "{offset} {len}");
            assert_eq!(fragments.add(T0, &piece(7, 24, false, &bytes[..8])), Err(Counter::DropFragment));
            assert_eq!(fragments.memory, OVERHEAD, "only that it is spoilt is kept");
            assert_eq!(fragments.on_timeout(T0.after_us(WAIT_V4_US)), 1);
            assert!(is_empty(&fragments));
        }
    }

    #[test]
    fn ends_that_contradict_each_other_spoil_it_too() {
        let bytes = [1; 64];
        let mut fragments = Fragments::default();
        fragments.add(T0, &piece(7, 16, false, &bytes[..5])).expect("sound");
        assert_eq!(fragments.add(T0, &piece(7, 24, true, &bytes[..8])), Err(Counter::DropFragment));
        fragments.add(T0, &piece(8, 32, true, &bytes[..8])).expect("sound");
        assert_eq!(fragments.add(T0, &piece(8, 16, false, &bytes[..5])), Err(Counter::DropFragment));
        assert_eq!(
            fragments.add(T0, &piece(9, 0, true, &bytes[..7])),
            Err(Counter::DropFragment),
            "no units of 8"
        );
        assert_eq!(
            fragments.add(T0, &piece(9, 65_528, false, &bytes[..8])),
            Err(Counter::DropFragment),
            "too long"
        );
        assert_eq!(fragments.add(T0, &piece(9, 0, true, &[])), Err(Counter::DropFragment));
    }

    #[test]
    fn neither_one_sender_nor_all_together_take_more_than_their_part() {
        let bytes = [1; 1024];
        let mut fragments = Fragments::default();
        let from = |sender: u32, ident| Piece {
            arrival: arrival(sender.to_be_bytes().into()),
            ..piece(ident, 0, true, &bytes)
        };
        let mut kept = 0;
        while fragments.add(T0, &from(1, kept)).is_ok() {
            kept += 1;
            assert!(kept < 10_000, "there is a limit");
        }
        assert!(fragments.memory <= MEMORY_OF_SENDER_MAX);
        assert!(fragments.add(T0, &from(2, 0)).is_ok(), "another one has room");
        for sender in 2..100 {
            for ident in 0..kept {
                let _ = fragments.add(T0, &from(sender, ident));
            }
        }
        assert!(fragments.memory <= MEMORY_MAX && fragments.memory > MEMORY_MAX - 4096);
        assert!(fragments.on_timeout(T0.after_us(WAIT_V4_US)) > 0);
        assert!(is_empty(&fragments) && fragments.next_deadline().is_far_future());
    }

    #[test]
    fn each_family_waits_its_time_and_a_mark_on_any_piece_counts() {
        let bytes = [1; 8];
        let mut fragments = Fragments::default();
        let v6 = Piece { arrival: arrival(Addr::LOCALHOST_V6), ..piece(1, 0, true, &bytes) };
        fragments.add(T0, &v6).expect("sound");
        fragments.add(T0, &piece(1, 0, true, &bytes)).expect("sound");
        assert_eq!(fragments.on_timeout(T0.after_us(WAIT_V4_US)), 1);
        assert_eq!(fragments.next_deadline(), T0.after_us(WAIT_V6_US));
        // Of IPv6 only the first piece's next header counts.
        let mut last = Piece { protocol: 17, offset: 8, more: false, ..v6 };
        last.arrival.traffic_class = CE;
        let whole = fragments.add(T0, &last).expect("sound").expect("complete");
        assert_eq!((whole.protocol, whole.arrival.traffic_class), (6, CE));
        assert!(is_empty(&fragments));
    }

    #[test]
    fn a_packet_of_very_many_pieces_is_none() {
        let bytes = [1; 8];
        let mut fragments = Fragments::default();
        let add = |fragments: &mut Fragments, n: u32| fragments.add(T0, &piece(1, n * 8, true, &bytes));
        (0..PIECES_MAX as u32).for_each(|n| assert!(add(&mut fragments, n).is_ok()));
        assert_eq!(add(&mut fragments, PIECES_MAX as u32), Err(Counter::DropFragment));
        assert_eq!(fragments.memory, OVERHEAD);
    }
}
