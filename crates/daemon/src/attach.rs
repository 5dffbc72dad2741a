//! What hosts ask over the control socket, and the answers: sessions, queue sets, anchors, evidence, claims.
//!
//! A host may be of another version, broken or hostile. Each request gets exactly one answer; whatever is no message
//! ends its connection. Called by the run loop when a connection is readable.

use crate::channels::{UNREAD_MAX, Unread};
use crate::connections::Packet;
use crate::daemon::{Daemon, Stop};
use crate::poller::Token;
use crate::session::{Peer, Session};
use crate::sys::netns_of;
use rustix::net::{SocketType, sockopt};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toe_abi::INTERFACE_VERSION;
use toe_abi::attach::{ANCHORS_AT_ONCE, BadMessage, Message, Reply, ReportKind, Request, refusal_of_version};
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::{AnchorHandle, ChannelId, Cred, Endpoint, FlowId, Instant, QueueSetId, SessionId};
use toe_engine::Claimed;
use toe_engine::control::listen::Twin;
use toe_ring::EngineQueueSet;

/// Looks at a host that is in the middle of something with a flow that it has to let go of: a fraction of a µs. Most often it
/// is not; if it is, it may stand still, and the claim comes again.
const BUSY_LOOKS: u32 = 16;

/// Requests answered for one connection before others get their turn.
const REQUESTS_PER_TURN: usize = 16;
/// Ports below this belong to root (and to whoever root lets bind them).
const FIRST_FREE_PORT: u16 = 1024;

/// An answer with what goes beside it.
pub(crate) type Answer = Result<(Reply, Vec<OwnedFd>), Errno>;

impl Daemon {
    /// Answers what waits at a connection, up to a bound; the rest is reported again.
    pub(crate) fn serve_connection(&mut self, now: Instant, place: u32) {
        for _ in 0..REQUESTS_PER_TURN {
            let Some(connection) = self.connections.get(place) else { return };
            let keep = match connection.receive() {
                Packet::None => return,
                Packet::Closed => false,
                Packet::Message { octets, len, fd } => {
                    match Message::parse(&octets[..len]).and_then(|m| Request::decode(&m)) {
                        Ok(request) => self.answer(now, place, request, fd),
                        Err(bad) => self.answer_bad(now, place, bad),
                    }
                }
            };
            if !keep {
                self.close_connection(now, place);
                return;
            }
        }
    }

    /// Ends a connection and, with it, its session.
    fn close_connection(&mut self, now: Instant, place: u32) {
        let Some(connection) = self.connections.close(place) else { return };
        self.drop_capture(place);
        if let Some(id) = connection.session {
            self.end_session(now, id, "control connection closed");
        }
    }

    /// Answers one request; `false`: the host does not read, and the connection ends.
    fn answer(&mut self, now: Instant, place: u32, request: Request, fd: Option<OwnedFd>) -> bool {
        let (reply, fds) = match self.execute(now, place, request, fd) {
            Ok(answer) => answer,
            Err(errno) => (Reply::Refused { errno: errno.0, version: INTERFACE_VERSION }, Vec::new()),
        };
        let Some(connection) = self.connections.get(place) else { return false };
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let sent = connection.send(&reply.encode(), &fds);
        if sent.is_err() {
            self.counts.unread_answers += 1;
        }
        sent.is_ok()
    }

    /// Answers what is no request of this version; `false`: the connection ends.
    fn answer_bad(&mut self, now: Instant, place: u32, bad: BadMessage) -> bool {
        self.counts.bad_messages += 1;
        let Some(connection) = self.connections.get(place) else { return false };
        let (pid, uid) = (connection.pid, connection.uid);
        let log = self.log_limit.allows(now);
        match bad {
            BadMessage::Version(theirs) => {
                let _ = connection.send(&refusal_of_version(), &[]);
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
                connection.send(&refusal.encode(), &[]).is_ok()
            }
            BadMessage::NotAMessage => {
                if log {
                    tracing::warn!(pid, uid, "connection closed: it sent something that is no message");
                }
                false
            }
        }
    }

