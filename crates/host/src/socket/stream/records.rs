//! Where a stream joins TLS records ([`crate::tls`]): what its program sends is sealed before it goes the way of all bytes, through the engine
//! or the peer's memory, and what has arrived by either is opened before the program has it.

use super::recv_half::Lenders;
use super::send::ask_for_memory;
use super::{Attempt, Link, OUT, RecvHalf, Stream};
use crate::queue::QueueIo;
use crate::slots::SlotId;
use crate::socket::flags::SendFlags;
use crate::socket::received::How;
use crate::socket::shortage::Shortage;
use crate::socket::slices::{Gather, Scatter, Source, Target};
use crate::tls::Tls;
use crate::tls::incoming::{Given, Incoming};
use crate::tls::keys::HEADER;
use crate::tls::outgoing::{AT_ONCE, Outgoing};
use std::io::{IoSlice, IoSliceMut};
use toe_abi::errno::Errno;

/// Records that one read opens: then others have their turn at the lock.
const OPENED_AT_ONCE: usize = 16;
/// Less room than this is waited for, while there is something to wait for: records would be mostly overhead.
const LEAST: usize = 1024;
/// Ring entries that records in one go can take.
const ENTRIES: u32 = 8;

impl Stream {
    /// Bytes that were received are to be received again, before all others.
    pub fn put_back(&mut self, bytes: Vec<u8>) {
        match self.ulp.tls.as_mut().and_then(|tls| tls.incoming.as_mut()) {
            Some(incoming) => incoming.put_back(bytes),
            None => self.recv.received.put_back(bytes),
        }
        self.publish(0);
    }

    /// [`Stream::send`], as records.
    pub(super) fn send_records(
        &mut self,
        io: &mut QueueIo,
        from: &mut impl Source,
        flags: SendFlags,
    ) -> Result<Attempt, Errno> {
        if flags.urgent {
            return Err(Errno::EOPNOTSUPP);
        }
        self.with_outgoing(io, |stream, io, outgoing| stream.send_by(io, outgoing, from, flags))
            .unwrap_or(Ok(Attempt::Wait))
    }

    /// Takes what makes records out of the stream for as long as `f` sends by it.
    fn with_outgoing<R>(
        &mut self,
        io: &mut QueueIo,
        f: impl FnOnce(&mut Stream, &mut QueueIo, &mut Outgoing) -> R,
    ) -> Option<R> {
        let mut tls = self.ulp.tls.take()?;
        let result = tls.outgoing.as_mut().map(|outgoing| {
            outgoing.borrow(&mut io.records);
            let result = f(self, io, outgoing);
            outgoing.give_back(&mut io.records);
            result
        });
        self.ulp.tls = Some(tls);
        self.publish(0);
        result
    }

    fn send_by(
        &mut self,
        io: &mut QueueIo,
        outgoing: &mut Outgoing,
        from: &mut impl Source,
        flags: SendFlags,
    ) -> Result<Attempt, Errno> {
        if self.link != Link::Open || !self.push(io, outgoing, flags)? {
            return Ok(Attempt::Wait);
        }
        let kind = from.record_type();
        if kind != crate::tls::record_type::DATA {
            if flags.more {
                return Err(Errno::EINVAL);
            }
            // The program's own data that waits for more comes before.
            outgoing.end_record(usize::MAX)?;
            self.push(io, outgoing, flags)?;
        }
        let mut taken = 0;
        while from.left() > 0 && outgoing.waiting().is_empty() {
            let Some(room) = self.room_for(io, outgoing.sealed_len(from.left()), outgoing.overhead())? else {
                break;
            };
            match outgoing.fill(from, kind, room, flags.more) {
                Ok(0) => break,
                Ok(got) => taken += got,
                Err(_) if taken > 0 => break,
                Err(errno) => return Err(errno),
            }
            let is_last = !from.follows();
            let sealed = outgoing.waiting().len() as u32;
            let more = if is_last { flags.more } else { self.send.memory.has_room_behind(sealed) };
            let end_of_record = flags.end_of_record && is_last;
            self.push(io, outgoing, SendFlags { more, end_of_record, ..flags })?;
        }
        Ok(if taken > 0 { Attempt::Done(taken) } else { Attempt::Wait })
    }

    /// Sends what is sealed. `false`: some is left, and goes when there is room, with the next drains if the program does not come back.
    fn push(&mut self, io: &mut QueueIo, outgoing: &mut Outgoing, flags: SendFlags) -> Result<bool, Errno> {
        if outgoing.waiting().is_empty() {
            return Ok(true);
        }
        let sealed = [IoSlice::new(outgoing.waiting())];
        if let Attempt::Done(bytes) = self.send_bytes(io, &mut Gather::new(&sealed), flags)? {
            outgoing.taken(bytes);
        }
        let is_all = outgoing.waiting().is_empty();
        self.send.shortage.starved |= !is_all;
        Ok(is_all)
    }

