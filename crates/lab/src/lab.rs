//! A lab: two network namespaces joined by two links, and a directory, for one purpose alone.
//!
//! ```text
//!   namespace S (server)                        namespace C (client)
//!   toe0   no kernel address; the engine's  ==  toe0  10.77.0.1/24     ENGINE_ADDR is 10.77.0.2
//!   kern0  10.78.0.2/24                     ==  kern0 10.78.0.1/24
//!   lo                                          lo
//! ```
//!
//! The names carry the number of the owning process, so that a later run can tell which ones nobody owns any more.
//! A lab can also be made without namespaces (which need root): then both sides are this machine and there is no link.

use crate::wait::{self, SOON};
use crate::{Error, Result, process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The engine's own address on the link `toe0`.
pub const ENGINE_ADDR: &str = "10.77.0.2";
/// The kernel's address at the other end of `toe0`, and what a second engine there may take instead.
pub const PEER_ADDR: &str = "10.77.0.1";
/// The same of IPv6, in labs that have it.
pub const ENGINE_ADDR6: &str = "fd77::2";
pub const PEER_ADDR6: &str = "fd77::1";
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
/// The same of IPv6, and the kernel's.
pub const TAP_ENGINE_ADDR6: &str = "fd79::2";
pub const TAP_KERNEL_ADDR6: &str = "fd79::1";
/// The kernel's address on it, with its prefix.
const TAP_KERNEL_CIDR: &str = "10.79.0.1/24";

/// The two sides of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Server,
    Client,
}

/// Where a command runs.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    pub side: Side,
    /// The processors it may use, as taskset(1) lists them; all when `None`.
    pub cpus: Option<&'a str>,
}

impl From<Side> for Spot<'_> {
    fn from(side: Side) -> Self {
        Spot { side, cpus: None }
    }
}

/// What a lab is made of.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// All names of its namespaces, engines and directory begin so; it ends with a dash.
    pub prefix: &'a str,
    /// The directory that holds `toe`, `toed` and the switch library.
    pub programs: PathBuf,
    pub namespaces: bool,
}

/// Namespaces and a directory; both go when this is dropped, with every process left in the namespaces.
#[derive(Debug)]
pub struct Lab {
    name: String,
    dir: PathBuf,
    programs: PathBuf,
    namespaces: bool,
}

