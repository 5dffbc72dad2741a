//! The rounds of the engine: inhale, process, exhale, tick, rest. Everything the engine does, it does in here.
//!
//! A round takes what came in (frames, entries), lets the engine work, and hands on what it made (frames,
//! completions, interrupts). Now and then it looks at what hosts want over their control connections. When nothing
//! moved it spins for some µs, then lets others run, then sleeps until something happens: idle costs nothing ([`crate::rest`]).

mod sleep;

use crate::anchors::Unwatched;
use crate::budget::{LOOKS_A_ROUND, Place, ROUND_NS, TURN_NS};
use crate::coalescing_sleeps::COALESCING_SLEEP;
use crate::control_server::pages::Interrupt;
use crate::daemon::{Daemon, Stop};
use crate::poller::Token;
use crate::rest::Advice;
use crate::stages::Stage;
use std::time::Duration;
use toe_abi::attach::FenceReason;
use toe_abi::entry::{Command, Send};
use toe_abi::region::{CMD_ENTRIES, RCV_ENTRIES, SND_ENTRIES};
use toe_base::{AnchorHandle, Instant, SessionId};
use toe_engine::{AnchorUse, ControlEvent};
use toe_ring::EngineQueueSet;
use toe_ring::queue_set::ArgBlock;

/// How often a busy engine looks at control connections, hang-ups and doorbells.
const TICK_US: u64 = 100;
/// Segments moved over the `local` port in one round, and while several users share the engine: their bytes are copied, up to
/// 64 KiB each.
const LOCAL_PER_ROUND: usize = 512;
const LOCAL_PER_SHARED_ROUND: usize = 16;
/// What a queue set's rings hold: of a host that goes on filling them no more is taken in one turn.
const ENTRIES_AT_ONCE: usize = (CMD_ENTRIES + SND_ENTRIES + RCV_ENTRIES) as usize;
/// Rounds that an ending engine gives itself to tell its peers.
const FAREWELL_ROUNDS: usize = 64;
/// So many closes of anchors that stood for nothing, and no other, are somebody who opens and closes for nothing.
const SPURIOUS_CLOSES: usize = 32;
/// Anchors looked after in one turn, and when the next turn comes at the latest.
const DOUBTS_PER_TURN: usize = 64;
const DOUBTS_AGAIN_US: u64 = 100;
/// Entries of `snd` and of `rcv` of one queue set taken in one step of its user's turn, where there are several users.
const DATA_PER_STEP: u32 = 32;
/// How long until pages that nobody needs are looked for again.
const TRIM_AGAIN_US: u64 = 1_000;

/// How the next bytes are taken: with the commands that were published before them in mind, or not.
type NextSend = fn(&mut EngineQueueSet<Interrupt>) -> Option<Result<Send, FenceReason>>;

impl Daemon {
    /// Works until the engine is told to stop.
    pub fn run(&mut self) -> std::io::Result<()> {
        while !self.is_over() {
            let now = self.clock.now();
            let moved = self.round(now);
            self.meter.round(now, moved > 0);
            self.give_way();
            if self.is_over() {
                // Asked for in this round, by who had to wait for his turn: nothing would end a sleep.
                break;
            }
            if now >= self.next_tick {
                let stirred = self.tick(now)?;
                self.stages.done(Stage::Tick, 1);
                if stirred {
                    // What came from outside (a request to stop, a program's end) wants a round before anybody sleeps:
                    // the round that advises to was before it.
                    continue;
                }
            }
            if self.coalescing_sleeps(now, moved)? {
                continue;
            }
            match self.rest.advise(now, moved) {
                Advice::Work => {}
                Advice::Spin => {
                    std::hint::spin_loop();
                    self.stages.done(Stage::Pause, 1);
                }
                Advice::Yield => self.let_others_run(now),
                Advice::CoalescingSleep => {
                    std::thread::sleep(now.until(self.next_deadline(now)).min(COALESCING_SLEEP));
                    self.stages.done(Stage::Park, 1);
                }
                Advice::Park => {
                    self.park(now)?;
                    self.stages.done(Stage::Park, 1);
                }
            }
        }
        self.farewell();
        Ok(())
    }

