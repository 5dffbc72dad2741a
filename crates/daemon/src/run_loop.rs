//! The rounds of the engine: inhale, process, exhale, tick, rest. Everything the engine does, it does in here.
//!
//! A round takes what came in (frames, entries), lets the engine work, and hands on what it made (frames,
//! completions, interrupts). Now and then it looks at what hosts want over their control connections. When nothing
//! moved it spins for some µs, then lets others run, then sleeps until something happens: idle costs nothing.

use crate::daemon::{Daemon, Stop};
use crate::poller::Token;
use crate::rest::Advice;
use crate::stages::Stage;
use std::time::Duration;
use toe_abi::attach::FenceReason;
use toe_abi::entry::Command;
use toe_abi::region::{CMD_ENTRIES, RCV_ENTRIES, SND_ENTRIES};
use toe_base::{AnchorHandle, Instant, SessionId};

/// How often a busy engine looks at control connections, hang-ups and doorbells.
const TICK_US: u64 = 100;
/// Segments moved over the `local` port in one round.
const LOCAL_PER_ROUND: usize = 512;
/// Rounds that an ending engine gives itself to tell its peers.
const FAREWELL_ROUNDS: usize = 64;
/// Anchors looked after in one turn, and when the next turn comes at the latest.
const DOUBTS_PER_TURN: usize = 64;
const DOUBTS_AGAIN_US: u64 = 100;
/// Commands of one queue set carried out in one turn of its user, where there are several users. (Of the other entries all
/// are taken: those that were published before a command come before it.)
const COMMANDS_PER_TURN: usize = 16;
/// How long until pages that nobody needs are looked for again.
const TRIM_AGAIN_US: u64 = 1_000;

