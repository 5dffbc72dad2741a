//! Walking over a program's scattered buffers, for `readv` and `writev` and everything else.

use crate::program_memory;
use crate::session::Session;
use crate::tls::record_type;
use std::io::{IoSlice, IoSliceMut};
use toe_abi::errno::Errno;
use toe_ring::OutOfRange;
use toe_ring::region::Region;

/// Bytes that go out with one entry: one segment of the engine. Whoever takes them can begin with the first while the next are still being
/// copied.
pub const PIECE: u32 = 64 << 10;
/// Bytes that are sent out of a program's buffers before it is looked again, without a lock, whether the next ones are there.
const AT_HAND: usize = 256 << 10;
const PAGE: usize = 4096;

/// Where bytes come from that a stream sends: a program's buffers, or a file.
pub trait Source {
    /// Bytes that can be put now, or more of them.
    fn left(&self) -> usize;

    /// Whether the next `len` bytes are certain to be put in whole. EFAULT: they are not all there to be read.
    fn check_next(&self, len: usize) -> Result<bool, Errno>;

    /// Puts up to `max` bytes where there is room for them. Returns how many.
    fn put(&mut self, room: Room<'_>, max: usize) -> Result<usize, Errno>;

    /// The last bytes that were put, so many, are to be put again.
    fn take_back(&mut self, len: usize);

    /// Nothing more will come.
    fn is_done(&self) -> bool {
        self.left() == 0
    }

    /// What can only be had by waiting, as for a disk. Called without any lock.
    fn refill(&mut self) {}

    /// The call is to wait, for an engine: what it reads from must be there still afterwards. Called without any lock.
    fn about_to_wait(&mut self, _engine: Option<&'static Session>) {}

    /// Once there was no room, it is to wait until there is some for more than a little: each part costs a system call.
    fn prefers_room(&self) -> bool {
        false
    }

    /// Most bytes of it that go out with one entry while so many are on their way.
    fn piece(&self, _on_their_way: u32) -> u32 {
        PIECE
    }

    /// Whether [`Source::refill`] is to be called.
    fn waits(&self) -> bool {
        false
    }

    /// Whether more bytes are certain to come.
    fn follows(&self) -> bool {
        self.left() > 0
    }

    /// Of a connection that makes records: the type of those for these bytes.
    fn record_type(&self) -> u8 {
        record_type::DATA
    }
}

/// Where a source's bytes go.
#[derive(Debug)]
pub enum Room<'a> {
    /// From an offset of a region on, which has room for them, in memory that is shared with another process.
    Shared(&'a Region, u64),
    /// As many as are asked for.
    Own(&'a mut [u8]),
}

/// Bytes that were received, where they lie.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// From an offset of a region on, in memory that is shared with another process.
    Shared(&'a Region, u64),
    Own(&'a [u8]),
}

/// What a target says to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Yes,
    /// Only in a call of its own.
    NotNow,
    /// The program has no room for the type.
    No,
}

/// Where received bytes go: a program's buffers, or a file.
pub trait Target {
    /// Bytes that still fit.
    fn left(&self) -> usize;

    /// Most that are given to it in one go, under the lock.
    fn most_at_once(&self) -> usize {
        usize::MAX
    }

    /// It takes no more, and says itself why.
    fn is_stopped(&self) -> bool {
        false
    }

    /// Called without any lock: where the next bytes go, of which so many are there, is to be at hand.
    fn prepare(&mut self, _there: usize) {}

    /// Takes up to `max` bytes. Returns how many: fewer, where it has no room now. After an error it is as if none had been.
    fn take(&mut self, bytes: Bytes<'_>, max: usize) -> Result<usize, Errno>;

    /// Of a connection with records: whether it takes bytes of one of this type. After the answer is yes it is given some.
    fn takes(&mut self, kind: u8) -> Takes {
        if kind == record_type::DATA { Takes::Yes } else { Takes::No }
    }
}

/// Buffers to be filled in order.
///
/// A program's may be a file's pages, which have to be read from a disk: that is waited for without a lock, before bytes are copied there.
#[derive(Debug)]
pub struct Scatter<'a, 'b> {
    slices: &'a mut [IoSliceMut<'b>],
    index: usize,
    offset: usize,
    left: usize,
    /// So many of the next bytes' places are.
    at_hand: usize,
}

impl<'a, 'b> Scatter<'a, 'b> {
    pub fn new(slices: &'a mut [IoSliceMut<'b>]) -> Scatter<'a, 'b> {
        let left = slices.iter().map(|slice| slice.len()).sum();
        Scatter { slices, index: 0, offset: 0, left, at_hand: usize::MAX }
    }

    /// The same, of a program's.
    pub fn of_program(slices: &'a mut [IoSliceMut<'b>]) -> Scatter<'a, 'b> {
        Scatter { at_hand: 0, ..Scatter::new(slices) }
    }

    /// Bytes that still fit.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Fills up to `max` bytes: `copy(done, piece)` writes the bytes from `done` on into `piece`. Returns how many. After an
    /// error it is as if none had been.
    pub fn fill(
        &mut self,
        max: usize,
        mut copy: impl FnMut(usize, &mut [u8]) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let (mut done, before) = (0, (self.index, self.offset, self.left));
        while done < max
            && let Some(slice) = self.slices.get_mut(self.index)
        {
            let room = &mut slice[self.offset..];
            let len = room.len().min(max - done);
            if len > 0 {
                if let Err(errno) = copy(done, &mut room[..len]) {
                    (self.index, self.offset, self.left) = before;
                    return Err(errno);
                }
                done += len;
                self.left -= len;
                self.offset += len;
            }
            if self.offset == slice.len() {
                self.index += 1;
                self.offset = 0;
            }
        }
        self.at_hand = self.at_hand.saturating_sub(done);
        Ok(done)
    }
}

impl Target for Scatter<'_, '_> {
    fn left(&self) -> usize {
        self.left
    }