    fn execute(&mut self, now: Instant, place: u32, request: Request, fd: Option<OwnedFd>) -> Answer {
        match request {
            Request::Hello { room } => self.hello(now, place, room),
            Request::AddQueueSet => self.add_queue_set(place),
            Request::TakeAnchors { count } => self.take_anchors(place, count),
            Request::ShowTwin => self.show_twin(place, fd.ok_or(Errno::EBADF)?),
            Request::Claim { queue_set, fd: number } => {
                self.claim(now, place, QueueSetId(queue_set), number, fd.ok_or(Errno::EBADF)?)
            }
            Request::OpenChannel { channel } => self.open_channel(place, ChannelId(channel)),
            Request::Relinquish { flow, unread } => {
                self.relinquish(now, place, FlowId::from_raw(flow), unread, fd)
            }
            Request::Share => self.share(now, place),
            Request::Recognise => {
                let anchor = self.anchors.recognise(fd.ok_or(Errno::EBADF)?).ok_or(Errno::ENOENT)?;
                let listens = self.engine.anchor_listens(anchor);
                Ok((if listens { Reply::Handle { handle: anchor.0 } } else { Reply::Done }, Vec::new()))
            }
            Request::Report { what } => self.make_report(now, what),
            Request::Capture { snaplen, interface, filter_len } => {
                self.start_capture(place, (snaplen, interface), filter_len, fd)
            }
            Request::EndCapture => self.end_capture(place),
            Request::Stop => self.stop_at(place, Stop::Now),
            Request::StopWhenUnused => self.stop_at(place, Stop::WhenUnused),
        }
    }

    /// The session that a connection has opened.
    fn session_of(&self, place: u32) -> Result<SessionId, Errno> {
        let id = self.connections.get(place).and_then(|connection| connection.session);
        id.filter(|&id| self.sessions.get(id).is_some()).ok_or(Errno::EINVAL)
    }

