//! The receiving half of a stream: what has come and was not read, and who is told that its memory is free.

use super::credit::WindowCredit;
use crate::queue::QueueIo;
use crate::slots::SlotId;
use crate::socket::direct::Direct;
use crate::socket::received::{Copied, How, Received};
use crate::socket::slices::{Scatter, Target};
use crate::socket::urgent::Urgent;
use std::io::IoSliceMut;
use toe_abi::errno::Errno;
use toe_base::FlowId;

/// What comes from the peer.
#[derive(Debug)]
pub struct RecvHalf {
    pub received: Received,
    /// Bytes that the engine has brought, ever.
    pub(super) from_engine: i64,
    pub credit: WindowCredit,
    pub urgent: Urgent,
    /// Fewer unread bytes than this do not count as readable (SO_RCVLOWAT).
    pub low_water: usize,
}

/// Who lent the memory that received bytes lie in, and how they are told that it is free.
#[derive(Debug)]
pub struct Lenders<'a> {
    pub io: &'a mut QueueIo,
    pub(super) direct: Option<&'a mut Direct>,
    pub(super) flow: FlowId,
    pub(super) slot_id: SlotId,
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

    pub(super) fn take_unread(&mut self, from: &mut Lenders<'_>, len: usize) -> Result<Vec<u8>, Errno> {
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
