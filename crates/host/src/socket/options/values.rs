//! Values of options as the C calls have them.

use std::time::Duration;
use toe_abi::errno::Errno;

pub(in crate::socket) fn int(value: &[u8]) -> Result<i32, Errno> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}
pub(in crate::socket) fn put(out: &mut [u8], value: &[u8]) -> usize {
    let len = out.len().min(value.len());
    out[..len].copy_from_slice(&value[..len]);
    len
}

/// Linux offers half of a receive buffer (tcp_adv_win_scale).
pub(in crate::socket) fn window_of(buffer: u32) -> u32 {
    buffer / 2
}

/// What SO_RCVLOWAT of a socket with this buffer may be.
pub(in crate::socket) fn low_water_of(bytes: u32, buffer: u32) -> u32 {
    bytes.min(buffer / 2).max(1)
}

/// SO_LINGER. Linux goes on showing the time of one that is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Linger {
    on: bool,
    secs: i32,
}

impl Linger {
    /// As `struct linger` says it.
    pub(crate) fn set(&mut self, value: &[u8]) -> Result<(), Errno> {
        let on = int(value)? != 0;
        let secs = value.get(4..).map(int).ok_or(Errno::EINVAL)??;
        *self = Linger { on, secs: if on { secs } else { self.secs } };
        Ok(())
    }

    /// As [`Linger::value`] wrote it down.
    pub(in crate::socket) fn of(value: &[u8]) -> Linger {
        let word = |at: usize| value.get(at..).and_then(|rest| int(rest).ok()).unwrap_or(0);
        Linger { on: word(0) != 0, secs: word(4) }
    }

    /// Whether close ends the connection by a reset.
    pub fn aborts(self) -> bool {
        self.time() == Some(Duration::ZERO)
    }

    /// How long to wait, when on.
    pub fn time(self) -> Option<Duration> {
        // Linux reads it as unsigned, and then it is longer than it ever waits.
        self.on.then(|| Duration::from_secs(u64::from(self.secs as u32)))
    }

    pub(in crate::socket) fn value(self) -> [u8; 8] {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&i32::from(self.on).to_ne_bytes());
        value[4..].copy_from_slice(&self.secs.to_ne_bytes());
        value
    }
}