    /// One round; returns how much moved.
    pub(crate) fn round(&mut self, now: Instant) -> usize {
        self.stages.begin();
        self.rest.begin_round();
        let moved = self.inhale(now) + self.process(now);
        // What telling the hosts causes is not what they wait for: that would never end while they go on.
        let is_whole = self.took_all && !self.engine.view().has_local();
        let moved = moved + self.exhale(now);
        if is_whole {
            self.looks.done();
        }
        moved
    }

    fn inhale(&mut self, now: Instant) -> usize {
        let entries = self.take_entries(now);
        self.serve_deferred(now);
        let entries = entries + self.take_unsent(now) + usize::from(self.carry_on_lists(now));
        self.stages.done(Stage::Entries, entries);
        let woken = self.sessions.datagrams.begin_round(now);
        let frames = self.links.ports.receive(now, &mut self.engine, &mut self.sessions, &self.poller);
        let woken = woken + self.sessions.datagrams.look_after_waiting(now);
        self.rest.received(frames);
        self.stages.done(Stage::Receive, woken + frames);
        entries + woken + frames
    }

    pub(crate) fn take_unsent(&mut self, now: Instant) -> usize {
        let rooms = (&mut self.engine, &mut self.sessions);
        self.sending.unsent.take(now, rooms, &mut self.budget, &self.clock)
    }

    fn process(&mut self, now: Instant) -> usize {
        let due = self.engine.poll_timeout() <= now;
        if due {
            self.engine.handle_timeout(now, &mut self.sessions);
        }
        self.stages.done(Stage::Timers, usize::from(due));
        let left = self.engine.poll_closing(now, &mut self.sessions);
        let most = if self.budget.is_shared() { LOCAL_PER_SHARED_ROUND } else { LOCAL_PER_ROUND };
        let segments = left + self.engine.poll_local(now, &mut self.sessions, most);
        self.stages.done(Stage::Local, segments);
        segments + self.via.tell_some(&self.sessions)
    }

    fn exhale(&mut self, now: Instant) -> usize {
        self.serve_network(now);
        let frames = self.links.ports.transmit(now, &mut self.engine, &mut self.sessions, &self.poller);
        // Those that what was sent is for: the next round sends it.
        let neighbours = self.serve_network(now);
        self.stages.done(Stage::Transmit, frames);
        self.sessions.tell_names(self.engine.view().lapses());
        let completions = self.engine.poll_completions(&mut self.sessions);
        self.sessions.notify(now);
        self.sessions.expire_interrupts(now);
        self.sessions.find_lost_memory();
        self.fence_faults(now);
        self.stages.done(Stage::Completions, completions);
        self.sessions.captures.hand_on();
        self.sessions.ring_for_pages();
        self.anchors.ring();
        frames + neighbours + completions
    }

    /// Looks at everything outside the rings, without waiting; whether something had happened there.
    pub(crate) fn tick(&mut self, now: Instant) -> std::io::Result<bool> {
        self.next_tick = now.after_us(TICK_US);
        let mut tokens = std::mem::take(&mut self.tokens);
        let looked = self.poller.wait(Some(Duration::ZERO), &mut tokens);
        self.handle_events(now, &tokens);
        let happened = !tokens.is_empty();
        self.tokens = tokens;
        self.sessions.doze(now, &mut self.budget);
        self.trim(now);
        self.tell_load(now, false);
        looked.map(|()| happened)
    }

    fn tell_load(&mut self, now: Instant, sleeps: bool) {
        let flows = self.engine.view().totals().flows as u32;
        if self.meter.is_due(now, flows, sleeps) {
            self.sessions.publish_load(self.meter.load(now, flows));
        }
    }