    fn most_at_once(&self) -> usize {
        self.at_hand
    }

    /// Where no bytes are known of, only the page on which each buffer begins: a program may have said more than it has.
    fn prepare(&mut self, there: usize) {
        let there = there.min(self.left);
        if self.at_hand > 0 && self.at_hand >= there {
            return;
        }
        self.at_hand = 0;
        let mut offset = self.offset;
        for slice in self.slices.iter_mut().skip(self.index) {
            let rest = &mut slice[core::mem::take(&mut offset)..];
            let page_rest = PAGE - rest.as_ptr().addr() % PAGE;
            let len = rest.len().min(there.saturating_sub(self.at_hand).max(page_rest));
            program_memory::make_writable(&mut rest[..len]);
            self.at_hand += len;
            if len < rest.len() || self.at_hand >= there.max(PAGE) {
                break;
            }
        }
    }

    fn take(&mut self, bytes: Bytes<'_>, max: usize) -> Result<usize, Errno> {
        self.fill(max, |done, to| match bytes {
            Bytes::Shared(region, from) => read_region(region, from + done as u64, to),
            Bytes::Own(bytes) => read_slice(bytes, done, to),
        })
    }
}

/// Out of memory that is shared with another process, as `Region::read`, into a program's, which may not be there.
fn read_region(region: &Region, from: u64, to: &mut [u8]) -> Result<(), Errno> {
    let lent = region.lend(from, to.len()).map_err(|OutOfRange| Errno::EIO)?;
    // SAFETY: needed because the program's memory may not be there. Nothing but the copy's end is looked at before it is the
    // program's again; a region and a program's buffer are apart.
    unsafe { program_memory::copy(to.as_mut_ptr(), lent.as_ptr().cast(), to.len()) }
}

fn read_slice(bytes: &[u8], from: usize, to: &mut [u8]) -> Result<(), Errno> {
    let bytes = bytes.get(from..from + to.len()).ok_or(Errno::EIO)?;
    // SAFETY: needed as above; our own memory and the program's are apart.
    unsafe { program_memory::copy(to.as_mut_ptr(), bytes.as_ptr(), bytes.len()) }
}

/// Buffers to be emptied in order. A program's are looked after as a [`Scatter`]'s.
#[derive(Debug)]
pub struct Gather<'a, 'b> {
    slices: &'a [IoSlice<'b>],
    index: usize,
    offset: usize,
    left: usize,
    at_hand: usize,
}

