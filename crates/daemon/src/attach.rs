//! What hosts ask over the control socket, and the answers: sessions, queue sets, anchors, evidence, claims.
//!
//! A host may be of another version, broken or hostile. Each request gets exactly one answer; whatever is no message
//! ends its connection. What a request rests on the [control server](crate::control_server) has found out, so that nothing here touches
//! a descriptor of a program's. Called by the run loop when the control server asks.

use crate::anchors::Identity;
use crate::capture::CaptureRequest;
use crate::control_server::ask::{self, Ask, Evidence, Mapped, Matter, Newcomer};
use crate::control_server::pages::{GivenBack, Returned};
use crate::control_server::socket::Answer;
use crate::daemon::Daemon;
use crate::datagrams::from_socket;
use crate::hosts::HostTable;
use crate::outside::Stop;
use crate::queue_sets;
use crate::report::View;
use crate::session::Sessions;
use crate::status::status_report;
use std::sync::mpsc::TrySendError;
use toe_abi::INTERFACE_VERSION;
use toe_abi::attach::{Reply, ReportKind, Request, Unread};
use toe_abi::capture::Filter;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, ChannelId, FlowId, Instant, QueueSetId, SessionId};
use toe_engine::udp::Asked;
use toe_engine::{AnchorUse, Change, Changed, ControlEvent, Engine, Resource, StreamCounts};

/// Asks of the control server answered before anything else gets its turn.
const ASKS_PER_ROUND: usize = 64;

impl Daemon {
    /// Answers what the control server's threads ask, up to a bound; the rest is reported again.
    pub(crate) fn serve_control_server(&mut self, now: Instant) {
        self.hosts.server.hear();
        for _ in 0..ASKS_PER_ROUND {
            let Some(ask) = self.hosts.server.take() else { return };
            self.serve_in_quantum(now, ask);
        }
        self.hosts.server.ring();
    }

    /// Answers what waited for its user's next turn.
    pub(crate) fn serve_deferred(&mut self, now: Instant) {
        for _ in 0..self.hosts.deferred.len() {
            let Some(ask) = self.hosts.deferred.pop_front() else { return };
            self.serve_in_quantum(now, ask);
        }
    }

    /// What is done for a user's requests is taken off his quantum, too. Who has had that waits for the next one; as one request
    /// of a user's is on its way at a time, it overtakes none of his.
    fn serve_in_quantum(&mut self, now: Instant, ask: Ask) {
        let account = self
            .hosts
            .asker(&self.engine, &self.sessions, &ask.matter)
            .filter(|account| self.schedule.budget.is_shared_with_others(*account));
        let may_wait = !matches!(ask.matter, Matter::Close { .. });
        if may_wait && account.is_some_and(|account| !self.schedule.budget.may_go(account)) {
            self.hosts.deferred.push_back(ask);
            return;
        }
        let before = account.map(|account| (account, self.timing.clock.nanos()));
        if account.is_some() && carries_some(self, now, &ask.matter) {
            self.hosts.deferred.push_back(ask);
        } else {
            answer(self, now, ask);
        }
        if let Some((account, before)) = before {
            self.schedule.budget.charge(account, self.timing.clock.nanos() - before);
        }
    }

