//! The options of TLS on a socket: TCP_ULP, and those of their own level, answered as Linux does (net/tls/tls_main.c, as observed by its
//! self-tests).

use super::incoming::Incoming;
use super::keys::Keys;
use super::outgoing::Outgoing;
use super::parameters::{INFO_LEN, LEN_MAX, Parameters, Version};
use super::{TLS_RX, TLS_RX_EXPECT_NO_PAD, TLS_TX, TLS_TX_ZEROCOPY_RO, Tls};
use crate::errno::ENOENT;
use crate::queue::QueueIo;
use crate::socket::Socket;
use crate::socket::stream::{IN, Stream};
use toe_abi::errno::Errno;

const EBUSY: Errno = Errno(libc::EBUSY as u16);
const EEXIST: Errno = Errno(libc::EEXIST as u16);
/// TCP_ULP_NAME_MAX.
const NAME_MAX: usize = 16;
const NAME: &[u8] = b"tls";

impl Socket {
    /// TCP_ULP. ENOPROTOOPT: a name that is not known here; EEXIST: it has one; ENOTCONN: it is not established; ENOENT, as Linux says without the
    /// module: another process may have the descriptor, and keys cannot go to two.
    pub(crate) fn set_upper_protocol(&'static self, name: &[u8]) -> Result<(), Errno> {
        if name.is_empty() {
            return Err(Errno::EINVAL);
        }
        let len = name.iter().take(NAME_MAX - 1).position(|byte| *byte == 0);
        if name[..len.unwrap_or(name.len().min(NAME_MAX - 1))] != *NAME {
            return Err(Errno::ENOPROTOOPT);
        }
        if self.peek_stream(|stream| stream.ulp.tls.is_some()) == Some(true) {
            return Err(EEXIST);
        }
        if !self.is_established() {
            return Err(Errno::ENOTCONN);
        }
        if self.is_shared() || self.mark_keys().is_err() {
            return Err(ENOENT);
        }
        self.with_stream(|_, stream, _| stream.ulp.tls = Some(Box::default())).ok_or(Errno::ENOTCONN)
    }

    /// The name that was set, with zeros behind it; nothing if none was.
    pub(crate) fn upper_protocol(&'static self, out: &mut [u8]) -> usize {
        if self.peek_stream(|stream| stream.ulp.tls.is_some()) != Some(true) {
            return 0;
        }
        let mut name = [0; NAME_MAX];
        name[..NAME.len()].copy_from_slice(NAME);
        let len = out.len().min(NAME_MAX);
        out[..len].copy_from_slice(&name[..len]);
        len
    }

    /// An option of SOL_TLS. ENOPROTOOPT before TCP_ULP, too.
    pub(crate) fn set_tls_option(&'static self, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.with_stream(|io, stream, _| stream.set_tls_option(io, name, value))
            .unwrap_or(Err(Errno::ENOPROTOOPT))
    }

    /// Its value, into as much room as the program has; how many bytes. EOPNOTSUPP before TCP_ULP.
    pub(crate) fn get_tls_option(&'static self, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        self.with_stream(|_, stream, _| match &stream.ulp.tls {
            Some(tls) => tls.get_option(name, out),
            None => Err(Errno::EOPNOTSUPP),
        })
        .unwrap_or(Err(Errno::EOPNOTSUPP))
    }
}

/// 0 or 1.
fn switch(value: &[u8]) -> Result<bool, Errno> {
    match value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)) {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

impl Stream {
    fn set_tls_option(&mut self, io: &mut QueueIo, name: i32, value: &[u8]) -> Result<(), Errno> {
        let tls = self.ulp.tls.as_mut().ok_or(Errno::ENOPROTOOPT)?;
        match name {
            TLS_TX => {
                let keys = tls.next_keys(value, true)?;
                // What was sent before has the key from before.
                self.end_records(io);
                match &mut self.ulp.tls.as_mut().ok_or(Errno::ENOPROTOOPT)?.outgoing {
                    Some(outgoing) => outgoing.rekey(keys),
                    none => *none = Some(Outgoing::new(keys)),
                }
            }
            TLS_RX => {
                let keys = tls.next_keys(value, false)?;
                match &mut tls.incoming {
                    Some(incoming) => incoming.rekey(keys),
                    none => *none = Some(Incoming::new(keys)),
                }
                // Whether there is something to read has changed.
                self.publish(IN);
            }
            TLS_TX_ZEROCOPY_RO if value.len() == size_of::<u32>() => tls.zero_copy = switch(value)?,
            TLS_RX_EXPECT_NO_PAD if tls.opens(Version::Tls13) => tls.expects_no_padding = switch(value)?,
            TLS_TX_ZEROCOPY_RO | TLS_RX_EXPECT_NO_PAD => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }
}

impl Tls {
    fn keys(&self, sends: bool) -> Option<&Keys> {
        match sends {
            true => self.outgoing.as_ref().map(Outgoing::keys),
            false => self.incoming.as_ref().map(Incoming::keys),
        }
    }

    fn opens(&self, version: Version) -> bool {
        self.keys(false).is_some_and(|keys| keys.version() == version)
    }

    /// The key that a program gives one direction. EBUSY: it has one for good; EINVAL: what Linux refuses, or a version or cipher that is not that of
    /// the other direction or of the key before.
    fn next_keys(&self, value: &[u8], sends: bool) -> Result<Keys, Errno> {
        if value.len() < INFO_LEN {
            return Err(Errno::EINVAL);
        }
        let before = self.keys(sends);
        if before.is_some_and(|keys| keys.version() == Version::Tls12) {
            return Err(EBUSY);
        }
        let parameters = Parameters::read(value)?;
        let others = before.into_iter().chain(self.keys(!sends));
        if others.into_iter().any(|keys| !keys.is_like(&parameters)) {
            return Err(Errno::EINVAL);
        }
        Keys::new(parameters)
    }

    fn get_option(&self, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        let put = |out: &mut [u8], bytes: &[u8]| {
            out.get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
            Ok(bytes.len())
        };
        match name {
            TLS_TX | TLS_RX if out.len() < INFO_LEN => Err(Errno::EINVAL),
            TLS_TX | TLS_RX => {
                let keys = self.keys(name == TLS_TX).ok_or(EBUSY)?;
                let mut info = [0; LEN_MAX];
                let len = keys.info(&mut info);
                match out.len() {
                    INFO_LEN => put(out, &keys.version_and_cipher()),
                    room if room == len => put(out, &info[..len]),
                    _ => Err(Errno::EINVAL),
                }
            }
            TLS_TX_ZEROCOPY_RO if out.len() == size_of::<u32>() => {
                put(out, &u32::from(self.zero_copy).to_ne_bytes())
            }
            TLS_RX_EXPECT_NO_PAD if self.opens(Version::Tls13) => {
                put(out, &u32::from(self.expects_no_padding).to_ne_bytes())
            }
            TLS_TX_ZEROCOPY_RO | TLS_RX_EXPECT_NO_PAD => Err(Errno::EINVAL),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }
}