    /// Handles what has happened outside the rings.
    fn handle_events(&mut self, now: Instant, tokens: &[Token]) {
        self.watchdog.iter_mut().for_each(|watchdog| watchdog.beat(now));
        for &token in tokens {
            match token {
                Token::ControlServer => self.serve_control_server(now),
                Token::Signal => self.stop = Stop::Now,
                Token::Owner => self.owner_gone(),
                Token::Port(place) => {
                    if let Some(slot) = self.links.ports.slots.get_mut(usize::from(place)) {
                        slot.stir();
                    }
                }
                Token::Process(id) => self.end_session(now, id, "process ended"),
                Token::Doorbell(id) => self.wake(now, id),
                Token::Anchors(id) => self.take_closed_anchors(now, id),
                Token::Kernel => self.links.follow(now, &mut self.engine, &self.poller),
            }
        }
        self.sessions.unmute(now, &self.poller);
        self.anchors.unmute(&self.poller, now);
        self.take_anchor_events(now);
        self.resolve_doubts(now);
        if self.links.follow_at() <= now {
            self.links.follow(now, &mut self.engine, &self.poller);
        }
        self.sessions.find_lost_memory();
        self.fence_faults(now);
        self.forget_drained_sessions();
    }

    fn is_over(&self) -> bool {
        match self.stop {
            Stop::No => false,
            Stop::WhenUnused => self.is_unused(),
            Stop::Now => true,
        }
    }

    /// Ends every session, so that peers hear of it and do not wait for an engine that is gone.
    fn farewell(&mut self) {
        let now = self.clock.now();
        for id in self.sessions.live().to_vec() {
            self.end_session(now, id, "engine stops");
        }
        for _ in 0..FAREWELL_ROUNDS {
            if self.take_unsent(now) + self.process(now) + self.exhale(now) == 0 {
                break;
            }
        }
        self.sessions.captures.end_all();
    }
}

/// Entries of hosts.
impl Daemon {
    /// Takes what hosts have published, except from sessions that sleep; returns how many entries.
    fn take_entries(&mut self, now: Instant) -> usize {
        self.sessions.tell_woken(&mut self.budget);
        self.took_all = true;
        if self.budget.is_shared() {
            return self.take_entries_in_turns(now);
        }
        let Some(alone) = self.budget.alone() else { return 0 };
        let (mut entries, mut place) = (0, 0);
        // A session that is fenced leaves the list, so the next one moves to its place.
        while let Some(id) = self.budget.session(alone, place) {
            entries += self.take_entries_of_session(now, id);
            if self.budget.session(alone, place) == Some(id) {
                place += 1;
            }
        }
        entries
    }

    /// The same among several users: who has used less goes first, until the turns of this round are over.
    fn take_entries_in_turns(&mut self, now: Instant) -> usize {
        let mut turns = std::mem::take(&mut self.turns);
        let sessions = &self.sessions;
        self.budget.begin_round(&mut turns, |id| sessions.get(id).is_some_and(|session| session.has_work()));
        let (mut entries, mut spent_ns) = (0, 0);
        for &place in &turns {
            if spent_ns >= ROUND_NS {
                self.took_all = false;
                break;
            }
            let (taken, ns) = self.take_turn_of(now, place);
            entries += taken;
            spent_ns += ns;
        }
        self.turns = turns;
        entries
    }

