//! Every value that passes between the control server's threads and the engine's.
//!
//! A thread of the control server has one [`Ask`] on its way at a time: it sends the next when the last was answered. So what
//! waits for the engine's thread is bounded by the number of users, and they take turns.

use super::pages::{PagesOut, Returned};
use crate::anchors::{Identity, Made, SessionDir, SessionDirId};
use crate::policy::Credentials;
use crate::policy::Named;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use toe_abi::attach::{BadMessage, Request};
use toe_abi::capture::Filter;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, Cred, Instant};
use toe_engine::control::names::Twin;
use toe_engine::udp::Presented;
use toe_ring::Region;

/// What one of the control server's threads wants of the engine's, and where the answer goes.
#[derive(Debug)]
pub struct Ask {
    pub matter: Matter,
    pub answers: SyncSender<Answer>,
}

#[derive(Debug)]
pub enum Matter {
    /// A connection of somebody who may attach, and the session that it has asked for already. Answer: [`Answer::Opened`], or
    /// [`Answer::Closed`]: there are too many.
    Open { newcomer: Newcomer, first: Option<(Request, Evidence)> },
    /// A host's request. Answer: [`Answer::Done`], [`Answer::Make`], [`Answer::Settle`] or [`Answer::End`].
    Request { conn: u32, request: Request, evidence: Evidence },
    /// What came of [`Answer::Make`]: the anchors that were made, from the first on. Answer: as for a request.
    AnchorsMade { conn: u32, wanted: u32, made: Made },
    /// What came of [`Answer::Settle`]. Answer: as for the request that says so, which is carried out now.
    Settled { conn: u32, what: Mapped, is_settled: bool },
    /// A packet that is no request. Answer: as for a request.
    Bad { conn: u32, bad: BadMessage },
    /// The connection is at its end. Answer: [`Answer::Closed`].
    Close { conn: u32 },
    /// Pages of regions of the user's sessions are gone, or stay, and lanes are closed. Answer: [`Answer::Done`].
    Returned { who: Cred, returned: Vec<Returned> },
    /// Kernel sockets that were shown are closed, or listen no more. Answer: [`Answer::Done`].
    TwinsGone(Vec<TwinGone>),
}

/// A kernel socket that was shown, and is not what it was shown as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinGone {
    pub identity: u64,
    /// Before the look that found it so: it may have been shown anew since.
    pub looked_at: Instant,
}

/// What a host has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The session's region: it asks for its first queue set.
    Region,
    /// The lanes of its UDP sockets.
    Datagrams,
}

/// Who is at the other end of a new connection, as the kernel said when it was made.
#[derive(Debug)]
pub struct Newcomer {
    /// A copy of the connection's descriptor, to answer through. The engine's thread never closes it.
    pub socket: OwnedFd,
    pub who: Credentials,
    /// Readable once the process has ended.
    pub process: Option<OwnedFd>,
    /// As `ps` shows it.
    pub program: String,
    /// By which pages of its session go back to the system.
    pub pages: PagesOut,
}

/// What a request's descriptor turned out to be. The descriptor itself is closed by then, or never leaves the kernel's own
/// memory.
#[derive(Debug)]
pub enum Evidence {
    /// The request needs none.
    None,
    /// It is not what the request is about, or is not there.
    Refused(Errno),
    /// For `Hello`: the directory of the session's anchors.
    SessionDir(SessionDir),
    /// For `ShowTwin`.
    Twin(Twin),
    /// For `AskLane`.
    Datagram(Presented),
    /// For `Claim` and `Recognise`: which object it has open.
    Object(Identity),
    /// For `Capture`.
    Filter(Filter),
    /// For `Admit`: who is to be let in.
    User(Named),
}

/// What a request rests on, or the reason why it is refused.
impl Evidence {
    pub fn session_dir(self) -> Result<SessionDir, Errno> {
        match self {
            Evidence::SessionDir(session_dir) => Ok(session_dir),
            other => Err(other.refusal()),
        }
    }

    pub fn twin(self) -> Result<Twin, Errno> {
        match self {
            Evidence::Twin(twin) => Ok(twin),
            other => Err(other.refusal()),
        }
    }

    pub fn datagram_socket(self) -> Result<Presented, Errno> {
        match self {
            Evidence::Datagram(presented) => Ok(presented),
            other => Err(other.refusal()),
        }
    }

    pub fn user(self) -> Result<Named, Errno> {
        match self {
            Evidence::User(user) => Ok(user),
            other => Err(other.refusal()),
        }
    }

    pub fn object(self) -> Result<Identity, Errno> {
        match self {
            Evidence::Object(object) => Ok(object),
            other => Err(other.refusal()),
        }
    }

    pub fn filter(self) -> Result<Filter, Errno> {
        match self {
            Evidence::Filter(filter) => Ok(filter),
            other => Err(other.refusal()),
        }
    }

    fn refusal(self) -> Errno {
        match self {
            Evidence::Refused(errno) => errno,
            _ => Errno::EBADF,
        }
    }
}

#[derive(Debug)]
pub enum Answer {
    /// The connection's place in the engine's table.
    Opened { conn: u32 },
    /// Nothing remains to be done.
    Done,
    /// Directories are to be made for these anchors; [`Matter::AnchorsMade`] says what came of it.
    Make { session_dir: SessionDirId, first: AnchorHandle, count: u32 },
    /// Memory that its host has mapped by now is to be settled; [`Matter::Settled`] says what came of it.
    Settle { what: Mapped, memory: Vec<(Region, OwnedFd)> },
    /// The connection is to be closed.
    End,
    /// The engine has let go of it; here is the engine's copy of its descriptor.
    Closed(Option<Arc<OwnedFd>>),
}
