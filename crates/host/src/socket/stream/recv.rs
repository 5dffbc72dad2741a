//! Reading: what a stream has received goes to the program, or is shown to it, and whoever lent the memory gets it back.

use super::{Attempt, IN, PRI, RecvHalf, Stream};
use crate::queue::QueueIo;
use crate::slots::SlotId;
use crate::socket::direct::Direct;
use crate::socket::received::{Copied, How};
use crate::socket::slices::{Scatter, Target};
use crate::socket::urgent::Plan;
use std::io::IoSliceMut;
use toe_abi::errno::Errno;
use toe_base::FlowId;

/// Who lent the memory that received bytes lie in, and how they are told that it is free.
#[derive(Debug)]
pub struct Lenders<'a> {
    pub io: &'a mut QueueIo,
    direct: Option<&'a mut Direct>,
    flow: FlowId,
    slot_id: SlotId,
}

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

impl RecvHalf {
    pub(super) fn new() -> RecvHalf {
        let (received, credit, urgent) = Default::default();
        RecvHalf { received, from_engine: 0, credit, urgent, low_water: 1 }
    }

    pub fn unread(&self) -> usize {
        self.received.len()
    }

    /// FIONREAD.
    pub fn countable(&self) -> usize {
        self.urgent.countable(self.received.read(), self.received.len())
    }

    pub fn is_at_mark(&self) -> bool {
        self.urgent.is_at_mark(self.received.read())
    }

    /// Copies into `into` what there is room for.
    pub(super) fn copy_out(
        &mut self,
        from: &Lenders<'_>,
        into: &mut impl Target,
        how: How,
    ) -> Result<Copied, Errno> {
        self.received.copy_out(from.io, from.direct.as_deref(), into, how)
    }

    /// Tells whoever lent the memory that what was in it has been read.
    pub(super) fn settle_read(&mut self, from: &mut Lenders<'_>, copied: &Copied) {
        if copied.engine > 0 {
            let wakes = self.credit.on_read(copied.engine);
            from.io.credit(from.slot_id, from.flow, &mut self.credit);
            if wakes {
                from.io.ring();
            }
        }
        if copied.channel > 0
            && let Some(direct) = &mut from.direct
        {
            direct.on_read(from.io.channel(direct.channel), copied.channel as usize);
        }
    }

    /// Everything up to the last byte that only this process can reach. It stays: what comes behind is the engine's to give to whoever
    /// claims the stream, and these bytes, too, once the engine has them.
    pub fn private_bytes(&mut self, from: &Lenders<'_>) -> Result<(Vec<u8>, Copied), Errno> {
        let mut bytes = vec![0; self.received.private()];
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let how = How { peek: true, ..How::ALL };
        let copied = self.copy_out(from, &mut Scatter::new(&mut slices), how)?;
        Ok((bytes, copied))
    }

    /// Makes room in the engine's window without the program: what lies unread there is kept by the stream itself.
    pub fn vacate_window(&mut self, from: &mut Lenders<'_>) -> Result<(), Errno> {
        if self.received.has_engine_bytes() {
            let bytes = self.take_unread(from, self.received.len())?;
            self.received.put_back(bytes);
        }
        Ok(())
    }

    fn take_unread(&mut self, from: &mut Lenders<'_>, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; len];
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let copied = self.copy_out(from, &mut Scatter::new(&mut slices), How::ALL)?;
        self.settle_read(from, &copied);
        Ok(bytes)
    }

    /// What MSG_OOB has read is no part of the stream for anybody, once it is next. Where that fails, the next read leaves it out: what the
    /// call has given to the program counts.
    pub(super) fn leave_out_taken(&mut self, from: &mut Lenders<'_>) {
        if self.urgent.is_taken_next(self.received.read(), self.received.len()) {
            let _ = self.take_unread(from, 1);
        }
    }
}
