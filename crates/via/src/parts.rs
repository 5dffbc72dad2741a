//! Ranges of the program's memory: what the data of a message are gathered from, or scattered to. Used by virtual interfaces (VIPL) and by
//! endpoints.

use toe_ring::ViaMemory;
use toe_ring::region::OutOfRange;

/// A range of the program's memory, as a descriptor names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub address: u64,
    pub handle: u32,
    pub len: u32,
}

/// Up to `MAX` of them, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Parts<const MAX: usize> {
    list: [Part; MAX],
    count: usize,
    pub len: u32,
}

impl<const MAX: usize> Default for Parts<MAX> {
    fn default() -> Parts<MAX> {
        Parts { list: [Part::default(); MAX], count: 0, len: 0 }
    }
}

impl<const MAX: usize> Parts<MAX> {
    pub fn one(part: Part) -> Parts<MAX> {
        let mut parts = Parts { count: 1, len: part.len, ..Parts::default() };
        parts.list[0] = part;
        parts
    }

    /// One more, behind those that it has. The length is the caller's. `false`: there is no room.
    pub fn push(&mut self, part: Part) -> bool {
        let has_room = self.count < MAX;
        if has_room {
            self.list[self.count] = part;
            self.count += 1;
        }
        has_room
    }

    pub fn list(&self) -> &[Part] {
        &self.list[..self.count]
    }

    /// As [`within`].
    pub fn within(&self, from: u64, len: u64) -> impl Iterator<Item = (Part, u64)> {
        within(self.list(), from, len)
    }
}

/// The parts that hold `len` bytes from `from` on, of those that lie one behind the other, each with where in those it begins.
pub fn within(parts: &[Part], from: u64, len: u64) -> impl Iterator<Item = (Part, u64)> {
    let mut at = 0;
    parts.iter().filter_map(move |part| {
        let (start, end) = (at, at + u64::from(part.len));
        at = end;
        let (first, last) = (start.max(from), end.min(from + len));
        let inner = Part {
            address: part.address + first.saturating_sub(start),
            handle: part.handle,
            len: last.saturating_sub(first) as u32,
        };
        (first < last).then_some((inner, first - from))
    })
}

/// The bytes of a part, which the program has promised to be there until what it has posted is done; where memory is registered, the
/// registry is kept locked.
pub fn to_connection(part: Part, memory: &ViaMemory, offset: u64) -> Result<(), OutOfRange> {
    // SAFETY: needed to send what the program has described. It has promised that the memory is there until it is given back (a lock is
    // taken for that: VipRegisterMem, fi_mr_reg) or until the send is done (fi_send), and that it leaves alone what it has posted.
    let bytes = unsafe { std::slice::from_raw_parts(part.address as *const u8, part.len as usize) };
    memory.write(offset, bytes)
}

/// The same the other way.
pub fn from_connection(part: Part, memory: &ViaMemory, offset: u64) -> Result<(), OutOfRange> {
    // SAFETY: as in `to_connection`; that the memory may be written to belongs to the promise.
    let bytes = unsafe { std::slice::from_raw_parts_mut(part.address as *mut u8, part.len as usize) };
    memory.read(offset, bytes)
}
