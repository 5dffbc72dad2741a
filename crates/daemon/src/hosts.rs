//! Who may come, who has come, and what they asked: the control server as the engine's thread has it, and its connections. Used by `attach`.

use crate::connections::Connections;
use crate::control_server::ControlServer;
use crate::control_server::ask::{Ask, Matter};
use crate::control_server::socket::Answer;
use crate::irq_names::IrqNames;
use crate::log_limit::LogLimit;
use crate::outside::{OutsideEvents, Stop};
use crate::policy::{Credentials, Named, Policy};
use crate::session::Sessions;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use toe_abi::INTERFACE_VERSION;
use toe_abi::attach::{BadMessage, Reply, refusal_of_version};
use toe_abi::errno::Errno;
use toe_base::{Cred, Instant};
use toe_engine::Engine;

/// What the daemon itself counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub attached: u64,
    pub attach_refused: u64,
    pub bad_messages: u64,
    pub unread_answers: u64,
    pub parks: u64,
}

/// Who may come, who has, and what they asked.
#[derive(Debug)]
pub struct HostTable {
    pub(crate) policy: Arc<Policy>,
    pub(crate) server: ControlServer,
    pub(crate) connections: Connections,
    /// What users asked who had had their turn.
    pub(crate) deferred: VecDeque<Ask>,
    pub(crate) irq_names: IrqNames,
    pub(crate) log_limit: LogLimit,
    pub(crate) counts: Counts,
}

impl HostTable {
    pub(crate) fn new(policy: Arc<Policy>, server: ControlServer, irq_names: IrqNames) -> HostTable {
        HostTable {
            policy,
            server,
            connections: Connections::default(),
            deferred: VecDeque::new(),
            irq_names,
            log_limit: LogLimit::default(),
            counts: Counts::default(),
        }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Lets hosts come in through `socket`, which listens already.
    pub fn listen(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        self.server.listen(socket)
    }

    /// Serves a host that is connected already.
    pub fn serve(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        self.server.serve(socket)
    }

    /// Whose account it goes on that this is asked.
    pub(crate) fn asker(&self, engine: &Engine, sessions: &Sessions, matter: &Matter) -> Option<Cred> {
        let account = |who: &Credentials| engine.view().users().account(who.cred());
        let of = |conn: &u32| {
            let connection = self.connections.get(*conn)?;
            let session = connection.session.and_then(|id| sessions.get(id));
            Some(session.map_or_else(|| account(&connection.who), |session| session.schedule.account))
        };
        match matter {
            Matter::Open { newcomer, .. } => Some(account(&newcomer.who)),
            Matter::Request { conn, .. }
            | Matter::AnchorsMade { conn, .. }
            | Matter::Settled { conn, .. }
            | Matter::Bad { conn, .. }
            | Matter::Close { conn } => of(conn),
            Matter::Returned { who, .. } => Some(engine.view().users().account(*who)),
            Matter::TwinsGone(_) => None,
        }
    }

    /// Answers what is no request of this version; `false`: the connection ends.
    pub(crate) fn answer_bad(&mut self, now: Instant, conn: u32, bad: BadMessage) -> bool {
        self.counts.bad_messages += 1;
        let Some(connection) = self.connections.get(conn) else { return false };
        let (pid, uid) = (connection.who.pid, connection.who.uid);
        let log = self.log_limit.allows(now);
        match bad {
            BadMessage::Version(theirs) => {
                let _ = connection.send(&refusal_of_version(), Vec::new());
                if log {
                    let ours = INTERFACE_VERSION;
                    tracing::warn!(
                        pid,
                        uid,
                        theirs,
                        ours,
                        "host refused: it speaks another interface version"
                    );
                }
                false
            }
            BadMessage::UnknownKind(_) | BadMessage::BadArgument => {
                let refusal = Reply::Refused { errno: Errno::EINVAL.0, version: INTERFACE_VERSION };
                if log {
                    tracing::warn!(pid, uid, ?bad, "request refused");
                }
                connection.send(&refusal.encode(), Vec::new()).is_ok()
            }
            BadMessage::NotAMessage => {
                if log {
                    tracing::warn!(pid, uid, "connection closed: it sent something that is no message");
                }
                false
            }
        }
    }

    /// Hands the right to attach on.
    pub(crate) fn admit(&mut self, conn: u32, user: Named) -> Answer {
        let who = &self.connections.get(conn).ok_or(Errno::EBADF)?.who;
        self.policy.admit(who, user)?;
        Ok((Reply::Done, Vec::new()))
    }

    /// Somebody has asked the engine to end.
    pub(crate) fn stop(&self, conn: u32, outside: &mut OutsideEvents, stop: Stop) -> Answer {
        let connection = self.connections.get(conn).filter(|connection| connection.is_waiting());
        let who = &connection.ok_or(Errno::EBADF)?.who;
        if !self.policy.may_control(who) {
            return Err(Errno::EPERM);
        }
        tracing::info!(pid = who.pid, uid = who.uid, ?stop, "asked to stop");
        outside.stop_at(stop);
        Ok((Reply::Done, Vec::new()))
    }
}
