//! One direction's key: seals and opens one record at a time (RFC 8446 section 5.2, RFC 5246 section 6.2.3.3, RFC 5288, RFC 7905).
//!
//! Every record has the next number, so that no nonce is used twice; a direction whose numbers are used up fails.

use super::parameters::{Cipher, LEN_MAX, NONCE, Parameters, Version};
use super::record_type::{DATA, PLAIN_MAX};
use core::ops::Range;
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use toe_abi::errno::Errno;

/// Bytes before a record's body: type, version, length.
pub const HEADER: usize = 5;
const TAG: usize = 16;
/// Of the nonce that TLS 1.2 sends with each record of AES-GCM.
const EXPLICIT: usize = 8;
/// What both versions say theirs is.
const VERSION: [u8; 2] = [3, 3];

pub const EBADMSG: Errno = Errno(libc::EBADMSG as u16);

/// A key with what it is used by.
#[derive(Debug)]
pub struct Keys {
    key: LessSafeKey,
    parameters: Parameters,
    /// The numbers are used up.
    is_spent: bool,
}

impl Keys {
    pub fn new(parameters: Parameters) -> Result<Keys, Errno> {
        let algorithm = match parameters.cipher {
            Cipher::AesGcm128 => &aead::AES_128_GCM,
            Cipher::AesGcm256 => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, parameters.key()).map_err(|_| Errno::EINVAL)?;
        Ok(Keys { key: LessSafeKey::new(key), parameters, is_spent: false })
    }

    pub fn version(&self) -> Version {
        self.parameters.version
    }

    /// Whether keys of `other` may take its place, or serve the other direction: as Linux, for the same version and cipher only.
    pub fn is_like(&self, other: &Parameters) -> bool {
        self.parameters.version == other.version && self.parameters.cipher == other.cipher
    }

    /// As the structure of getsockopt has it now.
    pub fn info(&self, out: &mut [u8; LEN_MAX]) -> usize {
        self.parameters.write(out)
    }

    pub fn version_and_cipher(&self) -> [u8; super::parameters::INFO_LEN] {
        self.parameters.version_and_cipher()
    }

    fn sends_nonce(&self) -> bool {
        self.parameters.version == Version::Tls12 && self.parameters.cipher != Cipher::ChaCha20Poly1305
    }

    fn explicit_len(&self) -> usize {
        if self.sends_nonce() { EXPLICIT } else { 0 }
    }

    /// The byte for a record's true type.
    fn tail_len(&self) -> usize {
        usize::from(self.parameters.version == Version::Tls13)
    }

    /// Bytes of a record before those of the program.
    pub fn before(&self) -> usize {
        HEADER + self.explicit_len()
    }

    /// Bytes of a record that are not the program's.
    pub fn overhead(&self) -> usize {
        self.before() + self.tail_len() + TAG
    }

