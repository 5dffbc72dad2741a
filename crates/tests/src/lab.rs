//! A lab: two network namespaces joined by two links, and a directory, for one test alone.
//!
//! ```text
//!   namespace S (server)                        namespace C (client)
//!   toe0   no kernel address; the engine's  ==  toe0  10.77.0.1/24     ENGINE_ADDR is 10.77.0.2
//!   kern0  10.78.0.2/24                     ==  kern0 10.78.0.1/24
//!   lo                                          lo
//! ```
//!
//! The names carry the number of the test process, so that a later run can tell which ones nobody owns any more.

use crate::child;
use crate::wait::{self, SOON};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The engine's own address on the link `toe0`.
pub const ENGINE_ADDR: &str = "10.77.0.2";
/// The kernel's address at the other end of `toe0`, and what a second engine there may take instead.
pub const PEER_ADDR: &str = "10.77.0.1";
/// The kernel's address of the server's namespace, on a link of its own.
pub const KERNEL_ADDR: &str = "10.78.0.2";
/// The kernel's address of the client's namespace on that link.
pub const KERNEL_PEER_ADDR: &str = "10.78.0.1";
/// The link that the engine may use.
pub const ENGINE_LINK: &str = "toe0";

/// The TAP interface of an engine that has one, in the server's namespace.
pub const TAP_LINK: &str = "toetap";
/// The engine's address behind it.
pub const TAP_ENGINE_ADDR: &str = "10.79.0.2";
/// The kernel's address on it, with its prefix.
const TAP_KERNEL_CIDR: &str = "10.79.0.1/24";

/// All names of namespaces, engines and directories begin so.
const PREFIX: &str = "toetest-";

/// The two sides of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Server,
    Client,
}

/// Namespaces and a directory; both go when this is dropped, with every process left in the namespaces.
#[derive(Debug)]
pub struct Lab {
    name: String,
    dir: PathBuf,
}