impl<'a, 'b> Gather<'a, 'b> {
    pub fn new(slices: &'a [IoSlice<'b>]) -> Gather<'a, 'b> {
        let left = slices.iter().map(|slice| slice.len()).sum();
        Gather { slices, index: 0, offset: 0, left, at_hand: usize::MAX }
    }

    pub fn of_program(slices: &'a [IoSlice<'b>]) -> Gather<'a, 'b> {
        Gather { at_hand: 0, ..Gather::new(slices) }
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.left
    }

    /// The pages of a program's buffers are made to be at hand, without a lock: for what is then copied in one go.
    pub fn prepare_all(slices: &'a [IoSlice<'b>]) {
        let gather = Gather::new(slices);
        let _ = gather.check_next(gather.left.min(AT_HAND));
    }

    /// EFAULT: the next `left` bytes are not all there to be read. Linux takes a piece in whole or not at all, too.
    pub fn check_next(&self, mut left: usize) -> Result<(), Errno> {
        let mut offset = self.offset;
        for slice in self.slices.iter().skip(self.index) {
            let rest = &slice[core::mem::take(&mut offset)..];
            let len = rest.len().min(left);
            program_memory::check(rest.as_ptr(), len)?;
            left -= len;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes up to `max` bytes: `copy(done, piece)` puts `piece` where the bytes from `done` on belong. Returns how
    /// many.
    pub fn empty(
        &mut self,
        max: usize,
        mut copy: impl FnMut(usize, &[u8]) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < max
            && let Some(slice) = self.slices.get(self.index)
        {
            let rest = &slice[self.offset..];
            let len = rest.len().min(max - done);
            if len > 0 {
                copy(done, &rest[..len])?;
                done += len;
                self.left -= len;
                self.offset += len;
            }
            if self.offset == slice.len() {
                self.index += 1;
                self.offset = 0;
            }
        }
        self.at_hand = self.at_hand.saturating_sub(done);
        Ok(done)
    }
}

impl Source for Gather<'_, '_> {
    /// Not all that are left ([`Gather::left`]), but those at hand.
    fn left(&self) -> usize {
        self.left.min(self.at_hand)
    }

    fn is_done(&self) -> bool {
        self.left == 0
    }

    fn waits(&self) -> bool {
        self.at_hand == 0 && self.left > 0
    }

    fn follows(&self) -> bool {
        self.left > 0
    }

    /// What is not there is found out by [`Source::check_next`].
    fn refill(&mut self) {
        if self.waits() {
            self.at_hand = self.left.min(AT_HAND);
            let _ = Gather::check_next(self, self.at_hand);
        }
    }

    fn check_next(&self, len: usize) -> Result<bool, Errno> {
        Gather::check_next(self, len).map(|()| true)
    }

    fn put(&mut self, room: Room<'_>, max: usize) -> Result<usize, Errno> {
        match room {
            Room::Shared(region, offset) => self
                .empty(max, |done, bytes| region.write(offset + done as u64, bytes).map_err(|_| Errno::EIO)),
            Room::Own(room) => self.empty(max.min(room.len()), |done, bytes| {
                // SAFETY: needed because the program's memory may not be there; ours, which has room for them, is apart from it.
                unsafe { program_memory::copy(room[done..].as_mut_ptr(), bytes.as_ptr(), bytes.len()) }
            }),
        }
    }

    // What is certain is put once.
    fn take_back(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_cross_slice_borders_both_ways() {
        let (a, b, c) = (*b"abc", *b"", *b"defgh");
        let from = [IoSlice::new(&a), IoSlice::new(&b), IoSlice::new(&c)];
        let mut gather = Gather::new(&from);
        let mut middle = [0u8; 8];
        for max in [2, 4, 9] {
            let start = 8 - gather.left();
            let n = gather.empty(max, |done, piece| {
                middle[start + done..start + done + piece.len()].copy_from_slice(piece);
                Ok(())
            });
            assert_eq!(n, Ok(max.min(8 - start)));
        }
        assert_eq!(&middle, b"abcdefgh");

        let (mut x, mut y, mut z) = ([0u8; 1], [0u8; 0], [0u8; 9]);
        let mut into = [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y), IoSliceMut::new(&mut z)];
        let mut scatter = Scatter::new(&mut into);
        let n = scatter.fill(8, |done, piece| {
            piece.copy_from_slice(&middle[done..done + piece.len()]);
            Ok(())
        });
        assert_eq!((n, scatter.left()), (Ok(8), 2));
        assert_eq!((&x, &z[..7]), (b"a", &b"bcdefgh"[..]));
    }
}