    /// The nonce of the next record, of which `explicit` was sent with it.
    fn nonce(&self, explicit: Option<&[u8]>) -> Nonce {
        let mut nonce: [u8; NONCE] = self.parameters.nonce;
        match explicit {
            Some(explicit) => nonce[NONCE - EXPLICIT..].copy_from_slice(explicit),
            None => {
                let sequence = self.parameters.sequence.to_be_bytes();
                let last = nonce[NONCE - sequence.len()..].iter_mut();
                last.zip(sequence).for_each(|(byte, number)| *byte ^= number);
            }
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// What is authenticated beside a record of TLS 1.2.
    fn additional_data(&self, kind: u8, plain_len: usize) -> [u8; 13] {
        let mut additional_data = [0; 13];
        additional_data[..8].copy_from_slice(&self.parameters.sequence.to_be_bytes());
        additional_data[8] = kind;
        additional_data[9..11].copy_from_slice(&VERSION);
        additional_data[11..].copy_from_slice(&(plain_len as u16).to_be_bytes());
        additional_data
    }

    fn advance(&mut self) {
        match self.parameters.sequence.checked_add(1) {
            Some(next) => self.parameters.sequence = next,
            None => self.is_spent = true,
        }
        if self.sends_nonce() {
            // Linux counts on from the iv that it was given.
            let (_, iv) = self.parameters.nonce.split_at_mut(NONCE - EXPLICIT);
            let next = iv.first_chunk().map_or(0, |iv| u64::from_be_bytes(*iv)).wrapping_add(1);
            iv.copy_from_slice(&next.to_be_bytes());
        }
    }

    /// Makes a record of `kind` at the beginning of `room`: of `plain_len` bytes of the program's, [`PLAIN_MAX`] at most, that lie behind
    /// [`Keys::before`] of any value, with as many behind them as [`Keys::overhead`] says. How long it is. An error: the numbers are used up.
    pub fn seal(&mut self, kind: u8, room: &mut [u8], plain_len: usize) -> Result<usize, Errno> {
        debug_assert!(plain_len <= PLAIN_MAX, "a record is cut before it is sealed");
        if self.is_spent {
            return Err(EBADMSG);
        }
        let len = plain_len + self.overhead();
        // Only what is longer than any record fails.
        let record = room.get_mut(..len).ok_or(Errno::EMSGSIZE)?;
        let outer = if self.parameters.version == Version::Tls13 { DATA } else { kind };
        let [high, low] = ((len - HEADER) as u16).to_be_bytes();
        let header = [outer, VERSION[0], VERSION[1], high, low];
        let (before, rest) = record.split_at_mut(self.before());
        let (plain, tag) = rest.split_at_mut(plain_len + self.tail_len());
        before[..HEADER].copy_from_slice(&header);
        plain[plain_len..].fill(kind);
        let nonce = if self.sends_nonce() {
            let explicit = &self.parameters.nonce[NONCE - EXPLICIT..];
            before[HEADER..].copy_from_slice(explicit);
            self.nonce(Some(explicit))
        } else {
            self.nonce(None)
        };
        let made = match self.parameters.version {
            Version::Tls13 => self.key.seal_in_place_separate_tag(nonce, Aad::from(header), plain),
            Version::Tls12 => {
                let additional_data = Aad::from(self.additional_data(kind, plain_len));
                self.key.seal_in_place_separate_tag(nonce, additional_data, plain)
            }
        };
        tag.copy_from_slice(made.map_err(|_| Errno::EMSGSIZE)?.as_ref());
        self.advance();
        Ok(len)
    }

    /// Bytes of the body that `header` announces. The errors are those of Linux (tls_rx_msg_size): EMSGSIZE: more than a record has; EBADMSG:
    /// too few; EINVAL: not TLS.
    pub fn body_len(&self, header: [u8; HEADER]) -> Result<usize, Errno> {
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let least = self.explicit_len() + TAG;
        if len > PLAIN_MAX + least + self.tail_len() {
            Err(Errno::EMSGSIZE)
        } else if len < least + self.tail_len() {
            Err(EBADMSG)
        } else if header[1..3] != VERSION {
            Err(Errno::EINVAL)
        } else {
            Ok(len)
        }
    }

    /// Opens the record with this header and body in place: its type, and where in the body the program's bytes are. EBADMSG: somebody
    /// has changed it, or it has no type.
    pub fn open(&mut self, header: [u8; HEADER], body: &mut [u8]) -> Result<(u8, Range<usize>), Errno> {
        if self.is_spent {
            return Err(EBADMSG);
        }
        let at = self.explicit_len();
        let (explicit, sealed) = body.split_at_mut_checked(at).ok_or(EBADMSG)?;
        let nonce = self.nonce(self.sends_nonce().then_some(explicit));
        let opened = match self.parameters.version {
            Version::Tls13 => self.key.open_in_place(nonce, Aad::from(header), sealed),
            Version::Tls12 => {
                let plain_len = sealed.len().checked_sub(TAG).ok_or(EBADMSG)?;
                self.key.open_in_place(nonce, Aad::from(self.additional_data(header[0], plain_len)), sealed)
            }
        };
        let plain = opened.map_err(|_| EBADMSG)?;
        let (kind, len) = match self.parameters.version {
            Version::Tls12 => (header[0], plain.len()),
            // Behind the type there may be zeros.
            Version::Tls13 => {
                let last = plain.iter().rposition(|byte| *byte != 0).ok_or(EBADMSG)?;
                (plain[last], last)
            }
        };
        if len > PLAIN_MAX {
            return Err(Errno::EMSGSIZE);
        }
        self.advance();
        Ok((kind, at..at + len))
    }
}