impl Lab {
    /// A new lab, both links up. Removes first what earlier runs of the same prefix left that were killed.
    pub fn new(options: &Options<'_>) -> Result<Lab> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if options.namespaces && !rustix::process::geteuid().is_root() {
            return Err(Error::NeedsRoot);
        }
        sweep(options.prefix);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{number}", options.prefix, std::process::id());
        let dir = std::env::temp_dir().join(&name);
        let failed = |error| Error::failed(format!("the directory {}", dir.display()), error);
        fs::create_dir(&dir).map_err(failed)?;
        let lab = Lab {
            name,
            dir: dir.clone(),
            programs: options.programs.clone(),
            namespaces: options.namespaces,
        };
        // Programs that gave up root must reach what lies in it.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        if lab.namespaces {
            lab.make_namespaces()?;
        }
        Ok(lab)
    }

    fn make_namespaces(&self) -> Result<()> {
        let (s, c) = (self.namespace(Side::Server), self.namespace(Side::Client));
        for ns in [&s, &c] {
            ip(&["netns", "add", ns])?;
            ip(&["-n", ns, "link", "set", "lo", "up"])?;
        }
        for link in [ENGINE_LINK, "kern0"] {
            self.make_link(link)?;
        }
        for (ns, link, addr) in
            [(&c, ENGINE_LINK, PEER_ADDR), (&s, "kern0", KERNEL_ADDR), (&c, "kern0", KERNEL_PEER_ADDR)]
        {
            ip(&["-n", ns, "addr", "add", &format!("{addr}/24"), "dev", link])?;
        }
        for side in [Side::Server, Side::Client] {
            for link in [ENGINE_LINK, "kern0"] {
                ip(&["-n", &self.namespace(side), "link", "set", link, "up"])?;
            }
            // A namespace starts with the host's setting; a lab's kernel must not forward what is the engine's.
            self.set_kernel(side, "net/ipv4/ip_forward", "0")?;
        }
        Ok(())
    }

    /// Sets `/proc/sys/NAME` in a side's namespace.
    pub fn set_kernel(&self, side: Side, name: &str, value: &str) -> Result<()> {
        let mut shell = self.command(side, "sh");
        shell.args(["-c", &format!("echo '{value}' > /proc/sys/{name}")]);
        crate::child::run(name, &mut shell, SOON)?.success()?;
        Ok(())
    }

    /// Takes the kernel's address off the client's end of `toe0`, so that a second engine can have it.
    pub fn free_peer_addr(&self) -> Result<()> {
        ip(&["-n", &self.namespace(Side::Client), "addr", "flush", "dev", ENGINE_LINK])
    }

    /// Gives it back.
    pub fn give_peer_addr(&self) -> Result<()> {
        let cidr = format!("{PEER_ADDR}/24");
        ip(&["-n", &self.namespace(Side::Client), "addr", "add", &cidr, "dev", ENGINE_LINK])
    }

    /// Gives the server's kernel the engine's address, for an engine that shares it; after this it is reached by both.
    pub fn share_engine_addr(&self) -> Result<()> {
        let cidr = format!("{ENGINE_ADDR}/24");
        ip(&["-n", &self.namespace(Side::Server), "addr", "add", &cidr, "dev", ENGINE_LINK])?;
        // A veth leaves checksums out, which the kernel at its other end knows and a program there cannot.
        let mut ethtool = self.command(Side::Client, "ethtool");
        crate::child::run("ethtool", ethtool.args(["-K", ENGINE_LINK, "tx", "off"]), SOON)?.success()?;
        Ok(())
    }

    /// Takes the engine's link away, both of its ends.
    pub fn remove_engine_link(&self) -> Result<()> {
        ip(&["-n", &self.namespace(Side::Server), "link", "del", ENGINE_LINK])
    }

    /// Makes it anew, with the client's address.
    pub fn make_engine_link(&self) -> Result<()> {
        self.make_link(ENGINE_LINK)?;
        self.give_peer_addr()?;
        [Side::Server, Side::Client]
            .into_iter()
            .try_for_each(|side| self.ip(side, &["link", "set", ENGINE_LINK, "up"]))
    }

    /// Runs ip(8) on one side.
    pub fn ip(&self, side: Side, args: &[&str]) -> Result<()> {
        ip(&[&["-n", &self.namespace(side)], args].concat())
    }

    fn make_link(&self, link: &str) -> Result<()> {
        let (s, c) = (self.namespace(Side::Server), self.namespace(Side::Client));
        ip(&["-n", &s, "link", "add", link, "type", "veth", "peer", "name", link, "netns", &c])
    }

    /// Gives the kernel its address on the TAP interface that an engine made.
    pub fn give_tap_its_address(&self) -> Result<()> {
        ip(&["-n", &self.namespace(Side::Server), "addr", "add", TAP_KERNEL_CIDR, "dev", TAP_LINK])
    }

    /// Gives a kernel an address of IPv6, which it has at once: nobody else can have it here.
    pub fn give_addr6(&self, side: Side, link: &str, addr: &str) -> Result<()> {
        let cidr = format!("{addr}/64");
        ip(&["-n", &self.namespace(side), "addr", "add", &cidr, "dev", link, "nodad"])
    }

    /// The lab's name: unique among all that run.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lab's directory, readable by everybody.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of a built program of OpenTOE.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// It has namespaces of its own.
    pub fn has_namespaces(&self) -> bool {
        self.namespaces
    }

    /// The name of a side's namespace.
    pub fn namespace(&self, side: Side) -> String {
        match side {
            Side::Server => format!("{}-s", self.name),
            Side::Client => format!("{}-c", self.name),
        }
    }

    /// A command on one side, on the kernel's stack.
    pub fn command<'a>(&self, spot: impl Into<Spot<'a>>, program: impl AsRef<Path>) -> Command {
        let words = self.words(spot.into(), program.as_ref());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.current_dir(&self.dir).env_remove("TOE_ENGINE").env_remove("LD_PRELOAD");
        command
    }

    /// The words of such a command; there is one at least.
    pub(crate) fn words(&self, spot: Spot<'_>, program: &Path) -> Vec<PathBuf> {
        // taskset(1) and nsenter(1) execute the program in their own place, so the child's number is the program's.
        let mut words: Vec<PathBuf> = Vec::new();
        if let Some(cpus) = spot.cpus {
            words.extend(["taskset", "-c", cpus].map(PathBuf::from));
        }
        if self.namespaces {
            let namespace = format!("--net=/run/netns/{}", self.namespace(spot.side));
            words.extend(["nsenter", &namespace, "--"].map(PathBuf::from));
        }
        words.push(program.to_owned());
        words
    }

    /// Writes a file of `len` bytes that do not repeat, the same each time; gives its path.
    pub fn file(&self, name: &str, len: u64) -> Result<PathBuf> {
        let path = self.dir.join(name);
        let mut bytes = Vec::new();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        while (bytes.len() as u64) < len {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let word = state.to_le_bytes();
            let wanted = (len - bytes.len() as u64).min(word.len() as u64) as usize;
            bytes.extend_from_slice(&word[..wanted]);
        }
        fs::write(&path, &bytes).map_err(|error| Error::failed(path.display().to_string(), error))?;
        Ok(path)
    }

    /// Lets every user read and write in the lab's directory.
    pub fn share_dir(&self) -> Result<()> {
        let shared = fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o777));
        shared.map_err(|error| Error::failed(self.dir.display().to_string(), error))
    }

    /// The processes that run on one side, if it is a namespace.
    pub fn pids(&self, side: Side) -> Vec<u32> {
        if self.namespaces { pids_in(&self.namespace(side)) } else { Vec::new() }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.namespaces {
            remove_namespace(&self.namespace(Side::Server));
            remove_namespace(&self.namespace(Side::Client));
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Runs ip(8), which must succeed.
fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().map_err(|error| Error::cannot_run("ip", error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::failed(format!("ip {}", args.join(" ")), String::from_utf8_lossy(&output.stderr).trim_end()))
}

fn pids_in(namespace: &str) -> Vec<u32> {
    let output = Command::new("ip").args(["netns", "pids", namespace]).stderr(Stdio::null()).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Ends what still runs in a namespace (daemons have left their parent's group), then removes it.
fn remove_namespace(namespace: &str) {
    let pids = pids_in(namespace);
    pids.iter().copied().for_each(process::end);
    if !std::thread::panicking() {
        // If one is stuck, the namespace goes with it.
        wait::briefly(SOON, || !pids.iter().any(|pid| process::is_alive(*pid)));
    }
    let _ = Command::new("ip").args(["netns", "del", namespace]).stderr(Stdio::null()).status();
}

/// Removes what earlier runs left that could not clean up (they were killed): names of ours whose process is gone.
fn sweep(prefix: &str) {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_stale(prefix, &name) {
            remove_namespace(&name);
        }
    }
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if is_stale(prefix, &entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_stale(prefix: &str, name: &str) -> bool {
    let owner = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next());
    owner.and_then(|pid| pid.parse::<u32>().ok()).is_some_and(|pid| !process::is_alive(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "toetest-";

    #[test]
    fn only_names_of_ours_with_a_dead_owner_are_stale() {
        assert!(!is_stale(PREFIX, "default"));
        assert!(!is_stale(PREFIX, "toetest-x-1"));
        assert!(!is_stale(PREFIX, &format!("{PREFIX}{}-0-s", std::process::id())));
        assert!(is_stale(PREFIX, &format!("{PREFIX}{}-0-s", u32::MAX)));
        assert!(!is_stale("toebench-", &format!("{PREFIX}{}-0-s", u32::MAX)));
    }

    #[test]
    fn a_command_is_put_where_it_belongs() {
        let programs = PathBuf::from("/nowhere");
        let lab = Lab::new(&Options { prefix: "toelabtest-", programs, namespaces: false }).expect("a lab");
        let command = lab.command(Spot { side: Side::Client, cpus: Some("0,1") }, "wrk");
        assert_eq!(command.get_program(), "taskset");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["-c", "0,1", "wrk"]);
        assert_eq!(lab.command(Side::Server, "wrk").get_program(), "wrk");
        let path = lab.file("x", 13).expect("a file");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 13);
        let dir = lab.dir().to_owned();
        drop(lab);
        assert!(!dir.exists());
    }
}
