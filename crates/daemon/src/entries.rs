//! Entries of hosts: taken, counted before what comes after them, and the end of a session whose host has gone or broke the contract. Called by
//! `attach` and by the run loop.
//!
//! A host that breaks the contract is fenced: its session is told why, cut off, and nobody else notices.

use crate::budget::{AccountIndex, LOOKS_A_ROUND, QUANTUM_NS, ROUND_NS};
use crate::control_server::pages::Interrupt;
use crate::daemon::Daemon;
use crate::kernel::follow::Served;
use toe_abi::attach::FenceReason;
use toe_abi::entry::{Command, Send};
use toe_abi::errno::Errno;
use toe_abi::region::{CMD_ENTRIES, RCV_ENTRIES, SND_ENTRIES};
use toe_base::{AnchorHandle, Instant, SessionId};
use toe_engine::{ControlEvent, DriverRequest};
use toe_ring::EngineQueueSet;
use toe_ring::queue_set::ArgBlock;

/// What a queue set's rings hold: of a host that goes on filling them no more is taken in one turn.
const ENTRIES_AT_ONCE: usize = (CMD_ENTRIES + SND_ENTRIES + RCV_ENTRIES) as usize;
/// Entries of `snd` and of `rcv` of one queue set taken in one step of its user's quantum, where there are several users.
const DATA_PER_STEP: u32 = 32;

/// How the next bytes are taken: with the commands that were published before them in mind, or not.
type NextSend = fn(&mut EngineQueueSet<Interrupt>) -> Option<Result<Send, FenceReason>>;

impl Daemon {
    /// Takes what hosts have published, except from sessions that sleep; returns how many entries.
    pub(crate) fn take_entries(&mut self, now: Instant) -> usize {
        self.sessions.tell_woken(&mut self.schedule.budget);
        self.schedule.took_all = true;
        if self.schedule.budget.is_shared() {
            return self.take_entries_in_quanta(now);
        }
        let Some(alone) = self.schedule.budget.alone() else { return 0 };
        let (mut entries, mut served) = (0, 0);
        // A session that is fenced leaves the list, so the next one moves to its place.
        while let Some(id) = self.schedule.budget.session_at(alone, served) {
            entries += self.catch_up(now, id);
            if self.schedule.budget.session_at(alone, served) == Some(id) {
                served += 1;
            }
        }
        entries
    }

    /// The same among several users: who has used less goes first, until the quanta of this round are over.
    fn take_entries_in_quanta(&mut self, now: Instant) -> usize {
        let mut quanta = std::mem::take(&mut self.schedule.order);
        let sessions = &self.sessions;
        self.schedule
            .budget
            .begin_round(&mut quanta, |id| sessions.get(id).is_some_and(|session| session.has_work()));
        let (mut entries, mut spent_ns) = (0, 0);
        for &account in &quanta {
            if spent_ns >= ROUND_NS {
                self.schedule.took_all = false;
                break;
            }
            let (taken, ns) = self.take_quantum_of(now, account);
            entries += taken;
            spent_ns += ns;
        }
        self.schedule.order = quanta;
        entries
    }

    /// Takes entries of an account's sessions, some of each, until its quantum is over. How many, and how long that took.
    fn take_quantum_of(&mut self, now: Instant, account: AccountIndex) -> (usize, u64) {
        let began = self.timing.clock.nanos();
        let (mut entries, mut served, mut in_vain, mut ns) = (0, 0, 0, 0);
        let mut is_done = false;
        while ns < QUANTUM_NS && in_vain < LOOKS_A_ROUND {
            // Past the last one comes the first again; all of them were in vain: there is nothing more.
            let Some(id) = self.schedule.budget.session_at(account, served) else {
                is_done = served == 0 || in_vain >= served;
                if is_done {
                    break;
                }
                self.schedule.budget.pass(account, served);
                served = 0;
                continue;
            };
            served += 1;
            let taken = self.take_some_of_session(now, id);
            entries += taken;
            if taken == 0 {
                in_vain += 1;
                continue;
            }
            in_vain = 0;
            ns = self.timing.clock.nanos() - began;
        }
        self.schedule.took_all &= is_done;
        self.schedule.budget.pass(account, served);
        self.schedule.budget.charge(self.schedule.budget.cred(account), ns);
        (entries, ns)
    }

    /// Takes what the session has published so far, all of it: something is about to happen that comes after that.
    pub(crate) fn catch_up(&mut self, now: Instant, id: SessionId) -> usize {
        let entries = self.each_queue_set(now, id, Daemon::take_all);
        entries + self.take_datagrams_stirring(now, id)
    }

    /// The same without its commands, of which one may call for this in its turn.
    fn catch_up_data(&mut self, now: Instant, id: SessionId) {
        let most = SND_ENTRIES.max(RCV_ENTRIES);
        let take = |daemon: &mut Daemon, now, id, index| {
            Ok(daemon.take_data(now, id, index, most, EngineQueueSet::pop_any_send)?.0)
        };
        self.each_queue_set(now, id, take);
    }

