//! `toe why PID [FD]`: which stack a descriptor is on, and the reason; without FD, of each socket. It reads the table that the switch layer keeps
//! in each program, and `/proc` for all that the table does not say.

use crate::presented::Presented;
use crate::{Failure, print, print_json};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use toe_abi::why::{self, Decided, Reason, Stack};
use toe_abi::{discovery, own_calls};

/// So much of a file's text is looked through for calls past the C library, in pieces; a browser has less.
const TEXT_LEN_MAX: u64 = 256 << 20;
const PIECE_LEN: u64 = 16 << 20;
/// So much is read of what `/proc` has of a process: its environment and its maps are as long as it likes.
const PROC_LEN_MAX: u64 = 16 << 20;

/// Say which stack a descriptor is on, or each socket of a process, and why
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES:
  toe why 1234                         every socket of the process
  toe why 1234 7
  toe why $(pgrep -o nginx) 6 --json

--json gives pid, fd, program, descriptor (what /proc says it is), stack (engine, kernel or none), engine (its name),
rule (of the policy of 'toe run', by its number), reason, text and remedy; without FD, an array of these. You need the right to look at the process: be its user, or root.")]
pub struct Args {
    /// Process id
    #[arg(value_name = "PID", value_parser = process_id)]
    pid: u32,
    /// Number of a descriptor in that process; all of its sockets if it is left out
    #[arg(value_name = "FD", value_parser = descriptor)]
    fd: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn process_id(word: &str) -> Result<u32, String> {
    word.parse()
        .map_err(|_| format!("give the number of a process; 'pgrep -x {word}' tells those of a program"))
}

fn descriptor(word: &str) -> Result<u32, String> {
    word.parse()
        .map_err(|_| "give the number of a descriptor; 'toe why PID' tells those of its sockets".to_owned())
}

/// What became of a descriptor.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Explanation {
    pid: u32,
    fd: u32,
    program: String,
    descriptor: String,
    stack: &'static str,
    /// The engine's name, when it is on one.
    engine: Option<String>,
    /// The rule of the policy that decided, from 1 on.
    rule: Option<u8>,
    reason: String,
    text: String,
    remedy: String,
}

/// What `/proc` knows of a descriptor that the switch layer has no word on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NoSocket(&'static str),
    Tcp,
    Tcp6,
    Udp,
    Unix,
    Raw,
    OtherSocket,
}

pub fn why(args: &Args) -> Result<u8, Failure> {
    let process = Process::open(args.pid)?;
    let Some(fd) = args.fd else {
        let sockets = process.sockets()?;
        return if args.json { print_json(&sockets) } else { print(&process.table_of(&sockets)) };
    };
    let explanation = process.explain(fd)?;
    if args.json {
        return print_json(&explanation);
    }
    let e = explanation;
    let program = Presented(&e.program);
    let mut text =
        format!("descriptor {} of {program} (process {}): stack {}: {}\n", e.fd, e.pid, e.on(), e.says());
    if !e.remedy.is_empty() {
        text += &format!("  to change that: {}\n", e.remedy);
    }
    print(&text)
}

impl Explanation {
    /// The stack, and which engine.
    fn on(&self) -> String {
        match &self.engine {
            Some(name) => format!("{} {}", self.stack, Presented(name)),
            None => self.stack.to_owned(),
        }
    }

    fn says(&self) -> String {
        let by_rule = |rule| format!("{} (rule {rule} of the policy)", self.text);
        self.rule.map_or_else(|| self.text.clone(), by_rule)
    }
}

/// A process and what is known of its descriptors, read once.
#[derive(Debug)]
struct Process {
    pid: u32,
    program: String,
    /// Its directory in `/proc`.
    dir: PathBuf,
    /// The switch layer's, if it is there.
    table: Option<File>,
    /// The names of its engines.
    engines: Vec<String>,
    /// Sockets of its network namespace by inode number.
    kinds: HashMap<String, Kind>,
}