    pub(crate) fn attend(&mut self, now: Instant, matter: Matter) -> ask::Answer {
        match matter {
            Matter::Open { newcomer, first } => self.let_in(now, newcomer, first),
            Matter::Request { conn, request: Request::TakeAnchors { count }, .. } => {
                let id = self.session_of(conn);
                let rooms = (&mut self.engine, &mut self.sessions);
                match id.and_then(|id| self.anchors.grant(now, rooms, id, count)) {
                    Ok((session_dir, first, count)) => ask::Answer::Make { session_dir, first, count },
                    Err(errno) => self.reply(now, conn, Err(errno)),
                }
            }
            Matter::Request { conn, request: Request::Report { what: ReportKind::Sockets }, .. } => {
                match self.begin_list(now, conn) {
                    Ok(()) => ask::Answer::Done,
                    Err(errno) => self.reply(now, conn, Err(errno)),
                }
            }
            Matter::Request { conn, request: Request::AddQueueSet, .. } => queue_set_asked(self, now, conn),
            Matter::Request { conn, request: Request::DatagramsMapped, .. } => {
                let session = self.session_of(conn).ok().and_then(|id| self.sessions.get_mut(id));
                let memory = session.map(|session| from_socket::unsettled(&mut session.datagrams));
                ask::Answer::Settle { what: Mapped::Datagrams, memory: memory.unwrap_or_default() }
            }
            Matter::Settled { conn, what, is_settled } => {
                let answer = self.settled(now, conn, what, is_settled);
                self.reply(now, conn, answer)
            }
            Matter::Request { conn, request, evidence } => {
                let answer = self.execute(now, conn, request, evidence);
                self.reply(now, conn, answer)
            }
            Matter::AnchorsMade { conn, wanted, made } => {
                let id = self.session_of(conn).ok();
                let answer =
                    self.anchors.made(now, (&mut self.engine, &mut self.sessions), id, wanted, &made);
                self.reply(now, conn, answer)
            }
            Matter::Bad { conn, bad } => {
                if self.hosts.answer_bad(now, conn, bad) {
                    return ask::Answer::Done;
                }
                self.end_connection(now, conn);
                ask::Answer::End
            }
            Matter::Close { conn } => {
                self.end_connection(now, conn);
                self.reports.forget(conn);
                ask::Answer::Closed(self.hosts.connections.take(conn))
            }
            Matter::Returned { returned, .. } => {
                returned.into_iter().for_each(|returned| hear(self, now, &returned));
                ask::Answer::Done
            }
            Matter::TwinsGone(gone) => {
                for twin in gone {
                    self.senders.socket_gone(now, &mut self.engine, &mut self.sessions, twin);
                }
                ask::Answer::Done
            }
        }
    }

    /// Gives a connection its place, and answers what it has asked. One that ends with that is closed when the control server sees its end.
    fn let_in(
        &mut self,
        now: Instant,
        newcomer: Newcomer,
        first: Option<(Request, Evidence)>,
    ) -> ask::Answer {
        match self.hosts.connections.add(newcomer) {
            Ok(conn) => {
                if let Some((request, evidence)) = first {
                    let answer = self.execute(now, conn, request, evidence);
                    self.reply(now, conn, answer);
                }
                ask::Answer::Opened { conn }
            }
            Err(socket) => {
                if let Some(session_dir) = first.and_then(|(_, evidence)| evidence.session_dir().ok()) {
                    self.anchors.refuse_session_dir(&session_dir);
                }
                ask::Answer::Closed(Some(socket))
            }
        }
    }

    /// Ends a connection and, with it, its session. The control server closes it.
    fn end_connection(&mut self, now: Instant, conn: u32) {
        if self.hosts.connections.get(conn).is_none() {
            return;
        }
        let session = self.hosts.connections.end(conn);
        self.sessions.end_capture(now, &mut self.engine, conn);
        if let Some(id) = session {
            self.end_session(now, id, "control connection closed");
        }
    }

    /// Answers one request. A host that does not read loses its connection.
    pub(crate) fn reply(&mut self, now: Instant, conn: u32, answer: Answer) -> ask::Answer {
        let (reply, fds) = match answer {
            Ok(answer) => answer,
            Err(errno) => (Reply::Refused { errno: errno.0, version: INTERFACE_VERSION }, Vec::new()),
        };
        let Some(connection) = self.hosts.connections.get(conn) else { return ask::Answer::End };
        if connection.send(&reply.encode(), fds).is_ok() {
            return ask::Answer::Done;
        }
        self.hosts.counts.unread_answers += 1;
        self.end_connection(now, conn);
        ask::Answer::End
    }