    /// Bytes of records that are certain to fit now, of `want`; as many records as are made in one go at most. `None`: too few to begin, and
    /// who has to tell of more has been asked.
    fn room_for(&mut self, io: &mut QueueIo, want: usize, overhead: usize) -> Result<Option<usize>, Errno> {
        let mut room = 0;
        if let Some(direct) = self.direct.as_mut().filter(|direct| direct.send.is_open())
            && let Some(channel) = io.channel(direct.channel)
        {
            if channel.end.room(ENTRIES) < ENTRIES {
                self.send.shortage.starved = true;
            } else if direct.reserve(channel, want, u32::MAX).is_some() {
                room = direct.send.memory.room_now() as usize;
            }
        } else if io.ring.send_room(ENTRIES) < ENTRIES {
            self.send.shortage.starved = true;
        } else if self.send.unsent.has_room_behind(0)
            && self.send.memory.reserve(&mut io.blocks, want, u32::MAX).is_some()
        {
            room = self.send.memory.room_now() as usize;
        } else if self.send.memory.room() > 0
            && self.send.unsent.has_room_behind(0)
            && self.send.memory.outstanding() == 0
        {
            // It is memory that is short.
            self.send.shortage.starved = true;
        }
        let outstanding = match &self.direct {
            Some(direct) if direct.send.is_open() => direct.send.memory.outstanding(),
            _ => self.send.memory.outstanding(),
        };
        if room > overhead && (outstanding == 0 || room >= want.min(LEAST)) {
            return Ok(Some(room.min(AT_ONCE * (crate::tls::record_type::PLAIN_MAX + overhead))));
        }
        self.send.shortage.draining |= outstanding > 0;
        // Whoever reads out of a channel is asked to tell.
        self.send_bytes(io, &mut Gather::new(&[]), SendFlags::default()).map(|_| None)
    }

    /// Ends the record that the program has left open: another key, another type or the end is next.
    pub fn end_records(&mut self, io: &mut QueueIo) {
        if self.ulp.makes_records() && self.link == Link::Open && !self.half_close.is_write_shut() {
            let _ = self.with_outgoing(io, |stream, io, outgoing| {
                outgoing.end_record(usize::MAX)?;
                stream.push(io, outgoing, SendFlags::default())
            });
        }
    }

    /// There may be room again: what is sealed goes first. `true`: there is none yet, or too little for that.
    pub fn resume(&mut self, io: &mut QueueIo) -> bool {
        if self.link.is_closed() {
            return false;
        }
        if !self.send.has_supply(self.direct.as_deref_mut(), io) {
            return true;
        }
        self.send.shortage =
            Shortage { starved: !ask_for_memory(self.direct.as_deref_mut(), io), draining: false };
        if self.ulp.makes_records() && self.link == Link::Open {
            self.with_outgoing(io, |stream, io, outgoing| stream.push(io, outgoing, SendFlags::default()));
        }
        self.publish(if self.send.has_room(self.direct.as_deref()) { OUT } else { 0 });
        self.send.shortage.starved
    }

    /// [`Stream::recv`], out of records.
    pub(super) fn recv_records(
        &mut self,
        io: &mut QueueIo,
        slot_id: SlotId,
        into: &mut impl Target,
        peek: bool,
    ) -> Result<Attempt, Errno> {
        let mut tls = self.ulp.tls.take().ok_or(Errno::EIO)?;
        let given = self.lenders(io, slot_id, |recv, from| recv.recv_by(from, &mut tls, into, peek));
        self.ulp.tls = Some(tls);
        self.publish(0);
        match given? {
            None if into.left() == 0 && self.ulp.is_readable(self.recv.unread(), 1) => Ok(Attempt::Done(0)),
            None => self.recv_nothing(),
            Some(bytes) => Ok(Attempt::Done(bytes)),
        }
    }
}

impl RecvHalf {
    /// How many bytes `into` was given; `None`: there is no record.
    fn recv_by(
        &mut self,
        from: &mut Lenders<'_>,
        tls: &mut Tls,
        into: &mut impl Target,
        peek: bool,
    ) -> Result<Option<usize>, Errno> {
        let Some(incoming) = &mut tls.incoming else { return Ok(None) };
        let (mut done, most) = (0, into.most_at_once());
        let mut opened = 0;
        loop {
            let given = match incoming.give(into, peek) {
                Ok(given) => given,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            };
            match given {
                Given::Last(bytes) => return Ok(Some(done + bytes)),
                Given::More(bytes) => done += bytes,
                Given::Nothing => {}
            }
            // Empty records do not count: whoever had nothing would sleep beside what comes behind them. All that are here fit the window.
            let is_enough = done > 0 && opened >= OPENED_AT_ONCE;
            if into.left() == 0 || done >= most || is_enough {
                break;
            }
            match self.open_next(from, incoming) {
                Ok(true) => opened += 1,
                Ok(false) => break,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok((done > 0).then_some(done))
    }

    /// Opens the next record, if all of it is here.
    fn open_next(&mut self, from: &mut Lenders<'_>, incoming: &mut Incoming) -> Result<bool, Errno> {
        if let Some(errno) = incoming.refusal() {
            return Err(errno);
        }
        if incoming.wants_header() && self.received.len() >= HEADER {
            let mut header = [0; HEADER];
            let mut slices = [IoSliceMut::new(&mut header)];
            let how = How { skip: 0, most: HEADER, peek: true };
            self.copy_out(from, &mut Scatter::new(&mut slices), how)?;
            incoming.take_header(header)?;
        }
        let needed = incoming.needed();
        if incoming.wants_header() || self.received.len() < needed {
            return Ok(false);
        }
        let mut record = vec![0; needed];
        let mut slices = [IoSliceMut::new(&mut record)];
        let how = How { skip: 0, most: needed, peek: false };
        let copied = self.copy_out(from, &mut Scatter::new(&mut slices), how)?;
        self.settle_read(from, &copied);
        incoming.take_record(record)?;
        Ok(true)
    }
}
