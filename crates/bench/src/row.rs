//! A row: one load on one link, measured on both stacks. Made by `plan`, measured by `runner`.

use crate::apps::App;
use crate::options::{Link, Neighbour, Workload};
use crate::transfer::{Shape, Transfer};
use serde::Serialize;
use std::fmt;

/// The connections of a row of `http`.
pub(crate) const HTTP_CONNECTIONS: u32 = 64;
pub(crate) const WEB_CONNECTIONS: u32 = 32;
/// The connections of a row of `apps`.
pub(crate) const APPS_CONNECTIONS: u32 = 32;
/// The connections of a row of `kv`.
pub(crate) const KV_CONNECTIONS: u32 = 50;
/// The connections that are open at once in a row of `cps`.
pub(crate) const CPS_CONNECTIONS: u32 = 64;
/// Bytes of a request of `cps` and `wake`, and of a datagram.
pub(crate) const SMALL: u32 = 64;

/// The port of rows of messages.
pub(crate) const EVIL_PORT: u8 = 7;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) workload: Workload,
    pub(crate) link: Link,
    pub(crate) load: Load,
    pub(crate) cores: Cores,
    /// What else runs on the row's processors.
    pub(crate) beside: Option<Neighbour>,
}

/// How much of the row's processors its programs ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cores {
    /// Everything is on one.
    One,
    /// One thread serves and one asks: with more than two processors, or where either waits, some are spare.
    Spare,
    /// As many serve as there are processors, and as many ask: whoever else must run takes one from them.
    Full,
}

/// What the client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Http {
        file: u32,
        keepalive: bool,
    },
    /// nginx's sendfile to clients that stay.
    Web {
        file: u32,
        how: Web,
    },
    /// A connection for each request.
    App(App),
    Redis {
        pipeline: u32,
    },
    Memcached {
        keys: u32,
    },
    Rr {
        size: u32,
        depth: u32,
        connections: u32,
    },
    Stream {
        flows: u32,
        direction: Direction,
    },
    Cps {
        served_by: ServedBy,
    },
    /// Requests of 64 bytes, one at a time on each connection, from as many clients to as many servers at one port.
    Crowd {
        programs: u32,
        connections: u32,
    },
    Idle {
        connections: u32,
    },
    Wake,
    Calls(Calls),
    /// Datagrams one way.
    Datagrams(Flood),
    /// A rate that Linux reaches, beside what a stranger sends to the same host.
    DatagramsBeside(Attack),
    /// Three times as many datagrams as the server can take, which works for each.
    DatagramOverload,
    /// Request and reply by datagrams.
    DatagramRr,
    /// So many megabytes one way in messages of so many bytes, and a word when all have come.
    Messages {
        size: u32,
        total_mb: u32,
    },
    /// Request and reply by messages.
    MessageRr {
        size: u32,
    },
    /// The same with a pause before each, in which both sides fall asleep.
    MessageWake {
        size: u32,
    },
    /// Between a file and a connection.
    File(Transfer),
}

/// How nginx sends a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Web {
    Plain,
    /// Over TLS that it makes by itself.
    Tls,
    /// Over TLS records of the socket's, where the stack has them: Linux needs its module, nginx an OpenSSL that was built for them.
    KernelTls,
}

/// Datagrams one way: of so many bytes, so many in a call, or so many that are joined in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flood {
    pub(crate) size: u32,
    pub(crate) batch: u32,
    pub(crate) segments: u32,
    pub(crate) direction: Direction,
    /// Datagrams a second; as many as go when `None`.
    pub(crate) rate: Option<u32>,
}

impl Flood {
    /// By sendto and recvfrom.
    pub(crate) const PLAIN: Flood =
        Flood { size: SMALL, batch: 1, segments: 1, direction: Direction::Send, rate: None };
}

/// What a stranger on the link sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Pieces of datagrams that are never complete.
    Fragments,
    /// Datagrams to ports where nobody is, from addresses that do not exist.
    Ports,
    /// The same to a socket that nobody reads.
    Socket,
}

impl Attack {
    pub(crate) const ALL: [Attack; 3] = [Attack::Fragments, Attack::Ports, Attack::Socket];

    /// Its name, which toe-load knows, too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Attack::Fragments => "fragments",
            Attack::Ports => "ports",
            Attack::Socket => "socket",
        }
    }
}

/// What serves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// One loop serves all.
    OneLoop,
    /// A thread of its own, in blocking calls.
    Thread,
    /// A process of its own, in blocking calls.
    Process,
}

impl ServedBy {
    pub(crate) const ALL: [ServedBy; 3] = [ServedBy::OneLoop, ServedBy::Thread, ServedBy::Process];
}

/// What is called again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// socket and close.
    Create,
    /// accept and close.
    Accept,
    /// read of what is no socket.
    File,
}

impl Calls {
    pub(crate) const ALL: [Calls; 3] = [Calls::Create, Calls::Accept, Calls::File];

    /// Its name, which is the mode of toe-load, too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Calls::Create => "create",
            Calls::Accept => "accept",
            Calls::File => "file",
        }
    }
}

/// Of data, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Receive,
}