    fn execute(&mut self, now: Instant, conn: u32, request: Request, evidence: Evidence) -> Answer {
        match request {
            Request::Hello { room } => {
                let session_dir = evidence.session_dir()?;
                // A refused one has no use for its directory.
                let done = self
                    .hello(now, conn, room, &session_dir)
                    .inspect_err(|_| self.anchors.refuse_session_dir(&session_dir));
                done.map(|(reply, fds)| (reply, fds.into_iter().chain([session_dir.dir]).collect()))
            }
            Request::AddQueueSet | Request::TakeAnchors { .. } => Err(Errno::EINVAL),
            // A kernel socket is evidence that the host holds the port there.
            Request::ShowTwin => {
                let (twin, id) = (evidence.twin()?, self.session_of(conn)?);
                let handle = self.engine.add_twin(id, twin).ok_or(Errno::ENOBUFS)?;
                Ok((Reply::Handle { handle }, Vec::new()))
            }
            Request::Claim { queue_set, fd: number } => {
                self.claim(now, conn, QueueSetId(queue_set), number, evidence.object()?)
            }
            Request::OpenChannel { channel } => {
                let id = self.session_of(conn)?;
                open_channel(&mut self.sessions, id, ChannelId(channel))
            }
            Request::Relinquish { flow, unread } => {
                self.relinquish(now, conn, FlowId::from_raw(flow), unread)
            }
            Request::Share => self.share(now, conn),
            Request::Recognise => {
                let anchor = self.anchors.recognise(evidence.object()?).ok_or(Errno::ENOENT)?;
                let listens = self.engine.view().anchor_use(anchor) == AnchorUse::Listener;
                Ok((if listens { Reply::Handle { handle: anchor.0 } } else { Reply::Done }, Vec::new()))
            }
            Request::Report { .. } => self.report_status(now, conn),
            Request::Capture { snaplen, interface, filter_len } => {
                let rooms = (&mut self.engine, &mut self.sessions);
                let wanted = (snaplen, interface, filter_len);
                let links = self.links.ports.slots.len();
                start_capture(now, conn, &self.hosts, rooms, links, wanted, evidence)
            }
            Request::EndCapture => {
                let had = self.sessions.end_capture(now, &mut self.engine, conn);
                had.then(|| (Reply::Done, Vec::new())).ok_or(Errno::EINVAL)
            }
            Request::Stop => self.hosts.stop(conn, &mut self.outside, Stop::Now),
            Request::StopWhenUnused => self.hosts.stop(conn, &mut self.outside, Stop::WhenUnused),
            Request::Admit { .. } => self.hosts.admit(conn, evidence.user()?),
            Request::AskLane { way, peer } => {
                let session = self.session_of(conn)?;
                let user = self.hosts.connections.get(conn).ok_or(Errno::EBADF)?.pages.clone();
                let asked = Asked { session, way, peer, presented: evidence.datagram_socket()? };
                self.lanes.ask(now, (&mut self.engine, &mut self.sessions), user, asked)
            }
            Request::OpenDatagrams { purpose, peer } => {
                let session = self.session_of(conn)?;
                let rooms = (&mut self.engine, &mut self.sessions);
                self.senders.open(now, rooms, session, (purpose, peer), &evidence.datagram_socket()?)
            }
            Request::DatagramsMapped => Err(Errno::EINVAL),
            Request::ViaName { .. }
            | Request::ViaListen { .. }
            | Request::ViaConnect { .. }
            | Request::ViaTake { .. }
            | Request::ViaFetch { .. }
            | Request::ViaForget { .. } => {
                let session = self.session_of(conn)?;
                self.via.answer(&mut self.engine, &mut self.sessions, session, request)
            }
        }
    }

    /// A host has mapped what it was given, or not so that it could be settled.
    fn settled(&mut self, now: Instant, conn: u32, what: Mapped, is_settled: bool) -> Answer {
        if !is_settled {
            return Err(Errno::EPERM);
        }
        // It is announced again that the engine sleeps: the host has not been told if it was before.
        let id = self.session_of(conn)?;
        self.sessions.stir(id, now);
        match what {
            Mapped::Region => {
                queue_sets::add(&mut self.engine, &mut self.hosts.irq_names, &mut self.sessions, id)
            }
            Mapped::Datagrams => Ok((Reply::Done, Vec::new())),
        }
    }

    fn claim(
        &mut self,
        now: Instant,
        conn: u32,
        queue_set: QueueSetId,
        fd: u32,
        presented: Identity,
    ) -> Answer {
        let id = self.session_of(conn)?;
        if !self.sessions.has_queue_set(id, queue_set) {
            return Err(Errno::EINVAL);
        }
        let anchor = self.anchors.recognise(presented).ok_or(Errno::ENOENT)?;
        // What the last holder has published counts before, be it that others may have the anchor.
        self.catch_up_at(now, &[anchor]);
        // From here on whoever has the flow is not at it any more.
        let withdrawn =
            self.engine.change(now, id, Change::Withdraw { lifetime: anchor }, &mut self.sessions);
        withdrawn.map_err(|errno| later(self, id, anchor, errno))?;
        // What it did before must count before the flow changes hands.
        self.catch_up_at(now, &[anchor]);
        self.catch_up(now, id);
        self.sessions.get(id).ok_or(Errno::EINVAL)?;
        let claimed = change(self, now, id, Change::Claim { lifetime: anchor, queue_set, fd });
        let claimed = claimed.map_err(|errno| later(self, id, anchor, errno))?;
        self.anchors.share(now, &mut self.engine, &mut self.sessions, anchor);
        let reply = match claimed {
            Changed::Flow(flow, StreamCounts { read, written }) => {
                Reply::ClaimedFlow { flow: flow.raw(), anchor: anchor.0, read, written }
            }
            Changed::Listener(listener) => {
                Reply::ClaimedListener { listener: listener.0.raw(), anchor: anchor.0 }
            }
            Changed::Nothing => Reply::Done,
        };
        Ok((reply, Vec::new()))
    }

