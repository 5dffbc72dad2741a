//! How a session is opened, and how its host gets anchors. Called by `attach`.

use crate::anchors::SessionDir;
use crate::control_server::socket::Answer;
use crate::daemon::Daemon;
use crate::poller::Token;
use crate::session::{Peer, Session};
use std::os::fd::{AsFd, OwnedFd};
use toe_abi::attach::Reply;
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::{Instant, SessionId};
use toe_engine::ControlEvent;

impl Daemon {
    /// All but the descriptor of the session directory, which comes last.
    pub(crate) fn hello(&mut self, now: Instant, conn: u32, room: u64, session_dir: &SessionDir) -> Answer {
        let connection = self.hosts.connections.get(conn).ok_or(Errno::EBADF)?;
        let (pid, cred) = (connection.who.pid, connection.who.cred());
        let uid = cred.uid;
        if connection.session.is_some() {
            return Err(Errno::EALREADY);
        }
        let wanted = self.hosts.policy.layout;
        let layout = if room == 0 { wanted } else { wanted.within(room).ok_or(Errno::ENOMEM)? };
        let opened = self.engine.open_session(cred, layout).inspect_err(|errno| {
            self.hosts.counts.attach_refused += 1;
            let why = match *errno {
                Errno::EDQUOT => "its user has his share of sessions; see [quota]",
                _ => "the engine has no free session",
            };
            if self.hosts.log_limit.allows(now) {
                tracing::warn!(pid, uid, "host refused: {why}");
            }
        });
        let id = opened?;
        match self.open_session(now, id, conn, session_dir, layout) {
            Ok(fds) => {
                self.hosts.counts.attached += 1;
                self.engine.handle_control(now, ControlEvent::Process(id, pid), &mut self.sessions);
                // Before anything is asked of this engine: whether another would do better.
                let flows = self.engine.view().totals().flows as u32;
                self.sessions.publish_load(self.timing.meter.load(now, flows));
                self.sessions.get(id).into_iter().for_each(|session| session.region.withhold());
                Ok((Reply::Welcome { session: id.0, layout }, fds.into()))
            }
            Err(error) => {
                self.hosts.counts.attach_refused += 1;
                if self.hosts.log_limit.allows(now) {
                    tracing::warn!(pid, uid, %error, "host refused: no memory or descriptors for a session");
                }
                self.engine.close_session(now, id, &mut self.sessions);
                self.engine.forget_session(id);
                Err(Errno::ENOMEM)
            }
        }
    }

    fn open_session(
        &mut self,
        now: Instant,
        id: SessionId,
        conn: u32,
        session_dir: &SessionDir,
        layout: RegionLayout,
    ) -> std::io::Result<[OwnedFd; 4]> {
        let connection = self.hosts.connections.get_mut(conn).ok_or(std::io::ErrorKind::NotConnected)?;
        let peer = Peer::of(&connection.who, connection.program.clone());
        let process = connection.process.take();
        let way = (conn, connection.pages.clone());
        let account = self.engine.view().session(id).account;
        let looks = self.timing.looks.as_fd().try_clone_to_owned()?;
        let (session, [region, receive, eventfd]) =
            Session::create(id, layout, (peer, account, process), way, now)?;
        self.outside.poller.add(&session.doorbell, Token::Doorbell(id))?;
        if let Some(process) = session.process() {
            self.outside.poller.add(process, Token::Process(id))?;
        }
        self.anchors.open_session_dir(&self.outside.poller, id, account, session_dir)?;
        let peer = &session.peer;
        tracing::debug!(
            session = id.0,
            pid = peer.pid,
            uid = peer.uid,
            program = peer.program,
            "session open"
        );
        self.schedule.budget.add(account, id);
        self.sessions.insert(id, session);
        if let Some(connection) = self.hosts.connections.get_mut(conn) {
            connection.session = Some(id);
        }
        Ok([region, receive, eventfd, looks])
    }
}