impl Lab {
    /// A new lab, both links up.
    ///
    /// # Panics
    /// Without root, or when the kernel refuses.
    pub fn new() -> Lab {
        static SWEEP: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        assert!(
            rustix::process::geteuid().is_root(),
            "whole-program tests make network namespaces, which needs root: run `sudo env PATH=$PATH make test`"
        );
        SWEEP.call_once(sweep);

        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&name);
        fs::create_dir(&dir).expect("a directory for the test");
        // Programs that gave up root must reach what lies in it.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("permissions");
        fs::write(dir.join("peer.py"), include_str!("peer.py")).expect("peer.py");
        let lab = Lab { name, dir };
        lab.make_namespaces();
        lab
    }

    fn make_namespaces(&self) {
        let (s, c) = (self.namespace(Side::Server), self.namespace(Side::Client));
        for ns in [&s, &c] {
            ip(&["netns", "add", ns]);
            ip(&["-n", ns, "link", "set", "lo", "up"]);
        }
        for link in [ENGINE_LINK, "kern0"] {
            ip(&["-n", &s, "link", "add", link, "type", "veth", "peer", "name", link, "netns", &c]);
        }
        for (ns, link, addr) in
            [(&c, ENGINE_LINK, PEER_ADDR), (&s, "kern0", KERNEL_ADDR), (&c, "kern0", KERNEL_PEER_ADDR)]
        {
            ip(&["-n", ns, "addr", "add", &format!("{addr}/24"), "dev", link]);
        }
        for ns in [&s, &c] {
            for link in [ENGINE_LINK, "kern0"] {
                ip(&["-n", ns, "link", "set", link, "up"]);
            }
            // A namespace starts with the host's setting; a lab's kernel must not forward what is the engine's.
            let mut sysctl = self.command_in(ns, "sh");
            sysctl.args(["-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"]);
            child::run("ip_forward", &mut sysctl, SOON).expect_success("ip_forward");
        }
    }

    /// Takes the kernel's address off the client's end of `toe0`, so that a second engine can have it.
    pub fn free_peer_addr(&self) {
        ip(&["-n", &self.namespace(Side::Client), "addr", "flush", "dev", ENGINE_LINK]);
    }

    /// Gives the kernel its address on the TAP interface that an engine made.
    pub fn give_tap_its_address(&self) {
        ip(&["-n", &self.namespace(Side::Server), "addr", "add", TAP_KERNEL_CIDR, "dev", TAP_LINK]);
    }

    /// The lab's name: unique among all that run.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lab's directory, readable by everybody.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The name of a side's namespace.
    pub fn namespace(&self, side: Side) -> String {
        match side {
            Side::Server => format!("{}-s", self.name),
            Side::Client => format!("{}-c", self.name),
        }
    }

    /// A command on one side, on the kernel's stack.
    pub fn command(&self, side: Side, program: impl AsRef<Path>) -> Command {
        self.command_in(&self.namespace(side), program)
    }

    fn command_in(&self, namespace: &str, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        // nsenter(1) executes the program in its own place, so the child's number is the program's.
        command.arg(format!("--net=/run/netns/{namespace}")).arg("--").arg(program.as_ref());
        command.current_dir(&self.dir).env_remove("TOE_ENGINE").env_remove("LD_PRELOAD");
        command
    }

    /// A file of `len` octets that do not repeat, the same for each test; gives its path and SHA-256.
    pub fn file(&self, name: &str, len: u64) -> (PathBuf, String) {
        let path = self.dir.join(name);
        let mut octets = Vec::with_capacity(usize::try_from(len).expect("fits memory"));
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        while (octets.len() as u64) < len {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            octets.extend_from_slice(&state.to_le_bytes());
        }
        octets.truncate(usize::try_from(len).expect("fits memory"));
        fs::write(&path, &octets).expect("a test file");
        let sum = sha256(&path);
        (path, sum)
    }

    /// The processes that run on one side.
    pub fn pids(&self, side: Side) -> Vec<u32> {
        pids_in(&self.namespace(side))
    }
}

impl Default for Lab {
    fn default() -> Lab {
        Lab::new()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        remove_namespace(&self.namespace(Side::Server));
        remove_namespace(&self.namespace(Side::Client));
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().expect("sha256sum");
    assert!(
        output.status.success(),
        "sha256sum {}: {}",
        path.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap_or_default().to_owned()
}

/// Runs ip(8), which must succeed.
fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("ip(8), from Debian's iproute2");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn pids_in(namespace: &str) -> Vec<u32> {
    let output = Command::new("ip").args(["netns", "pids", namespace]).stderr(Stdio::null()).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Ends what still runs in a namespace (daemons have left their parent's group), then removes it.
fn remove_namespace(namespace: &str) {
    let pids = pids_in(namespace);
    pids.iter().copied().for_each(child::end);
    if !pids.is_empty() && !std::thread::panicking() {
        wait::until_true("the lab's processes are gone", SOON, || {
            !pids.iter().any(|pid| child::is_alive(*pid))
        });
    }
    let _ = Command::new("ip").args(["netns", "del", namespace]).stderr(Stdio::null()).status();
}

/// Removes what earlier runs left that could not clean up (they were killed): names of ours whose process is gone.
fn sweep() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_stale(&name) {
            remove_namespace(&name);
        }
    }
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if is_stale(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_stale(name: &str) -> bool {
    let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
    owner.and_then(|pid| pid.parse::<u32>().ok()).is_some_and(|pid| !child::is_alive(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_with_a_dead_owner_are_stale() {
        assert!(!is_stale("default"));
        assert!(!is_stale("toetest-x-1"));
        assert!(!is_stale(&format!("{PREFIX}{}-0-s", std::process::id())));
        assert!(is_stale(&format!("{PREFIX}{}-0-s", u32::MAX)));
    }
}
