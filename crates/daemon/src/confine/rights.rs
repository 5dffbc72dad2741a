//! The user and the capabilities of an engine's process. A link can vanish and come again at any time; what opening it again
//! takes is kept, and nothing else.

use crate::config::RunAs;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use toe_port::Driver;

/// Every capability that there is or may come to be.
const LAST: u32 = 63;
/// Those that links need, with the names that `capsh` gives them.
const NAMES: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::NET_ADMIN, "net_admin"),
    (CapabilitySet::NET_RAW, "net_raw"),
    (CapabilitySet::IPC_LOCK, "ipc_lock"),
    (CapabilitySet::BPF, "bpf"),
];

/// The capabilities that an engine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    retained: CapabilitySet,
}

impl std::fmt::Display for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> =
            NAMES.iter().filter(|(right, _)| self.retained.contains(*right)).map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

impl Rights {
    /// What links on these drivers take, as far as this process has it.
    pub fn take(drivers: impl Iterator<Item = Driver>) -> Rights {
        let mut retained = CapabilitySet::empty();
        for driver in drivers {
            retained |= needed(driver);
            if driver.locks_memory() && !may_lock_all_memory() {
                retained |= CapabilitySet::IPC_LOCK;
            }
        }
        let have = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
        Rights { retained: retained & have }
    }

    /// Not even a program with more rights, were the engine to start one, would get others. It takes CAP_SETPCAP: so this
    /// comes before the user changes. Without it, no_new_privs does the same.
    pub fn drop_others_for_good(&self) {
        for number in 0..=LAST {
            let one = CapabilitySet::from_bits_retain(1 << number);
            // Those that this kernel does not know are not there to be dropped.
            if !self.retained.contains(one) {
                let _ = rustix::thread::remove_capability_from_bounding_set(one);
            }
        }
    }

    /// Gives up all others.
    pub fn keep_only(&self) -> rustix::io::Result<()> {
        let sets = CapabilitySets {
            effective: self.retained,
            permitted: self.retained,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets)
    }
}

/// What opening such a link takes.
fn needed(driver: Driver) -> CapabilitySet {
    match driver {
        // socket(AF_PACKET). The interface is not brought up again: whoever takes it down means it.
        Driver::Packet => CapabilitySet::NET_RAW,
        // TUNSETIFF makes the interface anew, and it is brought up.
        Driver::Tap => CapabilitySet::NET_ADMIN,
        // The steering program is loaded and attached, and neighbours of the kernel's are confirmed.
        Driver::Xdp => CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF,
    }
}

/// Takes the limit of locked memory away, as root may almost everywhere; whether there is none now.
fn may_lock_all_memory() -> bool {
    let all = Rlimit { current: None, maximum: None };
    rustix::process::setrlimit(Resource::Memlock, all).is_ok()
}

/// Becomes `user`, without any group but his. `before` runs while this is still root and nothing can fail any more but the
/// change of the user itself. The permitted capabilities stay; [`Rights::keep_only`] comes next.
pub fn become_user(user: RunAs, before: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    before()?;
    rustix::thread::set_keep_capabilities(true)?;
    // With the C library's functions: they change all threads of a process, should there be more than one.
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_needs_nothing_and_links_what_opening_them_takes() {
        assert_eq!(Rights::take([].into_iter()).to_string(), "none");
        let all = Rights { retained: needed(Driver::Xdp) | needed(Driver::Tap) };
        assert_eq!(all.to_string(), "net_admin,net_raw,bpf");
        assert_eq!(needed(Driver::Packet), CapabilitySet::NET_RAW);
    }
}
