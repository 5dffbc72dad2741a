//! Options that neither the engine nor this library knows: the program has set them, with success, and may ask for them again;
//! and connections inherit them from their listener.

use crate::socket::{Kind, Socket};
use toe_abi::command::{SHARES_REUSE_ADDR, SHARES_REUSE_PORT};
use toe_abi::entry::{Command, FlowOption};

/// What a native program may set though it makes no difference: there the kernel has nothing to say.
pub(super) const WITHOUT_EFFECT: [(i32, i32); 7] = [
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

    /// The program has set it, and Linux would have let it.
    pub fn keep_option(&'static self, level: i32, name: i32, value: &[u8]) {
        self.settings.lock().saved.set(level, name, value);
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => self.defer_accept(),
            (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => self.bound_window(level),
            _ => {}
        }
        self.note_changed_option();
        if level == libc::SOL_SOCKET && matches!(name, libc::SO_REUSEADDR | libc::SO_REUSEPORT) {
            let value = self.shares_name();
            self.tell_engine(level, FlowOption::SharesName, value);
            if self.kind() == Kind::Listener && self.fds.known().is_some() {
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
        self.with_saved_option(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, |value| {
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
            self.with_saved_option(libc::SOL_SOCKET, name, |value| on = value.iter().any(|byte| *byte != 0));
            on
        };
        let bit = |name, bit| if is_on(name) { bit } else { 0 };
        bit(libc::SO_REUSEADDR, SHARES_REUSE_ADDR) | bit(libc::SO_REUSEPORT, SHARES_REUSE_PORT)
    }

    /// Does `f` to the value that was set, if any was.
    pub fn with_saved_option(&self, level: i32, name: i32, f: impl FnOnce(&[u8])) {
        let settings = self.settings.lock();
        if let Some(value) = settings.saved.get(level, name) {
            f(value);
        }
    }
}
