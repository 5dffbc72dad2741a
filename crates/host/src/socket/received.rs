//! What a stream has received and its program has not read: ranges of shared memory, in stream order.
//!
//! Owned by [`crate::socket::stream`]. Bytes lie in the session's region when the engine brought them, in the memory of
//! a channel when the peer put them there, or here, when another session had them before.

use crate::queue::QueueIo;
use crate::socket::direct::Direct;
use crate::socket::slices::{Bytes, Scatter, Target};
use std::collections::VecDeque;
use toe_abi::entry::{MemRange, RANGE_LEN_MAX};
use toe_abi::errno::Errno;

/// Where received bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the session's region; the engine gets credit for them.
    Engine,
    /// In the memory of the stream's channel.
    Channel,
    /// In the stream's own memory: another session had received them through a channel and not read them.
    Carried,
}

/// A range of received bytes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    source: Source,
    range: MemRange,
}

/// How many bytes a read took from where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copied {
    pub engine: u32,
    pub channel: u32,
    pub carried: u32,
}

impl Copied {
    fn add(&mut self, source: Source, bytes: u32) {
        match source {
            Source::Engine => self.engine += bytes,
            Source::Channel => self.channel += bytes,
            Source::Carried => self.carried += bytes,
        }
    }

    pub fn all(&self) -> usize {
        (self.engine + self.channel + self.carried) as usize
    }
}

/// How bytes are copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// Bytes to leave out at first; of a peek only.
    pub skip: usize,
    /// No more than this.
    pub most: usize,
    /// Everything stays as it is.
    pub peek: bool,
}

impl How {
    /// All that there is.
    pub const ALL: How = How { skip: 0, most: usize::MAX, peek: false };
}

/// The bytes.
#[derive(Debug, Default)]
pub struct Received {
    /// Neighbours are one piece.
    pieces: VecDeque<Piece>,
    len: usize,
    /// Bytes that ever came.
    total: u64,
    carried: Vec<u8>,
}

impl Received {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that have been read.
    pub fn read(&self) -> u64 {
        self.total - self.len as u64
    }

    /// Bytes that ever came.
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes up to the last one that only this process can reach.
    pub fn private(&self) -> usize {
        let last = self.pieces.iter().rposition(|piece| piece.source != Source::Engine);
        let count = last.map_or(0, |last| last + 1);
        self.pieces.iter().take(count).map(|piece| piece.range.len as usize).sum()
    }

    /// Puts bytes in front that were taken from there.
    pub fn put_back(&mut self, mut bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        // At most one piece is carried, and it is the first.
        if let Some(Piece { source: Source::Carried, range }) = self.pieces.front().copied() {
            self.pieces.pop_front();
            bytes.extend_from_slice(&self.carried[range.offset as usize..][..range.len as usize]);
        }
        let range = MemRange { offset: 0, len: bytes.len() as u32 };
        self.carried = bytes;
        self.pieces.push_front(Piece { source: Source::Carried, range });
    }

    /// Whether some of what waits lies in the engine's window.
    pub fn has_engine_bytes(&self) -> bool {
        self.pieces.iter().any(|piece| piece.source == Source::Engine)
    }

    /// Bytes arrived, next in the stream.
    pub fn append(&mut self, source: Source, data: MemRange) {
        self.len += data.len as usize;
        self.total += u64::from(data.len);
        match self.pieces.back_mut() {
            Some(Piece { source: last, range })
                if *last == source
                    && range.offset + u64::from(range.len) == data.offset
                    && range.len + data.len <= RANGE_LEN_MAX =>
            {
                range.len += data.len;
            }
            _ => self.pieces.push_back(Piece { source, range: data }),
        }
    }

    /// The byte that comes `skip` bytes after the next one; it stays.
    pub fn byte_at(
        &mut self,
        io: &QueueIo,
        direct: Option<&Direct>,
        skip: usize,
    ) -> Result<Option<u8>, Errno> {
        let mut byte = [0];
        let mut slices = [std::io::IoSliceMut::new(&mut byte)];
        let how = How { skip, most: 1, peek: true };
        let copied = self.copy_out(io, direct, &mut Scatter::new(&mut slices), how)?;
        Ok((copied.all() == 1).then_some(byte[0]))
    }

    /// Copies into `into` what there is room for.
    pub fn copy_out(
        &mut self,
        io: &QueueIo,
        direct: Option<&Direct>,
        into: &mut impl Target,
        how: How,
    ) -> Result<Copied, Errno> {
        let How { mut skip, mut most, peek } = how;
        debug_assert!(peek || skip == 0, "what is left out of a read would stay behind it");
        let mut copied = Copied::default();
        let mut at = 0;
        while let Some(Piece { source, range }) = self.pieces.get_mut(at) {
            let skipped = skip.min(range.len as usize);
            skip -= skipped;
            let there = range.len as usize - skipped;
            let from = range.offset + skipped as u64;
            let bytes = match source {
                Source::Engine => Ok(Bytes::Shared(&io.region, from)),
                Source::Channel => {
                    direct.map(|direct| Bytes::Shared(direct.region(), from)).ok_or(Errno::EIO)
                }
                Source::Carried => self.carried.get(from as usize..).map(Bytes::Own).ok_or(Errno::EIO),
            };
            let outcome = bytes.and_then(|bytes| into.take(bytes, there.min(most)));
            let taken = match outcome {
                Ok(taken) => taken as u32,
                // What came before it is the program's already.
                Err(_) if copied.all() > 0 => break,
                Err(errno) => return Err(errno),
            };
            copied.add(*source, taken);
            most -= taken as usize;
            if (taken as usize) < there || most == 0 && peek {
                if !peek {
                    range.offset += u64::from(taken);
                    range.len -= taken;
                }
                break;
            }
            if peek {
                at += 1;
            } else {
                self.pieces.pop_front();
            }
        }
        if !peek {
            self.len -= copied.all();
            if self.len == 0 {
                self.carried = Vec::new();
            }
        }
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_back_twice_is_in_its_order() {
        let mut received = Received::default();
        received.put_back(b"cdef".to_vec());
        received.put_back(b"b".to_vec());
        received.put_back(b"a".to_vec());
        received.put_back(Vec::new());
        assert_eq!((received.len(), received.total(), received.pieces()), (6, 0, 1));
        assert_eq!(received.carried, b"abcdef");
    }
}