    /// Takes entries of an account's sessions, some of each, until its turn is over. How many, and how long that took.
    fn take_turn_of(&mut self, now: Instant, place: Place) -> (usize, u64) {
        let began = self.clock.nanos();
        let (mut entries, mut served, mut in_vain, mut ns) = (0, 0, 0, 0);
        let mut is_done = false;
        while ns < TURN_NS && in_vain < LOOKS_A_ROUND {
            // Past the last one comes the first again; all of them were in vain: there is nothing more.
            let Some(id) = self.budget.session(place, served) else {
                is_done = served == 0 || in_vain >= served;
                if is_done {
                    break;
                }
                self.budget.pass(place, served);
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
            ns = self.clock.nanos() - began;
        }
        self.took_all &= is_done;
        self.budget.pass(place, served);
        self.budget.charge(self.budget.cred(place), ns);
        (entries, ns)
    }

    /// Takes what the session has published so far, all of it: something is about to happen that comes after that.
    pub(crate) fn catch_up(&mut self, now: Instant, id: SessionId) -> usize {
        self.take_entries_of_session(now, id)
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
        let mut concerned = std::mem::take(&mut self.concerned);
        concerned.clear();
        anchors.iter().for_each(|anchor| self.engine.view().sessions_at(*anchor, &mut concerned));
        for id in concerned.drain(..) {
            self.catch_up(now, id);
        }
        self.concerned = concerned;
    }

    fn take_entries_of_session(&mut self, now: Instant, id: SessionId) -> usize {
        let entries = self.each_queue_set(now, id, Daemon::take_all);
        entries + self.take_datagrams_stirring(now, id)
    }

    /// Some entries of each queue set and one command at most: a few µs.
    pub(crate) fn take_some_of_session(&mut self, now: Instant, id: SessionId) -> usize {
        let entries = self.each_queue_set(now, id, Daemon::take_some);
        entries + self.take_datagrams_stirring(now, id)
    }

    fn take_datagrams_stirring(&mut self, now: Instant, id: SessionId) -> usize {
        let taken = self.sending.take_some(now, &mut self.engine, &mut self.sessions, id);
        if taken > 0 {
            self.sessions.stir(id, now);
            if let Some(session) = self.sessions.get_mut(id) {
                session.was_served = true;
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
            if !self.queue_set(id, index).is_some_and(|queue_set| queue_set.has_work()) {
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
                session.was_served = true;
            }
        }
        entries
    }

    fn queue_set(&mut self, id: SessionId, index: usize) -> Option<&mut EngineQueueSet<Interrupt>> {
        self.sessions.get_mut(id)?.queue_sets.get_mut(index)
    }

    /// All that a queue set has. Entries of `snd` and `rcv` that were published before a command count before it, and those of `snd` that
    /// were published after it count after it.
    fn take_all(&mut self, now: Instant, id: SessionId, index: usize) -> Result<usize, FenceReason> {
        let most = SND_ENTRIES.max(RCV_ENTRIES);
        let commands = self.queue_set(id, index).map_or(0, |queue_set| queue_set.commands());
        let mut entries = self.take_data(now, id, index, most, EngineQueueSet::pop_send)?.0;
        for _ in 0..commands {
            let Some(queue_set) = self.queue_set(id, index) else { return Ok(entries) };
            let Some(command) = queue_set.pop_command() else { break };
            let has_more = queue_set.has_send();
            let (command, args) = command?;
            self.carry_out(now, id, index, command, &args)?;
            entries += 1;
            if has_more && entries < ENTRIES_AT_ONCE {
                entries += self.take_data(now, id, index, most, EngineQueueSet::pop_send)?.0;
            }
        }
        if let Some(queue_set) = self.queue_set(id, index).filter(|_| commands > 0) {
            queue_set.publish_heads();
        }
        Ok(entries)
    }

    /// Some of it. The command is seen first and taken last: not before all that was published before it.
    fn take_some(&mut self, now: Instant, id: SessionId, index: usize) -> Result<usize, FenceReason> {
        let has_command = self.queue_set(id, index).is_some_and(|queue_set| queue_set.has_command());
        let (data, is_all) = self.take_data(now, id, index, DATA_PER_STEP, EngineQueueSet::pop_send)?;
        if !has_command || !is_all {
            return Ok(data);
        }
        let Some(queue_set) = self.queue_set(id, index) else { return Ok(data) };
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
        self.rest.took_credit(credits as usize);
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
        if let Some((flow, peer)) = self.engine.view().counts_after(id, command) {
            self.catch_up_data(now, peer);
            self.engine.deliver_earlier(now, id, flow, &mut self.sessions);
        }
        let queue_set = toe_base::QueueSetId(index as u8);
        self.engine.handle_command(now, id, queue_set, command, args, &mut self.sessions)?;
        // The next one may need a port number that this one asked for. All else is done once a round: a new listener has every listener's
        // kernel socket looked at.
        if matches!(command, Command::Connect { .. }) {
            self.serve_network(now);
        }
        Ok(())
    }
}

/// Events from outside the rings.
impl Daemon {
    /// A session's process is gone; what it published before counts.
    pub(crate) fn end_session(&mut self, now: Instant, id: SessionId, why: &str) {
        self.catch_up(now, id);
        // And what those at the other ends of its connections did before it ended.
        let mut peers = std::mem::take(&mut self.concerned);
        self.engine.view().peers_of(id, &mut peers);
        for peer in peers.drain(..).filter(|peer| *peer != id) {
            self.catch_up(now, peer);
        }
        self.concerned = peers;
        self.close_session(now, id, why);
    }

    /// A doorbell was rung. Those of an account's that are rung for nothing again and again are not heard for a while: be the
    /// engine asleep, which they wake, or awake, as each costs it a system call.
    pub(crate) fn wake(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        // What it was rung for may have been found before.
        let was_served = std::mem::take(&mut session.was_served);
        if was_served || session.has_work() || session.has_new_room() {
            self.sessions.stir(id, now);
            return;
        }
        if self.budget.rings_too_often(session.account, now) {
            self.poller.set_quiet(&session.doorbell, Token::Doorbell(id), true);
            self.sessions.mute(id, now);
        }
        self.sessions.doze_on(id, now);
    }

    /// Pages that programs' data was in and is no more go back to the system, a few at a time.
    fn trim(&mut self, now: Instant) {
        if now >= self.trim_at {
            self.engine.poll_trim(now, &mut self.sessions);
            self.sessions.ring_for_pages();
            self.trim_at = now.after_us(TRIM_AGAIN_US);
        }
    }

    /// Ends what hung on anchors that were closed. Whoever closes so many that it takes his turn waits for the next one; the
    /// kernel keeps his reports until then.
    fn take_closed_anchors(&mut self, now: Instant, id: u32) {
        let cred = self.anchors.cred_of(id).filter(|cred| self.budget.is_shared_beside(*cred));
        if cred.is_some_and(|cred| !self.budget.may_go(cred)) {
            return;
        }
        let before = cred.map(|cred| (cred, self.clock.nanos()));
        let mut closed = std::mem::take(&mut self.closed_anchors);
        closed.clear();
        self.anchors.take_closed(id, &mut closed);
        // Before a descriptor was closed its holder may have published entries for it: those count first.
        self.catch_up_at(now, &closed);
        if closed.len() >= SPURIOUS_CLOSES
            && closed.iter().all(|anchor| self.engine.view().anchor_use(*anchor) == AnchorUse::Unused)
        {
            self.anchors.mute(&self.poller, id, now);
        }
        for anchor in closed.drain(..) {
            self.anchor_closed(now, anchor);
        }
        self.closed_anchors = closed;
        if let Some((cred, before)) = before {
            self.budget.charge(cred, self.clock.nanos() - before);
        }
    }

    /// Takes what users' threads have found out about their anchors.
    fn take_anchor_events(&mut self, now: Instant) {
        self.anchors.take_events();
        while let Some(Unwatched { handle, closed }) = self.anchors.next_unwatched() {
            if self.anchors.is_left(handle) {
                tracing::warn!("a shared socket is lost: raise fs.inotify.max_user_watches");
                self.anchors.remove(handle);
                self.engine.handle_control(now, ControlEvent::LastClose(handle), &mut self.sessions);
                continue;
            }
            // It is still reported by name, for which the first session has to be trusted.
            tracing::warn!("an anchor cannot be watched by itself: raise fs.inotify.max_user_watches");
            if closed {
                self.anchor_closed(now, handle);
            }
        }
    }

    /// Looks after some anchors whose session is gone or whose end may have gone unreported.
    fn resolve_doubts(&mut self, now: Instant) {
        for _ in 0..DOUBTS_PER_TURN.min(self.anchors.doubts()) {
            let Some(anchor) = self.anchors.next_doubtful() else { break };
            let left = self.anchors.is_left(anchor);
            match self.engine.view().anchor_use(anchor) {
                AnchorUse::Unused | AnchorUse::Over if left => self.anchors.remove(anchor),
                AnchorUse::Unused => {}
                // Its host opens it only once it is connected, and then it must still have a name.
                AnchorUse::Opening if !left => self.anchors.doubt(anchor),
                _ => self.share_anchor(now, anchor),
            }
        }
    }

    /// Whoever started this private engine has ended.
    fn owner_gone(&mut self) {
        // Closed here, or it would report its end for ever.
        self.owner = None;
        if self.stop == Stop::No {
            self.stop = Stop::WhenUnused;
        }
    }
}