impl Row {
    /// A row of one server and one client, with nothing beside it.
    pub(crate) fn quiet(workload: Workload, link: Link, load: Load) -> Row {
        Row { workload, link, load, cores: Cores::Spare, beside: None }
    }

    /// A cell of the directwrite paper's grid, of which there are hundreds.
    pub(crate) fn is_of_paper(&self) -> bool {
        matches!(self.load, Load::File(Transfer { shape: Shape::Paper { .. }, .. }))
    }

    /// A single transfer over a slow wire, of which there is one in a round.
    pub(crate) fn over_slow_wire(&self) -> Option<(Transfer, u32)> {
        match self.load {
            Load::File(transfer) => self.link.rate_kbit().map(|rate_kbit| (transfer, rate_kbit)),
            _ => None,
        }
    }

    /// Its name, by which targets and users select it: `local/rr/64B-d1-c1`.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}/{}", self.link.name(), self.workload.name(), self.short_name())
    }

    /// Its name among those of its workload and link.
    pub(crate) fn short_name(&self) -> String {
        let cores = match self.cores {
            Cores::One => "-onecore",
            Cores::Spare => "",
            Cores::Full => "-full",
        };
        let beside = self.beside.map(|neighbour| format!("-{}", neighbour.row_name()));
        format!("{}{cores}{}", self.load, beside.unwrap_or_default())
    }

    /// What one operation is: that by which rates count and by which processor time is divided.
    pub(crate) fn operation(&self) -> &'static str {
        match self.load {
            Load::Http { .. }
            | Load::Web { .. }
            | Load::App(_)
            | Load::Redis { .. }
            | Load::Rr { .. }
            | Load::Crowd { .. }
            | Load::Wake
            | Load::DatagramRr
            | Load::MessageRr { .. }
            | Load::MessageWake { .. } => "request",
            Load::Messages { .. } => "message",
            Load::Datagrams(_) | Load::DatagramsBeside(_) | Load::DatagramOverload => "datagram",
            Load::Memcached { .. } => "key",
            Load::Stream { .. } | Load::File(_) => "MiB",
            Load::Cps { .. } | Load::Idle { .. } => "connection",
            Load::Calls(_) => "call",
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Load::Http { file, keepalive } => {
                write!(f, "{}-{}", Bytes(file), if keepalive { "keepalive" } else { "close" })
            }
            Load::Web { file, how } => {
                let how = match how {
                    Web::Plain => "",
                    Web::Tls => "-tls",
                    Web::KernelTls => "-ktls",
                };
                write!(f, "nginx{how}-{}", Bytes(file))
            }
            Load::App(app) => write!(f, "{app}"),
            Load::Redis { pipeline } => write!(f, "redis-get-P{pipeline}"),
            Load::Memcached { keys } => write!(f, "memcached-get-{keys}"),
            Load::Rr { size, depth, connections } => write!(f, "{}-d{depth}-c{connections}", Bytes(size)),
            Load::Stream { flows, direction } => {
                let direction = match direction {
                    Direction::Send => "send",
                    Direction::Receive => "receive",
                };
                write!(f, "{direction}-f{flows}")
            }
            Load::Cps { served_by } => {
                let served_by = match served_by {
                    ServedBy::OneLoop => "",
                    ServedBy::Thread => "-threads",
                    ServedBy::Process => "-processes",
                };
                write!(f, "{}-c{CPS_CONNECTIONS}{served_by}", Bytes(SMALL))
            }
            Load::Crowd { programs, connections } => {
                write!(f, "{}-p{programs}-c{connections}", Bytes(SMALL))
            }
            Load::Idle { connections } => write!(f, "c{connections}"),
            Load::Wake => write!(f, "{}", Bytes(SMALL)),
            Load::Calls(calls) => f.write_str(calls.name()),
            Load::Datagrams(flood) => write!(f, "{flood}"),
            Load::DatagramsBeside(attack) => write!(f, "{}-beside-{}", Bytes(SMALL), attack.name()),
            Load::DatagramOverload => write!(f, "{}-overload", Bytes(SMALL)),
            Load::DatagramRr => write!(f, "{}-rr", Bytes(SMALL)),
            Load::Messages { size, total_mb } => write!(f, "{total_mb}MB-in-{}", Bytes(size)),
            Load::MessageRr { size } => write!(f, "{}-rr", Bytes(size)),
            Load::MessageWake { size } => write!(f, "{}-wake", Bytes(size)),
            Load::File(transfer) => write!(f, "{transfer}"),
        }
    }
}

impl fmt::Display for Flood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-flood", Bytes(self.size))?;
        match (self.batch, self.segments) {
            (1, 1) => Ok(()),
            (batch, 1) => write!(f, "-mmsg{batch}"),
            (_, segments) => write!(f, "-gso{segments}"),
        }?;
        if self.direction == Direction::Receive {
            f.write_str("-receive")?;
        }
        self.rate.map_or(Ok(()), |rate| write!(f, "-at-{}k", rate / 1000))
    }
}

/// A length as it stands in names.
struct Bytes(u32);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1024 && n % 1024 == 0 => write!(f, "{}KiB", n / 1024),
            n => write!(f, "{n}B"),
        }
    }
}