    /// Takes a flow back from its owner, and what that had received for whoever gets it next.
    fn relinquish(&mut self, now: Instant, conn: u32, flow: FlowId, unread: Unread) -> Answer {
        let id = self.session_of(conn)?;
        // What it has published about the flow counts before it gives it up.
        self.catch_up(now, id);
        self.engine.change(now, id, Change::Relinquish { flow, unread }, &mut self.sessions)?;
        Ok((Reply::Done, Vec::new()))
    }

    /// What the session has published so far counts before its listeners and flows change.
    fn share(&mut self, now: Instant, conn: u32) -> Answer {
        let id = self.session_of(conn)?;
        self.catch_up(now, id);
        // What is on its way to a channel is to be told of before.
        self.sessions.post_completions(&mut self.engine);
        change(self, now, id, Change::Share)?;
        Ok((Reply::Done, Vec::new()))
    }

    pub(crate) fn begin_list(&mut self, now: Instant, conn: u32) -> Result<(), Errno> {
        let who = self.hosts.connections.get(conn).ok_or(Errno::EBADF)?.who.clone();
        let account = self.engine.view().users().account(who.cred());
        self.reports.begin_list(now, conn, who, account)
    }

    fn report_status(&mut self, now: Instant, conn: u32) -> Answer {
        self.reports.begin(now)?;
        let who = &self.hosts.connections.get(conn).ok_or(Errno::EBADF)?.who;
        let (sessions, ports) = (&self.sessions, &self.links.ports);
        let view = View { policy: &self.hosts.policy, who, sessions, ports };
        let text = serde_json::to_vec(&status_report(self, &view)).map_err(|_| Errno::EIO)?;
        let memory = crate::report::sealed_memory(&text).map_err(|_| Errno::ENOMEM)?;
        let done = self.timing.clock.now();
        self.reports.took(done, done.since_us(now));
        Ok((Reply::Report { len: text.len() as u64 }, vec![memory]))
    }
}

/// The program looks as soon as it has the answer: what there is to be told is there by then.
fn change(daemon: &mut Daemon, now: Instant, id: SessionId, change: Change) -> Result<Changed, Errno> {
    let changed = daemon.engine.change(now, id, change, &mut daemon.sessions);
    daemon.sessions.post_completions(&mut daemon.engine);
    changed
}

/// Whether there was something to copy before what is asked can be done at once. A step of it was.
fn carries_some(daemon: &mut Daemon, now: Instant, matter: &Matter) -> bool {
    let Matter::Request { conn, request, evidence } = matter else { return false };
    let Ok(id) = daemon.session_of(*conn) else { return false };
    let change = match (request, evidence) {
        (Request::Share, _) => Change::Share,
        (Request::Claim { queue_set, fd }, Evidence::Object(presented)) => {
            let Some(anchor) = daemon.anchors.recognise(*presented) else { return false };
            Change::Claim { lifetime: anchor, queue_set: QueueSetId(*queue_set), fd: *fd }
        }
        (Request::Relinquish { flow, unread }, _) => {
            Change::Relinquish { flow: FlowId::from_raw(*flow), unread: *unread }
        }
        _ => return false,
    };
    daemon.engine.prepare(now, id, change, &mut daemon.sessions)
}

fn answer(daemon: &mut Daemon, now: Instant, Ask { matter, answers }: Ask) {
    let answer = daemon.attend(now, matter);
    // Who asked waits for it. If it is gone, with the connection, that is not for this thread to close.
    if let Err(TrySendError::Full(answer) | TrySendError::Disconnected(answer)) = answers.try_send(answer) {
        std::mem::forget(answer);
    }
}

