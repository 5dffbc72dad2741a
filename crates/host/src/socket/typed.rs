//! The type of a record, between a call's control message and the stream: a source that says which one it is for, and a target that learns
//! which one it got.

use super::{Kind, RecvFlags, SendFlags, Socket};
use crate::socket::slices::{Bytes, Gather, Room, Scatter, Source, Takes, Target};
use crate::tls::record_type::DATA;
use std::io::{IoSlice, IoSliceMut};
use toe_abi::errno::Errno;

/// A program's buffers, for records of one type.
#[derive(Debug)]
struct TypedSource<'a, 'b>(Gather<'a, 'b>, u8);

impl Source for TypedSource<'_, '_> {
    fn left(&self) -> usize {
        Source::left(&self.0)
    }

    fn check_next(&self, len: usize) -> Result<bool, Errno> {
        Source::check_next(&self.0, len)
    }

    fn put(&mut self, room: Room<'_>, max: usize) -> Result<usize, Errno> {
        self.0.put(room, max)
    }

    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn refill(&mut self) {
        self.0.refill();
    }

    fn waits(&self) -> bool {
        self.0.waits()
    }

    fn follows(&self) -> bool {
        self.0.follows()
    }

    fn take_back(&mut self, len: usize) {
        self.0.take_back(len);
    }

    fn record_type(&self) -> u8 {
        self.1
    }
}

/// A program's buffers, to be told of which type the record was.
#[derive(Debug)]
struct TypedTarget<'a, 'b> {
    into: Scatter<'a, 'b>,
    /// There is room to tell it.
    can_tell: bool,
    kind: Option<u8>,
}

impl Target for TypedTarget<'_, '_> {
    fn left(&self) -> usize {
        self.into.left()
    }

    fn most_at_once(&self) -> usize {
        self.into.most_at_once()
    }

    fn prepare(&mut self, there: usize) {
        self.into.prepare(there);
    }

    fn take(&mut self, bytes: Bytes<'_>, max: usize) -> Result<usize, Errno> {
        self.into.take(bytes, max)
    }

    fn takes(&mut self, kind: u8) -> Takes {
        match self.kind {
            Some(known) if known == kind => Takes::Yes,
            Some(_) => Takes::NotNow,
            None if kind != DATA && !self.can_tell => Takes::No,
            None => {
                self.kind = Some(kind);
                Takes::Yes
            }
        }
    }
}

impl Socket {
    /// [`Socket::send`] as records of type `kind`, where the connection has them; each call makes records of its own.
    pub fn send_record(
        &'static self,
        from: &[IoSlice<'_>],
        kind: u8,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.send_from(&mut TypedSource(Gather::of_program(from), kind), flags)
    }

    /// [`Socket::recv`], with the type of the record that the bytes are of, where the connection has them. EIO: `can_tell` is not set, and the
    /// next record is not the program's data.
    pub fn recv_record(
        &'static self,
        into: &mut [IoSliceMut<'_>],
        can_tell: bool,
        flags: RecvFlags,
    ) -> Result<(usize, Option<u8>), Errno> {
        if flags.discard {
            return self.recv(into, flags).map(|got| (got, None));
        }
        if self.kind() != Kind::Stream {
            return Err(Errno::ENOTCONN);
        }
        self.settle()?;
        let mut target = TypedTarget { into: Scatter::of_program(into), can_tell, kind: None };
        let got = self.recv_to(&mut target, flags)?;
        Ok((got, target.kind))
    }
}
