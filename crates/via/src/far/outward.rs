//! A fragment's frame, made where the stream sends it from: its bytes are copied once, out of the program's memory or the connection's, and summed up by
//! the way. Called by [`super::carrier`].

use super::frames::Opened;
use super::mpa::Tail;
use toe::native::{Bytes, Maker, Room};
use toe_ring::Region;

/// The frame. Bytes of it that were made are not made again.
#[derive(Debug)]
pub struct Frame<'a> {
    /// What goes before the fragment's bytes.
    lead: &'a [u8],
    /// Where the fragment's bytes are, how many of them have gone, and how many are left.
    bytes: Bytes<'a>,
    done: usize,
    left: usize,
    /// Of the frame so far.
    crc: u32,
    segment_len: usize,
    /// What is left of the end of it; its bytes are known once all others have gone.
    tail_left: usize,
}

impl<'a> Frame<'a> {
    /// `stream` is what [`super::frames::Framer::open`] has put, and what is before that; the fragment has `len` bytes.
    pub fn new(stream: &'a [u8], opened: Opened, bytes: Bytes<'a>, len: u32) -> Frame<'a> {
        let segment_len = opened.segment_len;
        Frame {
            lead: stream,
            bytes,
            done: opened.done,
            left: len as usize - opened.done,
            crc: crc32c::crc32c(&stream[opened.at..]),
            segment_len,
            tail_left: Tail::new(segment_len, 0).bytes().len(),
        }
    }

    fn make_own(&mut self, to: &mut [u8]) {
        let (lead, rest) = self.lead.split_at(self.lead.len().min(to.len()));
        to[..lead.len()].copy_from_slice(lead);
        self.lead = rest;
        let to = &mut to[lead.len()..];
        let (data, to) = to.split_at_mut(self.left.min(to.len()));
        let crc = match self.bytes {
            Bytes::Shared(memory, at) => memory.read_summed(at + self.done as u64, data, self.crc),
            Bytes::Own(bytes) => {
                data.copy_from_slice(&bytes[self.done..self.done + data.len()]);
                Ok(crc32c::crc32c_append(self.crc, data))
            }
        };
        self.went(crc, data.len());
        if !to.is_empty() {
            to.copy_from_slice(self.tail(to.len()).as_ref());
        }
    }

    fn make_shared(&mut self, to: &Region, at: u64, len: usize) {
        let (lead, rest) = self.lead.split_at(self.lead.len().min(len));
        // What cannot be written there is found by whoever reads it: the CRC is not that of it.
        let _ = to.write(at, lead);
        self.lead = rest;
        let (at, len) = (at + lead.len() as u64, len - lead.len());
        let data = self.left.min(len);
        let crc = match self.bytes {
            Bytes::Shared(memory, from) => {
                memory.copy_summed(from + self.done as u64, to, at, data, self.crc)
            }
            Bytes::Own(bytes) => to.write_summed(at, &bytes[self.done..self.done + data], self.crc),
        };
        self.went(crc, data);
        if len > data {
            let tail = self.tail(len - data);
            let _ = to.write(at + data as u64, tail.as_ref());
        }
    }

    fn went<E>(&mut self, crc: Result<u32, E>, len: usize) {
        self.crc = crc.unwrap_or(!self.crc);
        self.done += len;
        self.left -= len;
    }

    /// So many bytes of the end.
    fn tail(&mut self, len: usize) -> impl AsRef<[u8]> + use<> {
        let tail = Tail::new(self.segment_len, self.crc);
        let (skip, mut part) = (tail.bytes().len() - self.tail_left, [0; 7]);
        part[..len].copy_from_slice(&tail.bytes()[skip..skip + len]);
        self.tail_left -= len;
        Part(part, len)
    }
}

struct Part([u8; 7], usize);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

impl Maker for Frame<'_> {
    fn left(&self) -> usize {
        self.lead.len() + self.left + self.tail_left
    }

    fn make(&mut self, room: Room<'_>, max: usize) -> usize {
        let len = max.min(self.left());
        match room {
            Room::Own(to) => self.make_own(&mut to[..len]),
            Room::Shared(to, at) => self.make_shared(to, at, len),
        }
        len
    }
}
