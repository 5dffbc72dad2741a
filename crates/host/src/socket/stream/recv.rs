//! Reading: what a stream has received goes to the program, or is shown to it, and whoever lent the memory gets it back.

use super::recv_half::{Lenders, RecvHalf};
use super::{Attempt, IN, PRI, Stream};
use crate::queue::QueueIo;
use crate::slots::SlotId;
use crate::socket::urgent::Plan;
use toe_abi::errno::Errno;

impl Stream {
    /// Does `f` to the receiving half, with those who lent it memory.
    #[inline]
    pub fn lenders<R>(
        &mut self,
        io: &mut QueueIo,
        slot_id: SlotId,
        f: impl FnOnce(&mut RecvHalf, &mut Lenders<'_>) -> R,
    ) -> R {
        let (direct, flow) = (self.direct.as_deref_mut(), self.flow);
        f(&mut self.recv, &mut Lenders { io, direct, flow, slot_id })
    }

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
        match self.recv.urgent.plan(self.recv.received.read(), self.recv.unread()) {
            Plan::Free => Ok((usize::MAX, 0)),
            Plan::Before(most) => Ok((most, 0)),
            Plan::Skip if peek => {
                Ok((self.recv.urgent.most_behind(self.recv.received.read(), self.recv.unread()), 1))
            }
            Plan::Skip => {
                self.lenders(io, slot_id, |recv, from| recv.take_unread(from, 1))?;
                self.recv.urgent.on_read(self.recv.received.read());
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
        if !self.recv.urgent.may_take() {
            return Err(Errno::EINVAL);
        }
        match self.recv.urgent.position(self.recv.received.read(), self.recv.unread()) {
            Some(at) => {
                let byte = self.recv.received.byte_at(io, self.direct.as_deref(), at)?;
                if !peek {
                    self.recv.urgent.take();
                    self.lenders(io, slot_id, |recv, from| recv.leave_out_taken(from));
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
        self.recv
            .urgent
            .announce(self.recv.received.total() + u64::from(distance), self.recv.received.read());
        self.publish(PRI);
    }

    /// The peer has put the last byte of its last piece into the channel as an urgent one.
    pub fn on_direct_urgent(&mut self) {
        let held = self.direct.as_ref().map_or(0, |direct| direct.recv.early_bytes(self.recv.from_engine));
        if let Some(at) = self.recv.received.total().saturating_add(held).checked_sub(1) {
            self.recv.urgent.announce(at, self.recv.received.read());
            self.publish(PRI | IN);
        }
    }
}
