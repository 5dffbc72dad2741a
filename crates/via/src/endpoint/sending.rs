//! What goes out of an endpoint: answers first, then what is posted, in order.

use super::inside::{Data, Inside, READS_MAX, Sending};
use super::post::{Buffers, Post, Work};
use super::regions::{Access, Regions};
use crate::core::Piece;
use crate::core::operation::{HEADER_LEN, Operation};
use crate::link::Link;
use crate::lock::lock;
use crate::parts::{Part, to_connection};
use toe_ring::ViaMemory;
use toe_ring::via::Breach;

impl Data {
    /// Copies `len` bytes from `from` on into the connection's memory.
    fn gather(
        &self,
        (from, len): (u64, u64),
        memory: &ViaMemory,
        offset: u64,
        regions: &Regions,
    ) -> Result<(), Breach> {
        match self {
            Data::Buffers(buffers) => {
                for (part, at) in buffers.within(from, len) {
                    to_connection(part, memory, offset + at).map_err(|_| Breach)?;
                }
                Ok(())
            }
            Data::Copied(bytes) => {
                let part = bytes.get(from as usize..(from + len) as usize).ok_or(Breach)?;
                memory.write(offset, part).map_err(|_| Breach)
            }
            // Given back in the middle of the message: it can neither go on nor be taken back.
            Data::Region(remote) => {
                let part = regions.find(remote.within(from, len), Access::Read).ok_or(Breach)?;
                to_connection(part, memory, offset).map_err(|_| Breach)
            }
        }
    }
}

impl Sending {
    /// Copies a piece to its place.
    fn gather(&self, memory: &ViaMemory, offset: u64, piece: Piece, regions: &Regions) -> Result<(), Breach> {
        let (mut offset, mut from, mut len) = (offset, piece.at, u64::from(piece.fragment.len));
        let header_len = HEADER_LEN as u64;
        if from < header_len {
            // A head is never cut.
            memory.write(offset, &self.header).map_err(|_| Breach)?;
            (offset, from, len) = (offset + header_len, header_len, len - header_len);
        }
        self.data.gather((from - header_len, len), memory, offset, regions)
    }
}

/// The bytes, out of the program's memory.
fn copied(buffers: &Buffers) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(buffers.len as usize);
    for Part { address, len, .. } in buffers.list() {
        // SAFETY: needed to keep what the program posts and wants back at once. It has promised that so many bytes are there.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(*address as *const u8, *len as usize) });
    }
    bytes.into_boxed_slice()
}

impl Inside {
    /// Sends as much as there is credit for.
    pub(super) fn send(&mut self, link: &Link, regions: &Regions) -> Result<(), Breach> {
        if self.sending.is_none() && self.posted.is_empty() && self.pending.is_empty() {
            return Ok(());
        }
        let mut sender = lock(&link.sending);
        loop {
            if self.sending.is_none() {
                self.sending = self.next_to_send();
            }
            let Some(sending) = self.sending.as_mut() else { return Ok(()) };
            while let Some(piece) = sending.message.next() {
                let Some(room) = sender.room(piece.fragment.len)? else { return Ok(()) };
                sending.gather(&link.memory, room.offset, piece, regions)?;
                sender.publish(piece.fragment, room);
                sending.message.sent(piece);
                link.wake();
            }
            if let Some(post) = self.sending.take().and_then(Sending::into_post) {
                match post.work {
                    Work::Read(_) => self.asked.push_back(post),
                    Work::Send | Work::Write(_) => self.done.extend(post.is_done()),
                }
            }
        }
    }

    fn next_to_send(&mut self) -> Option<Sending> {
        if let Some(remote) = self.pending.pop_front() {
            return Some(Sending::new(Operation::answer(remote.len), Data::Region(remote), None));
        }
        let first = self.posted.front()?.post?;
        if matches!(first.work, Work::Read(_)) && self.asked.len() >= READS_MAX {
            return None;
        }
        self.posted.pop_front()
    }

    /// What was posted last, if it has not gone: its memory is the program's again.
    pub(super) fn keep_copy_of_last(&mut self) {
        let last = if self.posted.is_empty() { self.sending.as_mut() } else { self.posted.back_mut() };
        if let Some(sending) = last
            && let Some(Post { buffers, .. }) = sending.post
            && matches!(sending.data, Data::Buffers(_))
        {
            sending.data = Data::Copied(copied(&buffers));
        }
    }
}
