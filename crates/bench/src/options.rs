//! What a user asks `toe bench` for. Filled by the command line.

use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

/// Rounds unless the user says otherwise.
pub const ROUNDS: u32 = 5;

/// Congestion control of Linux's sockets in root's namespaces unless the user says otherwise: what the engine's have. Where
/// a machine's own is BBR, Linux would be compared with its pacing rather than with its speed.
pub const CONGESTION: &str = "cubic";

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory that holds `toe`, `toed`, the switch library and `toe-load`.
    pub programs: PathBuf,
    /// All when empty.
    pub workloads: Vec<Workload>,
    /// All that this user may have when empty.
    pub links: Vec<Link>,
    pub rounds: u32,
    /// Length of each run; each workload's own when `None`.
    pub seconds: Option<u32>,
    /// One short round of one row of each workload and link.
    pub quick: bool,
    /// Only rows whose name holds one of these; all when empty.
    pub rows: Vec<String>,
    /// Each row is measured once more beside each of these.
    pub beside: Vec<Neighbour>,
    /// Rows over slow wires run side by side; one after another, as all others, when `None`.
    pub together: Option<Together>,
    /// A list as taskset(1) has it; all that this process may use when `None`.
    pub cpus: Option<String>,
    /// Congestion control of Linux's sockets. Only root's namespaces can have another one than the machine.
    pub congestion: Option<String>,
    pub json: Option<Sink>,
    pub html: Option<PathBuf>,
}

/// How many rows over slow wires run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// As many as leave the processors idle for the larger part, given as `idle`.
    Idle,
    Count(NonZeroUsize),
}

/// Where a report goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The standard output, given as `-`.
    Stdout,
    File(PathBuf),
}

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    Http,
    Apps,
    Kv,
    Rr,
    Stream,
    Cps,
    Crowd,
    Idle,
    Wake,
    Calls,
    Udp,
    Via,
    File,
}

/// How client and server are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// Both on one stack of one machine: the loopback interface, or the engine's `local`.
    Local,
    /// A veth pair to another network namespace, whose kernel is the client's stack.
    Veth,
    /// A TAP interface, with the kernel's stack of the same namespace as the client's.
    Tap,
    /// A wire of 10 Mb/s between two TAP interfaces, the client's stack a kernel's.
    #[serde(rename = "10mbit")]
    Mbit10,
    /// The same of 100 Mb/s.
    #[serde(rename = "100mbit")]
    Mbit100,
}

/// Programs that have nothing to do with what is measured and run on the same processors, one for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Neighbour {
    /// Loops that do nothing, at the priority of everybody else.
    Loops,
    /// The same at nice 19: what gives way where the scheduler can tell.
    Nice,
    /// Copies of memory that no cache holds, at the priority of everybody else.
    Memory,
}

impl Neighbour {
    pub const ALL: [Neighbour; 3] = [Neighbour::Loops, Neighbour::Nice, Neighbour::Memory];

    pub fn name(self) -> &'static str {
        match self {
            Neighbour::Loops => "loops",
            Neighbour::Nice => "nice",
            Neighbour::Memory => "memory",
        }
    }

    /// How rows beside it are named.
    pub fn row_name(self) -> &'static str {
        match self {
            Neighbour::Loops => "busy",
            Neighbour::Nice => "busy-nice",
            Neighbour::Memory => "busy-memory",
        }
    }
}

impl FromStr for Neighbour {
    type Err = Error;

    fn from_str(text: &str) -> Result<Neighbour, Error> {
        Neighbour::ALL.into_iter().find(|neighbour| neighbour.name() == text).ok_or_else(|| {
            let all = Neighbour::ALL.map(Neighbour::name).join(", ");
            Error::Options(format!("'{text}' is no kind of neighbour; there are {all}"))
        })
    }
}

impl Workload {
    pub const ALL: [Workload; 13] = [
        Workload::Http,
        Workload::Apps,
        Workload::Kv,
        Workload::Rr,
        Workload::Stream,
        Workload::Cps,
        Workload::Crowd,
        Workload::Idle,
        Workload::Wake,
        Workload::Calls,
        Workload::Udp,
        Workload::Via,
        Workload::File,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Workload::Http => "http",
            Workload::Apps => "apps",
            Workload::Kv => "kv",
            Workload::Rr => "rr",
            Workload::Stream => "stream",
            Workload::Cps => "cps",
            Workload::Crowd => "crowd",
            Workload::Idle => "idle",
            Workload::Wake => "wake",
            Workload::Calls => "calls",
            Workload::Udp => "udp",
            Workload::Via => "via",
            Workload::File => "file",
        }
    }

    /// What it is, for headings.
    pub fn title(self) -> &'static str {
        match self {
            Workload::Http => "nginx under wrk",
            Workload::Apps => "servers as they are deployed, a connection a request",
            Workload::Kv => "redis and memcached",
            Workload::Rr => "request and reply over open connections",
            Workload::Stream => "data one way",
            Workload::Cps => "connect, one request, close",
            Workload::Crowd => "more programs than processors",
            Workload::Idle => "idle connections",
            Workload::Wake => "request and reply when both sides sleep",
            Workload::Calls => "single calls",
            Workload::Udp => "datagrams",
            Workload::Via => "messages, by EVIL and by TCP",
            Workload::File => "files to connections and back",
        }
    }
}

impl Link {
    pub const ALL: [Link; 5] = [Link::Local, Link::Veth, Link::Tap, Link::Mbit10, Link::Mbit100];

    pub fn name(self) -> &'static str {
        match self {
            Link::Local => "local",
            Link::Veth => "veth",
            Link::Tap => "tap",
            Link::Mbit10 => "10mbit",
            Link::Mbit100 => "100mbit",
        }
    }

    /// What it is, for headings.
    pub fn title(self) -> &'static str {
        match self {
            Link::Local => "client and server on one stack of one machine",
            Link::Veth => "the client on the kernel's stack, over a veth",
            Link::Tap => "the client on the kernel's stack: the engine over a TAP, Linux over a veth",
            Link::Mbit10 => "over a wire of 10 Mb/s",
            Link::Mbit100 => "over a wire of 100 Mb/s",
        }
    }
}

impl Link {
    /// What a slow one carries, in kilobits a second.
    pub(crate) fn rate_kbit(self) -> Option<u32> {
        match self {
            Link::Mbit10 => Some(10_000),
            Link::Mbit100 => Some(100_000),
            Link::Local | Link::Veth | Link::Tap => None,
        }
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Workload, Error> {
        Workload::ALL.into_iter().find(|workload| workload.name() == text).ok_or_else(|| {
            let all = Workload::ALL.map(Workload::name).join(", ");
            Error::Options(format!("'{text}' is no workload; there are {all}"))
        })
    }
}

impl FromStr for Link {
    type Err = Error;

    fn from_str(text: &str) -> Result<Link, Error> {
        Link::ALL.into_iter().find(|link| link.name() == text).ok_or_else(|| {
            let all = Link::ALL.map(Link::name).join(", ");
            Error::Options(format!("'{text}' is no link; there are {all}"))
        })
    }
}

impl FromStr for Together {
    type Err = Error;

    fn from_str(text: &str) -> Result<Together, Error> {
        let wrong = || Error::Options(format!("'{text}' is no number of rows: give one, or 'idle'"));
        match text {
            "idle" => Ok(Together::Idle),
            number => number.parse().map(Together::Count).map_err(|_| wrong()),
        }
    }
}

impl FromStr for Sink {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Sink, Self::Err> {
        Ok(if text == "-" { Sink::Stdout } else { Sink::File(PathBuf::from(text)) })
    }
}