impl Daemon {
    /// Works until the engine is told to stop.
    pub fn run(&mut self) -> std::io::Result<()> {
        while !self.is_over() {
            let now = self.clock.now();
            let moved = self.round(now);
            self.meter.round(now, moved > 0);
            if now >= self.next_tick {
                let stirred = self.tick(now)?;
                self.stages.done(Stage::Tick, 1);
                if stirred {
                    // What came from outside (a request to stop, a program's end) wants a round before anybody sleeps:
                    // the round that advises to was before it.
                    continue;
                }
            }
            match self.rest.advise(now, moved) {
                Advice::Work => {}
                Advice::Spin => {
                    std::hint::spin_loop();
                    self.stages.done(Stage::Pause, 1);
                }
                Advice::Yield => self.let_others_run(now),
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
        self.inhale(now) + self.process(now) + self.exhale(now)
    }

    fn let_others_run(&mut self, before: Instant) {
        rustix::thread::sched_yield();
        self.rest.yielded(before, self.clock.now());
        self.stages.done(Stage::Pause, 1);
    }

    fn inhale(&mut self, now: Instant) -> usize {
        let entries = self.take_entries(now);
        self.serve_deferred(now);
        self.stages.done(Stage::Entries, entries);
        let frames = self.ports.receive(now, &mut self.engine, &mut self.sessions, &self.poller);
        self.stages.done(Stage::Receive, frames);
        entries + frames
    }

    fn process(&mut self, now: Instant) -> usize {
        let due = self.engine.poll_timeout() <= now;
        if due {
            self.engine.handle_timeout(now, &mut self.sessions);
        }
        self.stages.done(Stage::Timers, usize::from(due));
        let left = self.engine.poll_closing(now, &mut self.sessions);
        let segments = left + self.engine.poll_local(now, &mut self.sessions, LOCAL_PER_ROUND);
        self.stages.done(Stage::Local, segments);
        segments
    }

    fn exhale(&mut self, now: Instant) -> usize {
        self.steer();
        let frames = self.ports.transmit(now, &mut self.engine, &mut self.sessions, &self.poller);
        let neighbours = self.ask_neighbours();
        self.stages.done(Stage::Transmit, frames);
        let completions = self.engine.poll_completions(&mut self.sessions);
        self.sessions.notify(now);
        self.sessions.expire_interrupts(now);
        self.find_lost_memory();
        self.fence_faults(now);
        self.forget_unread();
        self.stages.done(Stage::Completions, completions);
        self.sessions.captures.hand_on();
        self.sessions.ring_for_pages();
        frames + neighbours + completions
    }

    /// Looks at everything outside the rings, without waiting; whether something had happened there.
    pub(crate) fn tick(&mut self, now: Instant) -> std::io::Result<bool> {
        self.next_tick = now.after_us(TICK_US);
        let mut tokens = std::mem::take(&mut self.tokens);
        let looked = self.poller.wait(Some(Duration::ZERO), &mut tokens);
        self.handle_events(now, &tokens, false);
        let happened = !tokens.is_empty();
        self.tokens = tokens;
        self.sessions.doze(now);
        self.trim(now);
        self.tell_load(now, false);
        looked.map(|()| happened)
    }

    /// Sleeps until something happens, unless something has happened already.
    fn park(&mut self, now: Instant) -> std::io::Result<()> {
        // Nothing else may call for a long time.
        self.forget_drained_sessions();
        let deadline = self.next_deadline(now);
        if deadline <= now {
            return Ok(());
        }
        self.rest.parked(now);
        self.tell_load(now, true);
        self.counts.parks += 1;
        let sleep = self.sessions.announce_sleep();
        // A host that published before it could see the announcement does not ring: look once more.
        let timeout = if self.sessions.need_engine() {
            Some(Duration::ZERO)
        } else if deadline.is_far_future() {
            None
        } else {
            Some(now.until(deadline))
        };
        let mut tokens = std::mem::take(&mut self.tokens);
        let looked = self.poller.wait(timeout, &mut tokens);
        self.sessions.end_sleep(sleep);
        let now = self.clock.now();
        self.next_tick = now.after_us(TICK_US);
        self.handle_events(now, &tokens, timeout != Some(Duration::ZERO));
        self.tokens = tokens;
        looked
    }

    fn tell_load(&mut self, now: Instant, sleeps: bool) {
        let flows = self.engine.flow_count() as u32;
        if self.meter.is_due(now, flows, sleeps) {
            self.meter.tell(&self.sessions, now, flows);
        }
    }

    /// Handles what has happened outside the rings; `slept`: the engine was asleep until then.
    fn handle_events(&mut self, now: Instant, tokens: &[Token], slept: bool) {
        for &token in tokens {
            match token {
                Token::Porter => self.serve_porter(now),
                Token::Signal => self.stop = Stop::Now,
                Token::Owner => self.owner_gone(),
                Token::Port(place) => {
                    if let Some(slot) = self.ports.slots.get_mut(usize::from(place)) {
                        slot.stir();
                    }
                }
                Token::Process(id) => self.end_session(now, id, "process ended"),
                Token::Doorbell(id) => self.wake(now, id, slept),
                Token::Anchors(id) => self.take_closed_anchors(now, id),
                Token::Kernel => self.follow(now),
            }
        }
        self.sessions.unmute(now, &self.poller);
        self.resolve_doubts(now);
        if self.follow_later_at() <= now {
            self.follow_later(now);
        }
        self.find_lost_memory();
        self.fence_faults(now);
        self.forget_unread();
        self.forget_drained_sessions();
    }

    /// The next time at which there is something to do even if nothing comes in.
    fn next_deadline(&self, now: Instant) -> Instant {
        let doubts = self.anchors.doubts() > 0;
        let doubts_again = if doubts { now.after_us(DOUBTS_AGAIN_US) } else { Instant::FAR_FUTURE };
        self.engine
            .poll_timeout()
            .min(doubts_again)
            .min(self.ports.deadline(now))
            .min(self.sessions.next_interrupt())
            .min(self.sessions.next_unmute())
            .min(if self.engine.has_trims() { self.trim_at } else { Instant::FAR_FUTURE })
            .min(if self.deferred.is_empty() { Instant::FAR_FUTURE } else { now })
            .min(self.follow_later_at())
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
            if self.process(now) + self.exhale(now) == 0 {
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
        if self.budget.is_shared() {
            return self.take_entries_in_turns(now);
        }
        let mut entries = 0;
        let mut place = 0;
        // A session that is fenced leaves the list, so the next one moves to its place.
        while let Some(&id) = self.sessions.live().get(place) {
            if self.sessions.get(id).is_some_and(|session| !session.is_dozing()) {
                entries += self.take_entries_of_session(now, id, CMD_ENTRIES as usize);
            }
            if self.sessions.live().get(place) == Some(&id) {
                place += 1;
            }
        }
        entries
    }

    /// The same among several users: each has his turn.
    fn take_entries_in_turns(&mut self, now: Instant) -> usize {
        self.budget.begin_round();
        let mut entries = self.take_turns(now);
        if entries == 0 && !self.waiting.is_empty() {
            self.budget.skip_rounds(&self.waiting);
            entries = self.take_turns(now);
        }
        entries
    }

    /// Gives each user who may go a turn, and notes in `waiting` who may not and has something to do.
    fn take_turns(&mut self, now: Instant) -> usize {
        self.waiting.clear();
        let (mut entries, mut place) = (0, 0);
        while let Some(uid) = self.budget.user(place) {
            if self.budget.may_go(uid) {
                entries += self.take_turn_of(now, uid);
            } else if self.has_entries(uid) {
                self.waiting.push(uid);
            }
            // With his last session, fenced, a user leaves the order, and the next one moves to his place.
            if self.budget.user(place) == Some(uid) {
                place += 1;
            }
        }
        entries
    }

    /// Takes the entries of a user's sessions one by one until that took as long as he may.
    fn take_turn_of(&mut self, now: Instant, uid: u32) -> usize {
        let (mut entries, mut served) = (0, 0);
        let mut began = None;
        while let Some(id) = self.budget.session(uid, served) {
            served += 1;
            if !self.sessions.get(id).is_some_and(|session| !session.is_dozing() && session.has_work()) {
                continue;
            }
            let before = began.unwrap_or_else(|| self.clock.nanos());
            entries += self.take_entries_of_session(now, id, COMMANDS_PER_TURN);
            let after = self.clock.nanos();
            began = Some(after);
            if !self.budget.charge(uid, after - before) {
                break;
            }
        }
        self.budget.pass(uid, served);
        entries
    }

    fn has_entries(&self, uid: u32) -> bool {
        let sessions = (0..).map_while(|place| self.budget.session(uid, place));
        sessions
            .filter_map(|id| self.sessions.get(id))
            .any(|session| !session.is_dozing() && session.has_work())
    }

    /// Takes what the session has published so far, all of it: something is about to happen that comes after that.
    pub(crate) fn catch_up(&mut self, now: Instant, id: SessionId) -> usize {
        self.take_entries_of_session(now, id, CMD_ENTRIES as usize)
    }

    /// The same for all sessions whose entries may be about what an anchor stands for.
    pub(crate) fn catch_up_at(&mut self, now: Instant, anchors: &[AnchorHandle]) {
        let mut concerned = std::mem::take(&mut self.concerned);
        concerned.clear();
        anchors.iter().for_each(|anchor| self.engine.sessions_at(*anchor, &mut concerned));
        for id in concerned.drain(..) {
            self.catch_up(now, id);
        }
        self.concerned = concerned;
    }

    /// At most so many commands of each queue set are carried out.
    fn take_entries_of_session(&mut self, now: Instant, id: SessionId, commands_max: usize) -> usize {
        let queue_sets = self.sessions.get(id).map_or(0, |session| session.queue_sets.len());
        let mut entries = 0;
        for index in 0..queue_sets {
            match self.take_turn(now, id, index, commands_max) {
                Ok(taken) => entries += taken,
                Err(reason) => {
                    self.fence(now, id, reason);
                    return entries + 1;
                }
            }
        }
        if entries > 0
            && let Some(session) = self.sessions.get_mut(id)
        {
            session.stir(now);
        }
        entries
    }

    /// One queue set's turn. Commands are taken first and executed last, so that every entry of `snd` and `rcv` that
    /// was published before a command counts before it.
    fn take_turn(
        &mut self,
        now: Instant,
        id: SessionId,
        index: usize,
        commands_max: usize,
    ) -> Result<usize, FenceReason> {
        let session = self.sessions.get_mut(id);
        let Some(queue_set) = session.and_then(|session| session.queue_sets.get_mut(index)) else {
            return Ok(0);
        };
        if !queue_set.has_work() {
            return Ok(0);
        }
        let mut commands = std::mem::take(&mut self.commands);
        commands.clear();
        for _ in 0..commands_max {
            let Some(command) = queue_set.pop_command() else { break };
            commands.push(command?);
        }
        let mut entries = commands.len();
        for _ in 0..SND_ENTRIES {
            let Some(send) = queue_set.pop_send() else { break };
            self.engine.handle_send(now, id, send?)?;
            entries += 1;
        }
        for _ in 0..RCV_ENTRIES {
            let Some(credit) = queue_set.pop_credit() else { break };
            self.engine.handle_credit(now, id, credit?)?;
            entries += 1;
        }
        queue_set.publish_heads();
        let queue_set = toe_base::QueueSetId(index as u8);
        for (command, args) in &commands {
            if let Command::Close { flow, abort } = *command
                && self.engine.anchor_of(id, flow).is_some()
            {
                // Its last close ends the flow, whoever else has a copy.
                self.engine.close_with_anchor(now, id, flow, abort, &mut self.sessions);
                continue;
            }
            self.engine.handle_command(now, id, queue_set, *command, args, &mut self.sessions)?;
            self.reserve_ports();
        }
        self.commands = commands;
        Ok(entries)
    }
}

/// Events from outside the rings.
impl Daemon {
    /// A session's process is gone; what it published before counts.
    pub(crate) fn end_session(&mut self, now: Instant, id: SessionId, why: &str) {
        self.catch_up(now, id);
        self.close_session(now, id, why);
    }

    /// A doorbell was rung. One that gets the engine up for nothing again and again is not heard for a while.
    pub(crate) fn wake(&mut self, now: Instant, id: SessionId, slept: bool) {
        if let Some(session) = self.sessions.get_mut(id) {
            // An eventfd that cannot be read is the host's doing and the host's loss: it stays readable only while
            // that process lives, and costs wake-ups, nothing more.
            let _ = session.doorbell.drain();
            let idle = slept && !session.has_work() && session.full == 0;
            session.stir(now);
            if idle && session.rings_too_often(now) {
                self.poller.remove(&session.doorbell);
                self.sessions.mute(id, now);
            }
        }
    }

    /// Pages that programs' data was in and is no more go back to the system, a few at a time.
    fn trim(&mut self, now: Instant) {
        if now >= self.trim_at {
            self.engine.poll_trim(now, &mut self.sessions);
            self.sessions.ring_for_pages();
            self.trim_at = now.after_us(TRIM_AGAIN_US);
        }
    }

    fn take_closed_anchors(&mut self, now: Instant, id: u32) {
        let mut closed = std::mem::take(&mut self.closed_anchors);
        closed.clear();
        self.anchors.take_closed(id, &mut closed);
        // Before a descriptor was closed its holder may have published entries for it: those count first.
        self.catch_up_at(now, &closed);
        for anchor in closed.drain(..) {
            self.anchor_closed(now, anchor);
        }
        self.closed_anchors = closed;
    }

    /// Looks after some anchors whose session is gone or whose end may have gone unreported.
    fn resolve_doubts(&mut self, now: Instant) {
        for _ in 0..DOUBTS_PER_TURN.min(self.anchors.doubts()) {
            let Some(anchor) = self.anchors.next_doubtful() else { break };
            let left = self.anchors.is_left(anchor);
            if !self.engine.anchor_stands(anchor) {
                if left {
                    self.anchors.remove(anchor);
                } else if !self.engine.anchor_is_unused(anchor) {
                    self.share_anchor(anchor);
                }
            } else if !left && self.engine.anchor_connects(anchor) {
                // Its host opens it only once it is connected, and then it must still have a name.
                self.anchors.doubt(anchor);
            } else if left && !self.anchors.remove_name(anchor) {
                tracing::warn!("a shared socket is lost: raise fs.inotify.max_user_watches");
                self.anchors.remove(anchor);
                self.engine.anchor_closed(now, anchor, &mut self.sessions);
            } else if !left {
                self.share_anchor(anchor);
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
