//! Records that arrive: one at a time is opened, in memory of the process, and its bytes are given out from there.

use super::keys::{EBADMSG, HEADER, Keys};
use super::parameters::Version;
use super::record_type::{DATA, HANDSHAKE};
use crate::socket::slices::{Bytes, Takes, Target};
use toe_abi::errno::Errno;

/// First byte of the handshake message after which the peer's records have another key (RFC 8446 section 4.6.3).
const KEY_UPDATE: u8 = 24;
pub const EKEYEXPIRED: Errno = Errno(libc::EKEYEXPIRED as u16);

/// A record that was opened.
#[derive(Debug)]
struct Opened {
    kind: u8,
    bytes: Vec<u8>,
    /// Those that the program has not had.
    left: core::ops::Range<usize>,
}

#[derive(Debug)]
pub struct Incoming {
    keys: Keys,
    opened: Option<Opened>,
    /// Of the record that comes next, once it has been looked at.
    header: Option<[u8; HEADER]>,
    /// Bytes that must have been received before there is anything to do.
    needed: usize,
    /// What came cannot be read, nor what follows.
    failed: Option<Errno>,
    /// The peer has said that another key is next.
    awaits_key: bool,
}

/// How far one look came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// So many bytes, and there may be more.
    More(usize),
    /// So many, and no more in this call.
    Last(usize),
    /// There is no opened record.
    Nothing,
}

impl Incoming {
    pub fn new(keys: Keys) -> Incoming {
        Incoming { keys, opened: None, header: None, needed: HEADER, failed: None, awaits_key: false }
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The records that follow have another key.
    pub fn rekey(&mut self, keys: Keys) {
        self.keys = keys;
        self.awaits_key = false;
    }

    /// Whether a read would get something, with `unread` bytes received: of a record whose length is not known yet, its header counts.
    pub fn is_ready(&self, unread: usize) -> bool {
        self.opened.is_some() || self.failed.is_some() || unread >= self.needed
    }

    /// Bytes that are opened.
    pub fn opened(&self) -> usize {
        self.opened.as_ref().map_or(0, |opened| opened.left.len())
    }

    pub fn needed(&self) -> usize {
        self.needed
    }

    /// Whether the header of the next record has to be looked at first.
    pub fn wants_header(&self) -> bool {
        self.header.is_none()
    }

    /// Why nothing more is opened. It is said again each time.
    pub fn refusal(&self) -> Option<Errno> {
        self.failed.or(self.awaits_key.then_some(EKEYEXPIRED))
    }

    pub fn take_header(&mut self, header: [u8; HEADER]) -> Result<(), Errno> {
        let len = self.keys.body_len(header).inspect_err(|errno| self.failed = Some(*errno))?;
        self.header = Some(header);
        self.needed = HEADER + len;
        Ok(())
    }

    /// The whole record has come, [`Incoming::needed`] bytes of it.
    pub fn take_record(&mut self, mut bytes: Vec<u8>) -> Result<(), Errno> {
        let header = self.header.take().ok_or(EBADMSG)?;
        self.needed = HEADER;
        // What stood in memory that others can write to is believed as it was first seen.
        let body = bytes.get_mut(HEADER..).ok_or(EBADMSG)?;
        let (kind, range) = self.keys.open(header, body).inspect_err(|errno| self.failed = Some(*errno))?;
        let left = range.start + HEADER..range.end + HEADER;
        self.awaits_key = self.keys.version() == Version::Tls13
            && kind == HANDSHAKE
            && bytes.get(left.start).is_some_and(|first| !left.is_empty() && *first == KEY_UPDATE);
        // Of a record without bytes there is nothing to tell, unless it is the type.
        if !left.is_empty() || kind != DATA {
            self.opened = Some(Opened { kind, bytes, left });
        }
        Ok(())
    }

    /// Gives `into` what it takes of the opened record. EIO: it is of a type that the call has not asked for.
    pub fn give(&mut self, into: &mut impl Target, peek: bool) -> Result<Given, Errno> {
        let Some(opened) = &mut self.opened else { return Ok(Given::Nothing) };
        match into.takes(opened.kind) {
            Takes::Yes => {}
            Takes::NotNow => return Ok(Given::Last(0)),
            Takes::No => return Err(Errno::EIO),
        }
        let rest = &opened.bytes[opened.left.clone()];
        let taken = into.take(Bytes::Own(rest), rest.len())?;
        let is_all = taken == rest.len();
        if !peek {
            opened.left.start += taken;
        }
        let is_data = opened.kind == DATA;
        if !peek && is_all {
            self.opened = None;
        }
        Ok(if is_all && is_data && !peek { Given::More(taken) } else { Given::Last(taken) })
    }

    /// Bytes that were given out are to be given out again, before all others.
    pub fn put_back(&mut self, mut bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let mut kind = DATA;
        if let Some(opened) = self.opened.take() {
            kind = opened.kind;
            bytes.extend_from_slice(&opened.bytes[opened.left]);
        }
        let left = 0..bytes.len();
        self.opened = Some(Opened { kind, bytes, left });
    }
}
