//! Reading: what a stream has received goes to the program, or is shown to it, and whoever lent the memory gets it back.

use super::{Attempt, IN, PRI, Stream};
use crate::queue::QueueIo;
use crate::slots::SlotId;
use crate::socket::received::{Copied, How};
use crate::socket::slices::Scatter;
use crate::socket::urgent::Plan;
use std::io::IoSliceMut;
use toe_abi::errno::Errno;

impl Stream {
    /// There is nothing to read: whether there will be.
    pub(super) fn recv_nothing(&mut self) -> Result<Attempt, Errno> {
        if self.half_close.has_peer_closed() {
            return Ok(Attempt::Done(0));
        }
        let error = self.take_error();
        if !error.is_ok() {
            return Err(error);
        }
        if self.link.is_disconnected() && !self.half_close.is_read_shut() {
            return Err(Errno::ENOTCONN);
        }
        let over = self.half_close.is_read_shut() || self.link.is_closed();
        Ok(if over { Attempt::Done(0) } else { Attempt::Wait })
    }

    /// How many bytes a read may take and how many it leaves out at first; an urgent one that is next is dropped.
    pub(super) fn heed_mark(
        &mut self,
        io: &mut QueueIo,
        slot_id: SlotId,
        peek: bool,
    ) -> Result<(usize, usize), Errno> {
        match self.urgent.plan(self.received.read(), self.received.len()) {
            Plan::Free => Ok((usize::MAX, 0)),
            Plan::Before(most) => Ok((most, 0)),
            Plan::Skip if peek => Ok((self.urgent.most_behind(self.received.read(), self.received.len()), 1)),
            Plan::Skip => {
                self.take_unread(io, slot_id, 1)?;
                self.urgent.on_read(self.received.read());
                self.publish(0);
                self.heed_mark(io, slot_id, peek)
            }
        }
    }

    /// MSG_OOB: the urgent byte, `None` at the stream's end. EINVAL: none has been announced, or it has been read.
    pub fn recv_urgent(
        &mut self,
        io: &mut QueueIo,
        slot_id: SlotId,
        peek: bool,
    ) -> Result<Option<u8>, Errno> {
        if !self.urgent.may_take() {
            return Err(Errno::EINVAL);
        }
        match self.urgent.position(self.received.read(), self.received.len()) {
            Some(at) => {
                let byte = self.received.byte_at(io, self.direct.as_deref(), at)?;
                if !peek {
                    self.urgent.take();
                    leave_out_taken(self, io, slot_id);
                    self.publish(0);
                }
                Ok(byte)
            }
            None if self.link.is_closed() || self.half_close.is_read_over() => Ok(None),
            None => Err(Errno::EAGAIN),
        }
    }

    /// The engine tells of an urgent byte, `distance` bytes after those that it has brought.
    pub fn on_urgent(&mut self, distance: u32) {
        self.urgent.announce(self.received.total() + u64::from(distance), self.received.read());
        self.publish(PRI);
    }

    /// The peer has put the last byte of its last piece into the channel as an urgent one.
    pub fn on_direct_urgent(&mut self) {
        let held = self.direct.as_ref().map_or(0, |direct| direct.early_bytes(self.engine_arrived));
        if let Some(at) = self.received.total().saturating_add(held).checked_sub(1) {
            self.urgent.announce(at, self.received.read());
            self.publish(PRI | IN);
        }
    }

    /// FIONREAD.
    pub fn countable(&self) -> usize {
        self.urgent.countable(self.received.read(), self.received.len())
    }

    /// No more bytes than these would be read now. Of records they are more than can be known.
    pub fn most_readable(&self) -> usize {
        if self.opens_records() { usize::MAX } else { self.received.len() }
    }

    pub fn is_at_mark(&self) -> bool {
        self.urgent.is_at_mark(self.received.read())
    }

    /// Tells whoever lent the memory that what was in it has been read.
    pub(super) fn settle_read(&mut self, io: &mut QueueIo, slot_id: SlotId, copied: &Copied) {
        if copied.engine > 0 {
            self.pending_credit += copied.engine;
            io.credit(slot_id, self);
            self.quiet_credit = self.quiet_credit.saturating_add(copied.engine);
            if self.quiet_credit >= self.quiet_credit_max {
                self.quiet_credit = 0;
                io.ring();
            }
        }
        if copied.channel > 0
            && let Some(direct) = &mut self.direct
        {
            direct.on_read(io.channel(direct.channel), copied.channel as usize);
        }
    }

    /// Everything up to the last byte that only this process can reach. It stays: what comes behind is the engine's to give to whoever
    /// claims the stream, and these bytes, too, once the engine has them.
    pub fn private_bytes(&mut self, io: &mut QueueIo) -> Result<(Vec<u8>, Copied), Errno> {
        let mut bytes = vec![0; self.received.private()];
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let how = How { peek: true, ..How::ALL };
        let copied =
            self.received.copy_out(io, self.direct.as_deref(), &mut Scatter::new(&mut slices), how)?;
        Ok((bytes, copied))
    }

    /// Makes room in the engine's window without the program: what lies unread there is kept by the stream itself.
    pub fn vacate_window(&mut self, io: &mut QueueIo, slot_id: SlotId) -> Result<(), Errno> {
        if self.received.has_engine_bytes() {
            let bytes = self.take_unread(io, slot_id, self.received.len())?;
            self.received.put_back(bytes);
        }
        Ok(())
    }

    fn take_unread(&mut self, io: &mut QueueIo, slot_id: SlotId, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; len];
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let mut into = Scatter::new(&mut slices);
        let copied = self.received.copy_out(io, self.direct.as_deref(), &mut into, How::ALL)?;
        self.settle_read(io, slot_id, &copied);
        Ok(bytes)
    }
}

/// What MSG_OOB has read is no part of the stream for anybody, once it is next. Where that fails, the next read leaves it out: what the
/// call has given to the program counts.
pub(super) fn leave_out_taken(stream: &mut Stream, io: &mut QueueIo, slot_id: SlotId) {
    if stream.urgent.is_taken_next(stream.received.read(), stream.received.len()) {
        let _ = stream.take_unread(io, slot_id, 1);
    }
}