    fn hello(&mut self, now: Instant, place: u32, room: u64) -> Answer {
        let connection = self.connections.get(place).ok_or(Errno::EBADF)?;
        let (pid, uid) = (connection.pid, connection.uid);
        if connection.session.is_some() {
            return Err(Errno::EALREADY);
        }
        if !self.policy.may_attach(uid) {
            self.counts.attach_refused += 1;
            if self.log_limit.allows(now) {
                tracing::warn!(pid, uid, "host refused: its user is not among allow_uids");
            }
            return Err(Errno::EACCES);
        }
        // The kernel makes this end of the connection in the namespace of the other one.
        let netns = connection.netns().ok_or(Errno::EINVAL)?;
        let wanted = self.policy.layout;
        let layout = if room == 0 { wanted } else { wanted.within(room).ok_or(Errno::ENOMEM)? };
        if let Err(errno) = self.engine.may_open_session(uid) {
            self.counts.attach_refused += 1;
            if self.log_limit.allows(now) {
                tracing::warn!(pid, uid, "host refused: its user has his share of sessions; see [quota]");
            }
            return Err(errno);
        }
        let Some(id) = self.engine.open_session(Cred { uid, netns }, layout) else {
            self.counts.attach_refused += 1;
            if self.log_limit.allows(now) {
                tracing::warn!(pid, uid, "host refused: the engine has no free session");
            }
            return Err(Errno::ENOBUFS);
        };
        let peer = Peer { pid, uid, program: program_of(pid) };
        match self.open_session(now, id, place, peer, layout) {
            Ok(fds) => {
                self.counts.attached += 1;
                // Before anything is asked of this engine: whether another would do better.
                self.meter.tell(&self.sessions, now, self.engine.flow_count() as u32);
                Ok((Reply::Welcome { session: id.0, layout }, fds.into()))
            }
            Err(error) => {
                self.counts.attach_refused += 1;
                if self.log_limit.allows(now) {
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
        place: u32,
        peer: Peer,
        layout: RegionLayout,
    ) -> std::io::Result<[OwnedFd; 3]> {
        let (session, [region, bell]) = Session::create(id, layout, peer, place, now)?;
        self.poller.add(&session.doorbell, Token::Doorbell(id))?;
        if let Some(process) = session.process() {
            self.poller.add(process, Token::Process(id))?;
        }
        let anchors = self.anchors.open_home(id)?;
        let peer = &session.peer;
        tracing::debug!(
            session = id.0,
            pid = peer.pid,
            uid = peer.uid,
            program = peer.program,
            "session open"
        );
        self.budget.add(session.peer.uid, id);
        self.sessions.insert(id, session);
        if let Some(connection) = self.connections.get_mut(place) {
            connection.session = Some(id);
        }
        Ok([region, bell, anchors])
    }

    fn add_queue_set(&mut self, place: u32) -> Answer {
        let id = self.session_of(place)?;
        let (line, receiver) = self.irq_names.interrupt().map_err(|_| Errno::EMFILE)?;
        crate::sys::refuse_descriptors(&receiver);
        let session = self.sessions.get_mut(id).ok_or(Errno::EINVAL)?;
        let next = session.queue_sets.len();
        let index = u8::try_from(next).map_err(|_| Errno::ENOBUFS)?;
        if u32::from(index) >= session.layout.queue_sets {
            return Err(Errno::ENOBUFS);
        }
        let queue_set =
            EngineQueueSet::new(&session.region, &session.layout, index, line).map_err(|_| Errno::ENOBUFS)?;
        match self.engine.add_queue_set(id) {
            Some(QueueSetId(given)) if given == index => session.queue_sets.push(queue_set),
            _ => return Err(Errno::ENOBUFS),
        }
        Ok((Reply::QueueSet { index }, vec![receiver]))
    }

    /// Makes up to `count` anchors, with handles that follow each other.
    fn take_anchors(&mut self, place: u32, count: u32) -> Answer {
        let id = self.session_of(place)?;
        if count == 0 || count > ANCHORS_AT_ONCE {
            return Err(Errno::EINVAL);
        }
        let (mut first, mut made) = (0, 0);
        let mut refused = Errno::EMFILE;
        while made < count {
            if let Err(errno) = self.engine.may_take_anchor(id) {
                refused = errno;
                break;
            }
            let handle = self.engine.take_anchor(id);
            if made == 0 {
                first = handle.0;
            }
            let follows = handle.0 == first.wrapping_add(made);
            if !follows || self.anchors.add(id, handle).is_err() {
                self.engine.give_up_anchor(handle);
                break;
            }
            made += 1;
        }
        if made == 0 {
            return Err(refused);
        }
        Ok((Reply::Anchors { first, count: made }, Vec::new()))
    }

    /// Takes the address of a kernel socket as evidence that the host holds the port there.
    fn show_twin(&mut self, place: u32, twin: OwnedFd) -> Answer {
        let id = self.session_of(place)?;
        let uid = self.connections.get(place).map_or(u32::MAX, |connection| connection.uid);
        if sockopt::socket_type(&twin) != Ok(SocketType::STREAM) {
            return Err(Errno::EINVAL);
        }
        let local = rustix::net::getsockname(&twin).map_err(|_| Errno::EINVAL)?;
        let local = SocketAddr::try_from(local).map_err(|_| Errno::EINVAL)?;
        let v6_only = local.is_ipv6() && sockopt::ipv6_v6only(&twin) != Ok(false);
        let local = Endpoint::from(local);
        // Whoever makes a network namespace of his own may bind port 80 there; that is no evidence here.
        let netns = netns_of(&twin).ok_or(Errno::EINVAL)?;
        let is_here = netns == self.engine.config().netns;
        if local.port < FIRST_FREE_PORT && !self.policy.may_control(uid) && !is_here {
            return Err(Errno::EACCES);
        }
        let identity = sockopt::socket_cookie(&twin).map_err(|_| Errno::EINVAL)?;
        let shares_port = sockopt::socket_reuseport(&twin).unwrap_or(false);
        let listens = sockopt::socket_acceptconn(&twin).unwrap_or(false);
        let twin = Twin { local, v6_only, identity, shares_port, netns, listens };
        Ok((Reply::Handle { handle: self.engine.add_twin(id, twin) }, Vec::new()))
    }

    fn claim(
        &mut self,
        now: Instant,
        place: u32,
        queue_set: QueueSetId,
        number: u32,
        shown: OwnedFd,
    ) -> Answer {
        let id = self.session_of(place)?;
        if !self.sessions.has_queue_set(id, queue_set) {
            return Err(Errno::EINVAL);
        }
        let anchor = self.anchors.recognise(&shown).ok_or(Errno::ENOENT)?;
        self.make_holder_let_go(id, anchor)?;
        // What the last holder has published must count before the flow changes hands.
        self.catch_up_at(now, &[anchor]);
        self.catch_up(now, id);
        let session_lives = self.sessions.get(id).is_some();
        if !session_lives {
            return Err(Errno::EINVAL);
        }
        let claimed = self.engine.claim(now, id, queue_set, number, anchor, &mut self.sessions)?;
        self.share_anchor(anchor);
        match claimed {
            Claimed::Flow(flow) => {
                let kept = self.unread.remove(&anchor).map(|(kept, payer)| {
                    self.engine.give_unread(payer);
                    kept
                });
                let unread = kept.as_ref().map_or(0, |kept| kept.len);
                let reply = Reply::ClaimedFlow { flow: flow.raw(), anchor: anchor.0, unread };
                Ok((reply, kept.map(|kept| kept.memory).into_iter().collect()))
            }
            Claimed::Listener(listener) => {
                Ok((Reply::ClaimedListener { listener: listener.0.raw(), anchor: anchor.0 }, Vec::new()))
            }
        }
    }

    /// Whoever has the flow learns that it loses it; afterwards it is not at the flow any more. EAGAIN: it is still, or does
    /// not take its completions.
    fn make_holder_let_go(&mut self, claimer: SessionId, anchor: AnchorHandle) -> Result<(), Errno> {
        let Some((holder, queue_set)) = self.engine.begin_claim(claimer, anchor) else { return Ok(()) };
        let is_told = self.engine.post_answers_to(holder, &mut self.sessions);
        let queue_set =
            self.sessions.get(holder).and_then(|session| session.queue_sets.get(queue_set.index()));
        let Some(queue_set) = queue_set else { return Ok(()) };
        let is_done = (0..BUSY_LOOKS).any(|_| {
            core::hint::spin_loop();
            !queue_set.is_busy()
        });
        if is_told && is_done { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    /// Hands a channel's memory to one of the two hosts that it joins, and what wakes the other one.
    fn open_channel(&mut self, place: u32, channel: ChannelId) -> Answer {
        let id = self.session_of(place)?;
        let fetched = self.sessions.channels.fetch(channel, id).ok_or(Errno::ENOENT)?;
        let (other, queue_set) = fetched.other;
        let queue_set = self.sessions.get(other).and_then(|s| s.queue_sets.get(queue_set.index()));
        let waker = queue_set.ok_or(Errno::ENOENT)?.waker().map_err(|_| Errno::EMFILE)?;
        self.sessions.channels.mark_fetched(channel, fetched.side);
        Ok((Reply::Channel { side: fetched.side }, vec![fetched.memory, waker]))
    }

    /// Takes a flow back from its owner, and what that had received for whoever gets it next.
    fn relinquish(
        &mut self,
        now: Instant,
        place: u32,
        flow: FlowId,
        unread: u32,
        memory: Option<OwnedFd>,
    ) -> Answer {
        let id = self.session_of(place)?;
        if unread > UNREAD_MAX {
            return Err(Errno::EINVAL);
        }
        let unread = match unread {
            0 => None,
            len => Some(Unread::check(memory.ok_or(Errno::EBADF)?, len).ok_or(Errno::EINVAL)?),
        };
        // What it has published about the flow counts before it gives it up.
        self.catch_up(now, id);
        let payer = unread.is_some().then(|| self.engine.take_unread(id)).transpose()?;
        let anchor = self.engine.relinquish(id, flow, unread.is_some(), &mut self.sessions);
        if let (Err(_), Some(payer)) = (anchor, payer) {
            self.engine.give_unread(payer);
        }
        let kept = unread.zip(payer).and_then(|kept| self.unread.insert(anchor.ok()?, kept));
        if let Some((_, payer)) = kept {
            self.engine.give_unread(payer);
        }
        anchor?;
        Ok((Reply::Done, Vec::new()))
    }

    /// What the session has published so far counts before its listeners and flows change.
    fn share(&mut self, now: Instant, place: u32) -> Answer {
        let id = self.session_of(place)?;
        self.catch_up(now, id);
        self.engine.share(now, id, &mut self.sessions)?;
        Ok((Reply::Done, Vec::new()))
    }

    fn make_report(&mut self, now: Instant, what: ReportKind) -> Answer {
        if now < self.next_report {
            return Err(Errno::EAGAIN);
        }
        self.counts.reports += 1;
        let text = match what {
            ReportKind::Status => serde_json::to_vec(&self.status_report()),
            ReportKind::Sockets => serde_json::to_vec(&self.sockets_report()),
        };
        let text = text.map_err(|_| Errno::EIO)?;
        let memory = crate::report::sealed_memory(&text).map_err(|_| Errno::ENOMEM)?;
        // Reports may take a tenth of the engine's time, however often they are asked for.
        let done = self.clock.now();
        self.next_report = done.after_us(9 * done.since_us(now));
        Ok((Reply::Report { len: text.len() as u64 }, vec![memory]))
    }

    fn stop_at(&mut self, place: u32, stop: Stop) -> Answer {
        let connection = self.connections.get(place).ok_or(Errno::EBADF)?;
        let (pid, uid) = (connection.pid, connection.uid);
        if !self.policy.may_control(uid) {
            return Err(Errno::EPERM);
        }
        tracing::info!(pid, uid, ?stop, "asked to stop");
        if self.stop != Stop::Now {
            self.stop = stop;
        }
        Ok((Reply::Done, Vec::new()))
    }
}

/// The program's name as `ps` shows it.
fn program_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim_end_matches('\n');
    if name.is_empty() { "?".to_owned() } else { name.to_owned() }
}