/// Hands a channel's memory to one of the two hosts that it joins, and what wakes the other one.
fn open_channel(sessions: &mut Sessions, id: SessionId, channel: ChannelId) -> Answer {
    let fetched = sessions.channels.fetch(channel, id).ok_or(Errno::ENOENT)?;
    let (other, queue_set) = fetched.other;
    let other = sessions.get(other).ok_or(Errno::ENOENT)?;
    let queue_set = other.queue_sets.get(queue_set.index());
    let waker = queue_set.ok_or(Errno::ENOENT)?.line().another().map_err(|_| Errno::EMFILE)?;
    let peer = other.peer.cred();
    sessions.channels.mark_fetched(channel, fetched.side);
    Ok((Reply::Channel { side: fetched.side, peer }, vec![fetched.memory, waker]))
}

/// Begins a capture in an engine of so many links.
fn start_capture(
    now: Instant,
    conn: u32,
    hosts: &HostTable,
    (engine, sessions): (&mut Engine, &mut Sessions),
    links: usize,
    (snaplen, interface, filter_len): (u32, Option<u16>, u32),
    evidence: Evidence,
) -> Answer {
    let who = &hosts.connections.get(conn).ok_or(Errno::EBADF)?.who;
    let only = (!hosts.policy.may_control(who)).then(|| who.cred());
    let memory = engine.view().users().quotas().of(Resource::SessionMemory).total;
    let filter = || if filter_len == 0 { Ok(Filter::All) } else { evidence.filter() };
    let wanted = CaptureRequest { snaplen, interface, only };
    let stream = sessions.captures.start(conn, wanted, (links, memory), filter)?;
    // One of a user's own connections anybody can begin as often as he likes: it fills no log.
    match only {
        None => tracing::info!(pid = who.pid, uid = who.uid, "capture of all begun"),
        Some(_) => tracing::debug!(pid = who.pid, uid = who.uid, "capture begun"),
    }
    engine.handle_control(now, ControlEvent::Captures(sessions.captures.rules()), sessions);
    Ok((Reply::Capture, vec![stream]))
}

/// Before its first queue set the memory of a session is to be settled.
fn queue_set_asked(daemon: &mut Daemon, now: Instant, conn: u32) -> ask::Answer {
    let session = daemon.session_of(conn).ok().and_then(|id| daemon.sessions.get_mut(id));
    if let Some(memory) = session.and_then(queue_sets::take_unsettled) {
        return ask::Answer::Settle { what: Mapped::Region, memory: vec![memory] };
    }
    let answer = daemon.session_of(conn).and_then(|id| {
        queue_sets::add(&mut daemon.engine, &mut daemon.hosts.irq_names, &mut daemon.sessions, id)
    });
    daemon.reply(now, conn, answer)
}

/// A user's thread has done, or seen, something.
fn hear(daemon: &mut Daemon, now: Instant, returned: &Returned) {
    match returned {
        Returned::Pages(GivenBack { pages, is_gone }) => {
            // Else the number is another's by now.
            if daemon.sessions.region_of(pages.session).is_some_and(|region| region.is_same(&pages.region)) {
                let (session, offset, len) = (pages.session, pages.offset, pages.len);
                let event = ControlEvent::GivenBack { session, offset, len, gone: *is_gone };
                daemon.engine.handle_control(now, event, &mut daemon.sessions);
            }
        }
        Returned::Closed(lane) => daemon.lanes.end(now, &mut daemon.engine, &mut daemon.sessions, *lane),
    }
}

/// What a claim is told that has to wait for the holder (EAGAIN). EBUSY: he is another user, who may keep it waiting for as long as he likes.
fn later(daemon: &Daemon, claimer: SessionId, anchor: AnchorHandle, errno: Errno) -> Errno {
    if errno != Errno::EAGAIN {
        return errno;
    }
    let uid = |session| daemon.sessions.get(session).map(|session| session.schedule.account.uid);
    let mut holders = Vec::new();
    daemon.engine.view().sessions_at(anchor, &mut holders);
    // The first is the owner of a flow that has one.
    let holder = holders.first().and_then(|holder| uid(*holder)).filter(|holder| *holder != 0);
    if holder.is_some_and(|holder| uid(claimer) != Some(holder)) { Errno::EBUSY } else { Errno::EAGAIN }
}