    /// The same for all sessions whose entries may be about what an anchor stands for.
    pub(crate) fn catch_up_at(&mut self, now: Instant, anchors: &[AnchorHandle]) {
        let mut concerned = std::mem::take(&mut self.schedule.concerned);
        concerned.clear();
        anchors.iter().for_each(|anchor| self.engine.view().sessions_at(*anchor, &mut concerned));
        for id in concerned.drain(..) {
            self.catch_up(now, id);
        }
        self.schedule.concerned = concerned;
    }

    /// Some entries of each queue set and one command at most: a few µs.
    pub(crate) fn take_some_of_session(&mut self, now: Instant, id: SessionId) -> usize {
        let entries = self.each_queue_set(now, id, Daemon::take_some);
        entries + self.take_datagrams_stirring(now, id)
    }

    fn take_datagrams_stirring(&mut self, now: Instant, id: SessionId) -> usize {
        let taken = self.senders.take_some(now, &mut self.engine, &mut self.sessions, id);
        if taken > 0 {
            self.sessions.stir(id, now);
            if let Some(session) = self.sessions.get_mut(id) {
                session.schedule.was_served = true;
            }
        }
        taken
    }

    fn each_queue_set(
        &mut self,
        now: Instant,
        id: SessionId,
        mut take: impl FnMut(&mut Daemon, Instant, SessionId, usize) -> Result<usize, FenceReason>,
    ) -> usize {
        let queue_sets = self.sessions.get(id).map_or(0, |session| session.queue_sets.len());
        let mut entries = 0;
        for index in 0..queue_sets {
            if !self.sessions.queue_set(id, index).is_some_and(|queue_set| queue_set.has_work()) {
                continue;
            }
            match take(self, now, id, index) {
                Ok(taken) => entries += taken,
                Err(reason) => {
                    self.fence(now, id, reason);
                    return entries + 1;
                }
            }
        }
        if entries > 0 {
            self.sessions.stir(id, now);
            if let Some(session) = self.sessions.get_mut(id) {
                session.schedule.was_served = true;
            }
        }
        entries
    }

    /// All that a queue set has. Entries of `snd` and `rcv` that were published before a command count before it, and those of `snd` that
    /// were published after it count after it.
    fn take_all(&mut self, now: Instant, id: SessionId, index: usize) -> Result<usize, FenceReason> {
        let most = SND_ENTRIES.max(RCV_ENTRIES);
        let commands = self.sessions.queue_set(id, index).map_or(0, |queue_set| queue_set.commands());
        let mut entries = self.take_data(now, id, index, most, EngineQueueSet::pop_send)?.0;
        for _ in 0..commands {
            let Some(queue_set) = self.sessions.queue_set(id, index) else { return Ok(entries) };
            let Some(command) = queue_set.pop_command() else { break };
            let has_more = queue_set.has_send();
            let (command, args) = command?;
            self.carry_out(now, id, index, command, &args)?;
            entries += 1;
            if has_more && entries < ENTRIES_AT_ONCE {
                entries += self.take_data(now, id, index, most, EngineQueueSet::pop_send)?.0;
            }
        }
        if let Some(queue_set) = self.sessions.queue_set(id, index).filter(|_| commands > 0) {
            queue_set.publish_heads();
        }
        Ok(entries)
    }

    /// Some of it. The command is seen first and taken last: not before all that was published before it.
    fn take_some(&mut self, now: Instant, id: SessionId, index: usize) -> Result<usize, FenceReason> {
        let has_command = self.sessions.queue_set(id, index).is_some_and(|queue_set| queue_set.has_command());
        let (data, is_all) = self.take_data(now, id, index, DATA_PER_STEP, EngineQueueSet::pop_send)?;
        if !has_command || !is_all {
            return Ok(data);
        }
        let Some(queue_set) = self.sessions.queue_set(id, index) else { return Ok(data) };
        let Some(command) = queue_set.pop_command() else { return Ok(data) };
        queue_set.publish_heads();
        let (command, args) = command?;
        self.carry_out(now, id, index, command, &args)?;
        Ok(data + 1)
    }

    /// Up to `max` entries of `snd`, as `next` has them, and of `rcv` each; whether those were all that may be taken now.
    fn take_data(
        &mut self,
        now: Instant,
        id: SessionId,
        index: usize,
        max: u32,
        next: NextSend,
    ) -> Result<(usize, bool), FenceReason> {
        let session = self.sessions.get_mut(id);
        let Some(queue_set) = session.and_then(|session| session.queue_sets.get_mut(index)) else {
            return Ok((0, true));
        };
        let (mut sends, mut credits) = (0, 0);
        while sends < max
            && let Some(send) = next(queue_set)
        {
            self.engine.handle_send(now, id, send?)?;
            sends += 1;
        }
        while credits < max
            && let Some(credit) = queue_set.pop_credit()
        {
            self.engine.handle_credit(now, id, credit?)?;
            credits += 1;
        }
        queue_set.publish_heads();
        self.timing.rest.took_credit(credits as usize);
        Ok(((sends + credits) as usize, sends < max && credits < max))
    }

