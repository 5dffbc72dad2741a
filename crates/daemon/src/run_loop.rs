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
use toe_base::{Instant, SessionId};

/// How often a busy engine looks at control connections, hang-ups and doorbells.
const TICK_US: u64 = 100;
/// Segments moved over the `local` port in one round.
const LOCAL_PER_ROUND: usize = 512;
/// Rounds that an ending engine gives itself to tell its peers.
const FAREWELL_ROUNDS: usize = 64;
/// Anchors looked after in one turn, and when the next turn comes at the latest.
const DOUBTS_PER_TURN: usize = 64;
const DOUBTS_AGAIN_US: u64 = 100;

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
        let segments = self.engine.poll_local(now, &mut self.sessions, LOCAL_PER_ROUND);
        self.stages.done(Stage::Local, segments);
        segments
    }

    fn exhale(&mut self, now: Instant) -> usize {
        self.steer();
        let frames = self.ports.transmit(now, &mut self.engine, &mut self.sessions, &self.poller);
        let neighbours = self.ask_neighbours();
        self.stages.done(Stage::Transmit, frames);
        self.sessions.forget_full();
        let completions = self.engine.poll_completions(&mut self.sessions);
        self.sessions.notify(now);
        self.sessions.expire_interrupts(now);
        self.fence_faults(now);
        self.forget_unread();
        self.stages.done(Stage::Completions, completions);
        self.sessions.captures.hand_on();
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
        self.sessions.doze(now);
        self.tell_load(now, false);
        looked.map(|()| happened)
    }

    /// Sleeps until something happens, unless something has happened already.
    fn park(&mut self, now: Instant) -> std::io::Result<()> {
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
        self.handle_events(now, &tokens);
        self.tokens = tokens;
        looked
    }

    fn tell_load(&mut self, now: Instant, sleeps: bool) {
        let flows = self.engine.flow_count() as u32;
        if self.meter.is_due(now, flows, sleeps) {
            self.meter.tell(&self.sessions, now, flows);
        }
    }

    /// Handles what has happened outside the rings.
    fn handle_events(&mut self, now: Instant, tokens: &[Token]) {
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
                Token::Doorbell(id) => self.wake(now, id),
                Token::Anchors(id) => self.take_closed_anchors(now, id),
                Token::Kernel => self.follow(now),
            }
        }
        self.resolve_doubts(now);
        if self.follow_later_at() <= now {
            self.follow_later(now);
        }
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
        self.take_entries_of(now, |session| !session.is_dozing())
    }

    /// Takes what any host has published.
    pub(crate) fn take_all_entries(&mut self, now: Instant) {
        self.take_entries_of(now, |_| true);
    }

    fn take_entries_of(&mut self, now: Instant, wanted: fn(&crate::session::Session) -> bool) -> usize {
        let mut entries = 0;
        let mut place = 0;
        // A session that is fenced leaves the list, so the next one moves to its place.
        while let Some(&id) = self.sessions.live().get(place) {
            if self.sessions.get(id).is_some_and(wanted) {
                entries += self.take_entries_of_session(now, id);
            }
            if self.sessions.live().get(place) == Some(&id) {
                place += 1;
            }
        }
        entries
    }

    fn take_entries_of_session(&mut self, now: Instant, id: SessionId) -> usize {
        let queue_sets = self.sessions.get(id).map_or(0, |session| session.queue_sets.len());
        let mut entries = 0;
        for index in 0..queue_sets {
            match self.take_turn(now, id, index) {
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
    fn take_turn(&mut self, now: Instant, id: SessionId, index: usize) -> Result<usize, FenceReason> {
        let session = self.sessions.get_mut(id);
        let Some(queue_set) = session.and_then(|session| session.queue_sets.get_mut(index)) else {
            return Ok(0);
        };
        if !queue_set.has_work() {
            return Ok(0);
        }
        let mut commands = std::mem::take(&mut self.commands);
        commands.clear();
        for _ in 0..CMD_ENTRIES {
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
        self.take_entries_of_session(now, id);
        self.close_session(now, id, why);
    }

    fn wake(&mut self, now: Instant, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            // An eventfd that cannot be read is the host's doing and the host's loss: it stays readable only while
            // that process lives, and costs wake-ups, nothing more.
            let _ = session.doorbell.drain();
            session.stir(now);
        }
    }

    fn take_closed_anchors(&mut self, now: Instant, id: u32) {
        let mut closed = std::mem::take(&mut self.closed_anchors);
        closed.clear();
        self.anchors.take_closed(id, &mut closed);
        // Before a descriptor was closed its holder may have published entries for it: those count first.
        self.take_all_entries(now);
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
