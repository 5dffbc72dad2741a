//! Options that neither the engine nor this library knows: the program has set them, with success, and may ask for them again;
//! and connections inherit them from their listener.

use crate::socket::{Kind, Socket};
use toe_abi::command::{SHARES_REUSE_ADDR, SHARES_REUSE_PORT};
use toe_abi::entry::{Command, FlowOption};
use toe_abi::errno::Errno;

/// Longer values are not asked for again.
const VALUE_MAX: usize = 16;
/// There are not as many options.
const KEPT_MAX: usize = 128;
/// Linux: SOCK_MIN_RCVBUF / 2.
const WINDOW_CLAMP_MIN: i32 = 1152;

#[derive(Clone, Copy, Debug)]
struct Kept {
    level: i32,
    name: i32,
    len: u8,
    value: [u8; VALUE_MAX],
}

/// What was set, each option once.
#[derive(Clone, Debug, Default)]
pub struct KeptOptions(Vec<Kept>);

impl KeptOptions {
    pub(super) fn set(&mut self, level: i32, name: i32, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(VALUE_MAX)];
        let mut value = [0; VALUE_MAX];
        value[..bytes.len()].copy_from_slice(bytes);
        let kept = Kept { level, name, len: bytes.len() as u8, value };
        let is_full = self.0.len() >= KEPT_MAX;
        match self.0.iter_mut().find(|known| (known.level, known.name) == (level, name)) {
            Some(known) => *known = kept,
            None if is_full => {}
            None => self.0.push(kept),
        }
    }

    pub(super) fn each(&self, mut f: impl FnMut(i32, i32, &[u8])) {
        self.0.iter().for_each(|kept| f(kept.level, kept.name, &kept.value[..usize::from(kept.len)]));
    }

    pub(super) fn forget(&mut self, level: i32, name: i32) {
        self.0.retain(|known| (known.level, known.name) != (level, name));
    }

    /// What TCP_WINDOW_CLAMP lets the peer be offered, where it is set; Linux takes no less than half of its smallest buffer.
    pub(super) fn window_clamp(&self) -> Option<u32> {
        let value = self.get(libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP)?.first_chunk()?;
        Some(i32::from_ne_bytes(*value).max(WINDOW_CLAMP_MIN) as u32)
    }

    pub(super) fn all(&self) -> Vec<(i32, i32, Vec<u8>)> {
        let one = |kept: &Kept| (kept.level, kept.name, kept.value[..usize::from(kept.len)].to_vec());
        self.0.iter().map(one).collect()
    }

    fn get(&self, level: i32, name: i32) -> Option<&[u8]> {
        let kept = self.0.iter().find(|known| (known.level, known.name) == (level, name))?;
        Some(&kept.value[..usize::from(kept.len)])
    }
}

/// What a native program may set though it makes no difference: there the kernel has nothing to say.
const WITHOUT_EFFECT: [(i32, i32); 7] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
];

/// The priority that goes with the type of service of RFC 1349, as Linux has it (TC_PRIO_*): none asked for, throughput, delay, both.
fn priority_of(tos: u32) -> i32 {
    const PRIORITIES: [i32; 4] = [0, 2, 6, 4];
    PRIORITIES[(tos >> 3 & 3) as usize]
}

impl Socket {
    /// A new IP_TOS sets SO_PRIORITY (Linux: ip_sock_set_tos).
    pub(super) fn keep_priority_of(&'static self, tos: u32) {
        self.keep_option(libc::SOL_SOCKET, libc::SO_PRIORITY, &priority_of(tos).to_ne_bytes());
    }

    /// `setsockopt` of a native socket.
    pub(crate) fn set_native_option(&'static self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        match self.set_option(level, name, value) {
            Err(Errno::ENOPROTOOPT) if WITHOUT_EFFECT.contains(&(level, name)) => {
                let value = value.first_chunk::<4>().ok_or(Errno::EINVAL)?;
                self.keep_option(level, name, value);
                Ok(())
            }
            other => other,
        }
    }

    /// `getsockopt` of a native socket.
    pub(crate) fn get_native_option(
        &'static self,
        level: i32,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        match self.get_option(level, name, out) {
            Err(Errno::ENOPROTOOPT) if WITHOUT_EFFECT.contains(&(level, name)) => {
                let mut value = [0; 4];
                self.with_kept_option(level, name, |kept| value.copy_from_slice(&kept[..4]));
                let len = out.len().min(value.len());
                out[..len].copy_from_slice(&value[..len]);
                Ok(len)
            }
            other => other,
        }
    }

    /// The program has set it, and Linux would have let it.
    pub fn keep_option(&'static self, level: i32, name: i32, value: &[u8]) {
        self.settings.lock().kept.set(level, name, value);
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => self.defer_accept(),
            (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => self.bound_window(level),
            _ => {}
        }
        self.note_changed_option();
        if level == libc::SOL_SOCKET && matches!(name, libc::SO_REUSEADDR | libc::SO_REUSEPORT) {
            let value = self.shares_name();
            self.tell_engine(level, FlowOption::SharesName, value);
            if self.kind() == Kind::Listener && self.descriptor().is_some() {
                // What it had when it began to listen the engine has seen on its twin.
                self.settings.lock().shares_name_now = Some(value);
            }
        }
    }

    /// TCP_DEFER_ACCEPT: of a listener the engine is told.
    fn defer_accept(&'static self) {
        if self.kind() != Kind::Listener {
            return;
        }
        let mut secs = 0;
        self.with_kept_option(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, |value| {
            let value = value.first_chunk().map_or(0, |value| i32::from_ne_bytes(*value));
            secs = u32::try_from(value).unwrap_or(0);
        });
        for member in self.members(0) {
            member.with_listener(|io, listener| {
                io.command(Command::DeferAccept { listener: listener.id, secs });
            });
        }
    }

    /// What the program lets others have of the socket's name.
    fn shares_name(&self) -> u32 {
        let is_on = |name| {
            let mut on = false;
            self.with_kept_option(libc::SOL_SOCKET, name, |value| on = value.iter().any(|byte| *byte != 0));
            on
        };
        let bit = |name, bit| if is_on(name) { bit } else { 0 };
        bit(libc::SO_REUSEADDR, SHARES_REUSE_ADDR) | bit(libc::SO_REUSEPORT, SHARES_REUSE_PORT)
    }

    /// Does `f` to the value that was set, if any was.
    pub fn with_kept_option(&self, level: i32, name: i32, f: impl FnOnce(&[u8])) {
        let settings = self.settings.lock();
        if let Some(value) = settings.kept.get(level, name) {
            f(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_each_option_is_kept() {
        let mut kept = KeptOptions::default();
        kept.set(1, 2, &[1, 0, 0, 0]);
        kept.set(1, 3, &[9; 40]);
        kept.set(1, 2, &[7]);
        assert_eq!(kept.get(1, 2), Some(&[7][..]));
        assert_eq!(kept.get(1, 3), Some(&[9; VALUE_MAX][..]));
        assert_eq!(kept.get(6, 2), None);
        (0..1000).for_each(|name| kept.set(1, name, &[1]));
        assert_eq!(kept.0.len(), KEPT_MAX);
    }
}
