//! Pieces of host memory, and the few of them that a payload lies in.

use toe_abi::entry::MemRange;
use toe_base::SessionId;
use toe_base::limits::SEND_EXTENTS_MAX;

/// A piece of some session's region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(2))]
pub struct Extent {
    pub session: SessionId,
    pub range: MemRange,
}

/// Places in a queue: what the contract allows the owner, and one for what an earlier owner left behind.
pub const PIECES_MAX: usize = SEND_EXTENTS_MAX + 1;
/// The pieces of a payload, in stream order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pieces {
    extents: [Extent; PIECES_MAX],
    count: u8,
}

impl Pieces {
    pub fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.extents[..usize::from(self.count)].iter()
    }

    /// Bytes in all pieces.
    pub fn len(&self) -> u32 {
        self.iter().map(|e| e.range.len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pieces without the first `skip` bytes, cut to `len` bytes.
    #[must_use]
    pub fn slice(&self, skip: u32, len: u32) -> Pieces {
        Pieces::cut(self.iter(), skip, len)
    }

    pub(super) fn cut<'a>(extents: impl Iterator<Item = &'a Extent>, mut skip: u32, mut left: u32) -> Pieces {
        let mut out = Pieces::default();
        for Extent { session, range } in extents.copied() {
            if skip >= range.len {
                skip -= range.len;
                continue;
            }
            let take = (range.len - skip).min(left);
            if take == 0 {
                break;
            }
            let range = MemRange { offset: range.offset + u64::from(skip), len: take };
            out.extents[usize::from(out.count)] = Extent { session, range };
            out.count += 1;
            left -= take;
            skip = 0;
        }
        out
    }
}