impl Process {
    fn open(pid: u32) -> Result<Process, Failure> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let no_process = |_| Failure::new(format!("there is no process {pid}; see 'ps' for those that run"));
        let program = std::fs::read(dir.join("comm")).map_err(no_process)?;
        let program = String::from_utf8_lossy(&program);
        let (table, kinds) = (open_table(&dir), kinds_in(&dir));
        let engines = engines_of(&dir);
        Ok(Process { pid, program: program.trim_end().to_owned(), dir, table, engines, kinds })
    }

    fn link(&self, fd: u32) -> Result<String, Failure> {
        let pid = self.pid;
        let link =
            std::fs::read_link(self.dir.join(format!("fd/{fd}"))).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => self.not_ours(),
                _ => Failure::new(format!(
                    "process {pid} has no descriptor {fd}; 'ls -l /proc/{pid}/fd' lists them"
                )),
            })?;
        Ok(link.to_string_lossy().into_owned())
    }

    fn not_ours(&self) -> Failure {
        Failure::new(format!("process {} is somebody else's; run this as its user, or as root", self.pid))
    }

    /// What the switch layer has written of `fd`. A child that has decided nothing yet has its parent's table, and may have closed one of
    /// those descriptors: its number says nothing of what was opened there since.
    fn recorded(&self, fd: u32) -> Option<Decided> {
        let found = self.table.as_ref().and_then(|table| entry(table, fd));
        found.filter(|decided| decided.stack != Stack::None && self.may_be_socket(fd))
    }

    /// A socket of the kernel's, or an anchor, which is a directory.
    fn may_be_socket(&self, fd: u32) -> bool {
        let path = self.dir.join(format!("fd/{fd}"));
        let link = std::fs::read_link(&path).unwrap_or_default();
        link.to_string_lossy().starts_with("socket:[") || file_type(&path) == Some(FileType::Directory)
    }

    fn explain(&self, fd: u32) -> Result<Explanation, Failure> {
        let link = self.link(fd)?;
        let recorded = self.recorded(fd);
        let (stack, reason, text, remedy) = match recorded {
            Some(Decided { stack, reason, .. }) => {
                let mut text = reason.text().to_owned();
                if let Some(file) = (reason == Reason::OwnCalls).then(|| with_own_calls(&self.dir)).flatten()
                {
                    text += &format!(": {}", Presented(&file));
                }
                (stack, format!("{reason:?}"), text, reason.remedy().to_owned())
            }
            None => unrecorded(self.kind_of(&link), self.table.is_some()),
        };
        Ok(Explanation {
            pid: self.pid,
            fd,
            program: self.program.clone(),
            descriptor: link,
            stack: stack.name(),
            engine: recorded
                .filter(|decided| decided.stack == Stack::Engine)
                .and_then(|decided| self.engines.get(usize::from(decided.engine)).cloned()),
            rule: recorded.map(|decided| decided.rule).filter(|rule| *rule != 0),
            reason: kebab(&reason),
            text,
            remedy,
        })
    }

    /// Every descriptor that is a socket, or stands for one.
    fn sockets(&self) -> Result<Vec<Explanation>, Failure> {
        let entries = std::fs::read_dir(self.dir.join("fd")).map_err(|_| self.not_ours())?;
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        let mut fds: Vec<u32> = entries.flatten().filter_map(number).collect();
        fds.sort_unstable();
        // One that was closed meanwhile is left out.
        let is_socket = |fd: &u32| {
            self.link(*fd).is_ok_and(|link| link.starts_with("socket:[") || self.recorded(*fd).is_some())
        };
        Ok(fds.into_iter().filter(is_socket).filter_map(|fd| self.explain(fd).ok()).collect())
    }

    fn table_of(&self, sockets: &[Explanation]) -> String {
        if sockets.is_empty() {
            return format!("{} (process {}) has no sockets\n", Presented(&self.program), self.pid);
        }
        let width = sockets.iter().map(|socket| socket.on().len()).max().unwrap_or(0);
        let mut text = format!(
            "{} (process {})\n{:>8}  {:<width$} reason\n",
            Presented(&self.program),
            self.pid,
            "fd",
            "stack"
        );
        for socket in sockets {
            text += &format!("{:>8}  {:<width$} {}\n", socket.fd, socket.on(), socket.says());
        }
        text
    }

    /// What a descriptor is, from its link in `/proc`.
    fn kind_of(&self, link: &str) -> Kind {
        let Some(inode) = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) else {
            return Kind::NoSocket(match link {
                _ if link.starts_with("pipe:") => "a pipe",
                "anon_inode:[eventpoll]" => "an epoll set",
                "anon_inode:[eventfd]" => "an eventfd",
                _ if link.starts_with("anon_inode:") => "a kernel object",
                _ if link.starts_with("/memfd:") => "a memory file",
                _ if link.starts_with("/dev/") => "a device",
                _ => "a file",
            });
        };
        // A TCP socket that is neither bound nor connected is in no table, and neither are other families.
        self.kinds.get(inode).copied().unwrap_or(Kind::OtherSocket)
    }
}