    fn carry_out(
        &mut self,
        now: Instant,
        id: SessionId,
        index: usize,
        command: Command,
        args: &ArgBlock,
    ) -> Result<(), FenceReason> {
        if let Some(peer) = self.engine.view().counts_after(id, command) {
            self.catch_up_data(now, peer);
        }
        let queue_set = toe_base::QueueSetId(index as u8);
        self.engine.handle_command(now, id, queue_set, command, args, &mut self.sessions)?;
        // The next one may need a port number that this one asked for. All else is done once a round: a new listener has every listener's
        // kernel socket looked at.
        if matches!(command, Command::Connect { .. }) {
            self.serve_requests(now);
        }
        Ok(())
    }
}

impl Daemon {
    /// Does what the engine wants; before anything is sent or posted that relies on it. How many neighbours were known already.
    pub(crate) fn serve_requests(&mut self, now: Instant) -> usize {
        while let Some(channel) = self.sessions.channels.next_settled() {
            self.engine.handle_control(now, ControlEvent::ChannelSettled(channel), &mut self.sessions);
        }
        let mut served = Served::default();
        while let Some(request) = self.engine.poll_request() {
            match request {
                DriverRequest::Show(captured) => self.sessions.show(&captured),
                DriverRequest::Network(request) => {
                    self.links.serve(now, &mut self.engine, request, &mut served);
                }
                DriverRequest::Channel(request) => {
                    if let Some(event) = self.sessions.serve_channel(request) {
                        self.engine.handle_control(now, event, &mut self.sessions);
                    }
                }
            }
        }
        if !served.twins.is_empty() {
            self.hosts.server.look_at_twins(served.twins);
        }
        served.neighbours
    }

    /// The session that a connection has opened.
    pub(crate) fn session_of(&self, conn: u32) -> Result<SessionId, Errno> {
        let id = self.hosts.connections.get(conn).and_then(|connection| connection.session);
        id.filter(|&id| self.sessions.get(id).is_some()).ok_or(Errno::EINVAL)
    }
}

/// The end of a session.
impl Daemon {
    /// A session's process is gone; what it published before counts.
    pub(crate) fn end_session(&mut self, now: Instant, id: SessionId, why: &str) {
        self.catch_up(now, id);
        // And what those at the other ends of its connections did before it ended.
        let mut peers = std::mem::take(&mut self.schedule.concerned);
        self.engine.view().peers_of(id, &mut peers);
        for peer in peers.drain(..).filter(|peer| *peer != id) {
            self.catch_up(now, peer);
        }
        self.schedule.concerned = peers;
        if let Some(peer) = self.sessions.get(id).map(|session| &session.peer) {
            tracing::debug!(session = id.0, pid = peer.pid, program = peer.program, why, "session closed");
        }
        self.close_session(now, id);
    }

    /// The session's process is gone, or has broken off the contract: the engine ends its flows.
    pub(crate) fn close_session(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get(id) else { return };
        let connection = session.connection;
        self.schedule.budget.remove(session.schedule.account, id);
        self.hosts.connections.end(connection);
        self.sessions.end_capture(now, &mut self.engine, connection);
        self.senders.keep_all(now, &mut self.engine, &mut self.sessions, id);
        let left = self.engine.close_session(now, id, &mut self.sessions);
        // Who sends to it, or receives from it, hears of that by the lane's word.
        left.lanes.into_iter().for_each(|lane| self.lanes.close(lane));
        left.datagrams.into_iter().for_each(|end| self.sessions.datagrams.remove(end));
        self.via.leave(&mut self.sessions, id, left.virtual_interfaces);
        self.sessions.close(id, &self.outside.poller);
        self.anchors.leave_session_dir(id);
    }

    /// Ends `id` for `reason`: its flows are reset, its control connection is closed.
    pub(crate) fn fence(&mut self, now: Instant, id: SessionId, reason: FenceReason) {
        let Some(session) = self.sessions.get(id) else { return };
        session.mark_fenced(reason);
        if self.hosts.log_limit.allows(now) {
            let peer = &session.peer;
            tracing::warn!(
                session = id.0,
                pid = peer.pid,
                uid = peer.uid,
                program = peer.program,
                reason = reason.name(),
                "session fenced"
            );
        }
        self.engine.handle_control(now, ControlEvent::Fenced(id, reason), &mut self.sessions);
        self.close_session(now, id);
    }

    /// Fences every session with a fault that was found while the engine was posting to it.
    pub(crate) fn fence_faults(&mut self, now: Instant) {
        for (id, reason) in std::mem::take(&mut self.sessions.faults) {
            self.fence(now, id, reason);
        }
    }
}
