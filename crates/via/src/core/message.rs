//! How messages are cut into fragments and put together again. Plain values; the bytes are the caller's.

use toe_abi::via::{FRAGMENT_MAX, Fragment};
use toe_ring::via::Breach;

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the message.
    pub at: u64,
    pub fragment: Fragment,
}

/// A message on its way out.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    total: u64,
    /// `None`: not begun.
    sent: Option<u64>,
}

impl Outgoing {
    pub const fn new(total: u64) -> Outgoing {
        Outgoing { total, sent: None }
    }

    pub const fn is_begun(&self) -> bool {
        self.sent.is_some()
    }

    /// What goes next. `None`: all has gone.
    #[inline]
    pub fn next(&self) -> Option<Piece> {
        let at = match self.sent {
            None => 0,
            Some(sent) if sent < self.total => sent,
            Some(_) => return None,
        };
        let len = (self.total - at).min(u64::from(FRAGMENT_MAX)) as u32;
        let begins = if self.is_begun() { None } else { Some(self.total) };
        Some(Piece { at, fragment: Fragment { len, begins } })
    }

    /// What [`Outgoing::next`] gave has gone.
    #[inline]
    pub fn sent(&mut self, piece: Piece) {
        self.sent = Some(piece.at + u64::from(piece.fragment.len));
    }
}

/// The message that comes in, if one is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Incoming {
    /// Its length, and how much has come.
    under_way: Option<(u64, u64)>,
}

/// Where the bytes of a fragment belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub at: u64,
    /// The message's length.
    pub total: u64,
    /// It is whole with this fragment.
    pub is_last: bool,
}

impl Incoming {
    /// Where a fragment belongs.
    #[inline]
    pub fn locate(&self, fragment: Fragment) -> Result<Placed, Breach> {
        let (total, at) = match (self.under_way, fragment.begins) {
            (None, Some(total)) => (total, 0),
            (Some(under_way), None) => under_way,
            // In the middle of a message another begins, or goes on that was not begun.
            _ => return Err(Breach),
        };
        let end = at + u64::from(fragment.len);
        // One that brings nothing would let a message never end.
        if end > total || fragment.len == 0 && total > 0 {
            return Err(Breach);
        }
        Ok(Placed { at, total, is_last: end == total })
    }

    /// What [`Incoming::place`] has placed was taken.
    #[inline]
    pub fn took(&mut self, placed: Placed, fragment: Fragment) {
        let come = placed.at + u64::from(fragment.len);
        self.under_way = if placed.is_last { None } else { Some((placed.total, come)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fragments of a message of so many bytes.
    fn cut(total: u64) -> Vec<Piece> {
        let mut message = Outgoing::new(total);
        let mut pieces = Vec::new();
        while let Some(piece) = message.next() {
            message.sent(piece);
            pieces.push(piece);
        }
        pieces
    }

    #[test]
    fn messages_of_any_size_come_out_as_they_went_in() {
        let most = u64::from(FRAGMENT_MAX);
        let mut incoming = Incoming::default();
        for total in [0, 1, 48, 49, most - 1, most, most + 1, 2 * most, 10 * most + 77] {
            let pieces = cut(total);
            assert_eq!(pieces.len() as u64, total.div_ceil(most).max(1), "{total}");
            for (number, piece) in pieces.iter().enumerate() {
                let placed = incoming.locate(piece.fragment).expect("no breach");
                let is_last = number + 1 == pieces.len();
                assert_eq!(placed, Placed { at: piece.at, total, is_last });
                incoming.took(placed, piece.fragment);
            }
        }
    }

    #[test]
    fn fragments_that_do_not_follow_each_other_are_a_breach() {
        let begins = |len, total| Fragment { len, begins: Some(total) };
        let goes_on = |len| Fragment { len, begins: None };
        let mut incoming = Incoming::default();
        assert_eq!(incoming.locate(goes_on(1)), Err(Breach), "of no message");
        assert_eq!(incoming.locate(begins(0, 1)), Err(Breach), "of nothing");
        let first = begins(10, 30);
        incoming.took(incoming.locate(first).expect("a message begins"), first);
        for bad in [begins(1, 1), goes_on(21), goes_on(0)] {
            assert_eq!(incoming.locate(bad), Err(Breach), "{bad:?}");
        }
        let last = incoming.locate(goes_on(20)).expect("the rest");
        assert!(last.is_last);
    }
}