/// The explanation of a descriptor that the switch layer has no word on.
fn unrecorded(kind: Kind, has_table: bool) -> (Stack, String, String, String) {
    let from = |stack, reason: Reason| {
        (stack, format!("{reason:?}"), reason.text().to_owned(), reason.remedy().to_owned())
    };
    let other =
        |stack, reason: &str, text: String, remedy: &str| (stack, reason.to_owned(), text, remedy.to_owned());
    match kind {
        Kind::NoSocket(what) => {
            other(Stack::None, "NotASocket", format!("it is {what}, not a socket; no stack is involved"), "")
        }
        Kind::Unix => other(Stack::None, "NotTcp", "it is a Unix socket; no TCP/IP stack is involved".into(), ""),
        Kind::Udp => other(Stack::Kernel, "NotTcp", "it is a UDP socket, and the engine has only TCP".into(), ""),
        Kind::Raw => other(Stack::Kernel, "NotTcp", "it is a raw socket, and the engine has only TCP".into(), ""),
        Kind::OtherSocket => {
            other(Stack::Kernel, "NotTcp", "it is a socket of another protocol than TCP over IP".into(), "")
        }
        Kind::Tcp | Kind::Tcp6 if !has_table => other(
            Stack::Kernel,
            "NotPreloaded",
            "the program runs without the switch layer (statically linked, set-user-id, or not under 'toe run')".into(),
            "start the program with 'toe run -- …'",
        ),
        Kind::Tcp6 | Kind::Tcp => from(Stack::Kernel, Reason::Unknown),
    }
}

/// The file among those that a process runs which makes calls past the C library: looked for as the switch layer has. It is read as the
/// process has it, by `map_files`: what its path leads to from here is for others to say, and may wait for them, as may a file system
/// of theirs, so only what is the kernel's own to give is read, and not without end.
fn with_own_calls(process: &Path) -> Option<String> {
    let maps = String::from_utf8(text_of(&process.join("maps"))?).ok()?;
    let known = file_systems();
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
        let path = words.nth(2).filter(|path| path.starts_with('/') && rights.starts_with("r-x"))?;
        if own_calls::is_exempt(path.as_bytes()) {
            return None;
        }
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = range.split_once('-')?;
        let len = hex(end)?.checked_sub(hex(start)?)?.min(TEXT_LEN_MAX);
        let file =
            open_without_waiting(&process.join("map_files").join(range), |device| known.contains(&device))?;
        let mut piece = vec![0; len.min(PIECE_LEN) as usize];
        let offset = hex(offset)?;
        let has_calls = (0..len).step_by(PIECE_LEN as usize).any(|at| {
            let got = file.read_at(&mut piece, offset + at).unwrap_or(0);
            own_calls::are_in(&piece[..got])
        });
        has_calls.then(|| path.to_owned())
    })
}

/// The why table of a process under the switch layer.
fn open_table(process: &Path) -> Option<File> {
    let wanted = format!("/memfd:{}", why::MEMFD_NAME);
    let is_table = |path: &PathBuf| {
        let link = std::fs::read_link(path).unwrap_or_default();
        let link = link.to_string_lossy();
        link.strip_prefix(&wanted).is_some_and(|rest| rest.is_empty() || rest == " (deleted)")
    };
    let fds = std::fs::read_dir(process.join("fd")).ok()?;
    // Anybody can give a file that name.
    let tables = fds.flatten().map(|entry| entry.path()).filter(is_table);
    let memory = memory_files()?;
    tables.filter_map(|path| open_without_waiting(&path, |device| device == memory)).next()
}

/// Opens the regular file that a link in `/proc` leads to, if it is on a file system that `is_good` knows by its number, and that keeps nobody
/// waiting: nothing is asked of a file system before that is known.
fn open_without_waiting(path: &Path, is_good: impl Fn(Device) -> bool) -> Option<File> {
    let (found, file_type, device) = find(path)?;
    if file_type != FileType::RegularFile || !is_good(device) {
        return None;
    }
    // The same file, however the process changes its own descriptors.
    let own = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(own, flags, Mode::empty()).ok().map(File::from)
}

fn file_type(path: &Path) -> Option<FileType> {
    find(path).map(|(_, file_type, _)| file_type)
}

/// What a link in `/proc` leads to, by what the kernel knows of it.
fn find(path: &Path) -> Option<(OwnedFd, FileType, Device)> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let known = rustix::fs::statx(&found, c"", flags, StatxFlags::TYPE).ok()?;
    let file_type = FileType::from_raw_mode(known.stx_mode.into());
    Some((found, file_type, (known.stx_dev_major, known.stx_dev_minor)))
}

/// A file system, as `/proc` numbers it.
type Device = (u32, u32);

/// The file system in which all memory files are, and nothing that anybody serves.
fn memory_files() -> Option<Device> {
    let one = rustix::fs::memfd_create("toe-own", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    let known = rustix::fs::statx(&one, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE).ok()?;
    Some((known.stx_dev_major, known.stx_dev_minor))
}

/// The file systems that this process has mounted, too, and that no program serves: what else another process has may wait for whoever
/// made it.
fn file_systems() -> Vec<Device> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let (major, minor) = before.split_whitespace().nth(2)?.split_once(':')?;
        let is_served = after.starts_with("fuse");
        (!is_served).then_some((major.parse().ok()?, minor.parse().ok()?))
    };
    mounts.lines().filter_map(device).collect()
}

/// What a file of `/proc` about a process says, as far as it is not longer than anybody's who means well.
fn text_of(path: &Path) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(PROC_LEN_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

/// The names of the engines that a process was given when it started.
fn engines_of(process: &Path) -> Vec<String> {
    let environment = text_of(&process.join("environ")).unwrap_or_default();
    let wanted = format!("{}=", discovery::ENGINE_VARIABLE);
    let value = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(wanted.as_bytes()));
    let list = std::ffi::OsStr::from_bytes(value.unwrap_or_default());
    std::env::split_paths(list).map(|path| crate::locate::name_of(&path)).collect()
}

fn entry(table: &File, fd: u32) -> Option<Decided> {
    let mut word = [0; 4];
    table.read_exact_at(&mut word, u64::from(fd) * 4).ok()?;
    Decided::decode(u32::from_le_bytes(word))
}

/// The sockets in the tables of a process's network namespace.
fn kinds_in(process: &Path) -> HashMap<String, Kind> {
    // The column of the inode in each table.
    let tables = [
        ("tcp", 9, Kind::Tcp),
        ("tcp6", 9, Kind::Tcp6),
        ("udp", 9, Kind::Udp),
        ("udp6", 9, Kind::Udp),
        ("raw", 9, Kind::Raw),
        ("raw6", 9, Kind::Raw),
        ("unix", 6, Kind::Unix),
    ];
    let mut kinds = HashMap::new();
    for (table, column, kind) in tables {
        let text = std::fs::read_to_string(process.join("net").join(table)).unwrap_or_default();
        let inodes = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(column));
        kinds.extend(inodes.map(|inode| (inode.to_owned(), kind)));
    }
    kinds
}

/// The word that stands for a reason in JSON.
pub fn code_of(reason: Reason) -> String {
    kebab(&format!("{reason:?}"))
}

/// `NoRoute` as `no-route`.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, UdpSocket};

    fn own() -> Process {
        Process::open(std::process::id()).expect("this process")
    }

    fn of_own(fd: &impl AsRawFd) -> Explanation {
        own().explain(fd.as_raw_fd() as u32).expect("an explanation")
    }

    #[test]
    fn descriptors_outside_the_switch_are_explained() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("tcp");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("udp");
        let file = File::open("/proc/self/comm").expect("file");
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("unix");
        assert_eq!((of_own(&udp).stack, of_own(&udp).reason.as_str()), ("kernel", "not-tcp"));
        assert_eq!((of_own(&file).stack, of_own(&file).reason.as_str()), ("none", "not-a-socket"));
        assert_eq!((of_own(&unix).stack, of_own(&unix).reason.as_str()), ("none", "not-tcp"));
        let tcp = of_own(&tcp);
        assert_eq!(tcp.stack, "kernel");
        assert!(tcp.descriptor.starts_with("socket:["));

        let all = own().sockets().expect("a list");
        let listed = |fd: &dyn AsRawFd| all.iter().any(|e| e.fd == fd.as_raw_fd() as u32);
        assert!(listed(&udp) && listed(&unix) && !listed(&file));
        assert!(own().table_of(&all).contains("kernel"));
        assert!(own().table_of(&[]).contains("no sockets"));
    }

    #[test]
    fn the_table_of_the_switch_layer_is_read() {
        let memory = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let mut table = File::from(memory);
        table.write_all(&vec![0; why::LEN]).expect("zeroes");
        let word = Decided::new(Stack::Kernel, Reason::NoRoute).encode().to_le_bytes();
        table.write_all_at(&word, 4 * 77).expect("a word");
        assert_eq!(entry(&table, 77), Some(Decided::new(Stack::Kernel, Reason::NoRoute)));
        assert_eq!(entry(&table, 78), Some(Decided::default()));
        assert_eq!(entry(&table, 1 << 30), None);
    }

    #[test]
    fn a_program_without_the_switch_layer_is_named() {
        let (stack, reason, text, remedy) = unrecorded(Kind::Tcp, false);
        assert_eq!((stack, reason.as_str()), (Stack::Kernel, "NotPreloaded"));
        assert!(text.contains("without the switch layer") && remedy.contains("toe run"));
    }

    #[test]
    fn errors_say_what_to_do() {
        let error = Process::open(u32::MAX).expect_err("no such process").to_string();
        assert!(error.contains("there is no process"), "{error}");
        let error = own().explain(1 << 30).expect_err("no such descriptor").to_string();
        assert!(error.contains("has no descriptor"), "{error}");
    }

    #[test]
    fn names_are_written_with_hyphens() {
        assert_eq!(kebab("NobodyListensInEngine"), "nobody-listens-in-engine");
        assert_eq!(kebab("V6Only"), "v6-only");
    }
}
