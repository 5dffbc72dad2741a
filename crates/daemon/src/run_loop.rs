//! The rounds of the engine: inhale, process, exhale, tick, rest. Everything the engine does, it does in here.
//!
//! A round takes what came in (frames, entries), lets the engine work, and hands on what it made (frames,
//! completions, interrupts). Now and then it looks at what hosts want over their control connections. When nothing
//! moved it spins for some µs, then lets others run, then sleeps until something happens: idle costs nothing ([`crate::rest`]).

mod sleep;

use crate::coalescing_sleeps::COALESCING_SLEEP;
use crate::daemon::Daemon;
use crate::outside::Stop;
use crate::poller::Token;
use crate::reports::ListStep;
use crate::rest::Advice;
use crate::stages::Stage;
use std::time::Duration;
use toe_base::Instant;
use toe_engine::AnchorUse;

/// How long ports are left alone while datagrams gather.
const COALESCING_SLEEP_US: u64 = 50;
/// How often a busy engine looks at control connections, hang-ups and doorbells.
const TICK_US: u64 = 100;
/// Segments moved over the `local` port in one round, and while several users share the engine: their bytes are copied, up to
/// 64 KiB each.
const LOCAL_PER_ROUND: usize = 512;
const LOCAL_PER_SHARED_ROUND: usize = 16;
/// Rounds that an ending engine gives itself to tell its peers.
const FAREWELL_ROUNDS: usize = 64;
/// So many closes of anchors that stood for nothing, and no other, are somebody who opens and closes for nothing.
const SPURIOUS_CLOSES: usize = 32;
/// How long until pages that nobody needs are looked for again.
const TRIM_AGAIN_US: u64 = 1_000;

impl Daemon {
    /// Begins to follow the kernel, after all links are open. Returns once all that is there is known.
    pub fn follow_kernel(&mut self) -> std::io::Result<()> {
        let now = self.timing.clock.now();
        self.links.begin(now, &mut self.engine, &self.outside.poller)?;
        self.serve_requests(now);
        Ok(())
    }

    /// Works until the engine is told to stop.
    pub fn run(&mut self) -> std::io::Result<()> {
        while !self.outside.is_over(self.is_unused()) {
            let now = self.timing.clock.now();
            let moved = self.round(now);
            self.timing.meter.round(now, moved > 0);
            self.give_way();
            if self.outside.is_over(self.is_unused()) {
                // Asked for in this round, by who had to wait for his turn: nothing would end a sleep.
                break;
            }
            if now >= self.timing.next_tick {
                let stirred = self.tick(now)?;
                self.timing.stages.done(Stage::Tick, 1);
                if stirred {
                    // What came from outside (a request to stop, a program's end) wants a round before anybody sleeps:
                    // the round that advises to was before it.
                    continue;
                }
            }
            if self.coalescing_sleeps(now, moved)? {
                continue;
            }
            match self.timing.rest.advise(now, moved) {
                Advice::Work => {}
                Advice::Spin => {
                    std::hint::spin_loop();
                    self.timing.stages.done(Stage::Pause, 1);
                }
                Advice::Yield => self.timing.let_others_run(now),
                Advice::CoalescingSleep => {
                    std::thread::sleep(now.until(self.next_deadline(now)).min(COALESCING_SLEEP));
                    self.timing.stages.done(Stage::Park, 1);
                }
                Advice::Park => {
                    self.park(now)?;
                    self.timing.stages.done(Stage::Park, 1);
                }
            }
        }
        self.farewell();
        Ok(())
    }

    /// One round; returns how much moved.
    pub(crate) fn round(&mut self, now: Instant) -> usize {
        self.timing.stages.begin();
        self.timing.rest.begin_round();
        let moved = self.inhale(now) + self.process(now);
        // What telling the hosts causes is not what they wait for: that would never end while they go on.
        let is_whole = self.schedule.took_all && !self.engine.view().has_local();
        let moved = moved + self.exhale(now);
        if is_whole {
            self.timing.looks.done();
        }
        moved
    }

    fn inhale(&mut self, now: Instant) -> usize {
        let entries = self.take_entries(now);
        self.serve_deferred(now);
        let entries = entries + self.take_unsent(now) + usize::from(self.carry_on_lists(now));
        self.timing.stages.done(Stage::Entries, entries);
        let woken = self.sessions.datagrams.begin_round(now);
        let frames =
            self.links.ports.receive(now, &mut self.engine, &mut self.sessions, &self.outside.poller);
        let woken = woken + self.sessions.datagrams.look_after_waiting(now);
        self.timing.rest.received(frames);
        self.timing.stages.done(Stage::Receive, woken + frames);
        entries + woken + frames
    }

    /// One step of a list of sockets. Whether there is one.
    pub(crate) fn carry_on_lists(&mut self, now: Instant) -> bool {
        let rooms = (&self.engine, &self.sessions, &self.links.ports);
        match self.reports.carry_on(
            now,
            rooms,
            &self.hosts.policy,
            &mut self.schedule.budget,
            &self.timing.clock,
        ) {
            ListStep::Nothing => false,
            ListStep::On => true,
            ListStep::Made(conn, answer) => {
                self.reply(now, conn, answer);
                true
            }
        }
    }

    pub(crate) fn take_unsent(&mut self, now: Instant) -> usize {
        let rooms = (&mut self.engine, &mut self.sessions);
        self.senders.unsent.take(now, rooms, &mut self.schedule.budget, &self.timing.clock)
    }

    fn process(&mut self, now: Instant) -> usize {
        let due = self.engine.poll_timeout() <= now;
        if due {
            self.engine.handle_timeout(now, &mut self.sessions);
        }
        self.timing.stages.done(Stage::Timers, usize::from(due));
        let most = if self.schedule.budget.is_shared() { LOCAL_PER_SHARED_ROUND } else { LOCAL_PER_ROUND };
        let segments = self.engine.poll_local(now, &mut self.sessions, most);
        self.timing.stages.done(Stage::Local, segments);
        segments + self.via.tell_some(&self.sessions)
    }

    fn exhale(&mut self, now: Instant) -> usize {
        self.serve_requests(now);
        let frames =
            self.links.ports.transmit(now, &mut self.engine, &mut self.sessions, &self.outside.poller);
        // Those that what was sent is for: the next round sends it.
        let neighbours = self.serve_requests(now);
        self.timing.stages.done(Stage::Transmit, frames);
        self.sessions.tell_names(self.engine.view().lapses());
        let completions = self.sessions.post_completions(&mut self.engine);
        self.sessions.notify(now);
        self.sessions.expire_interrupts(now);
        self.sessions.find_lost_memory();
        self.fence_faults(now);
        self.timing.stages.done(Stage::Completions, completions);
        self.sessions.captures.hand_on();
        self.sessions.ring_for_pages();
        self.anchors.ring();
        frames + neighbours + completions
    }

    /// Looks at everything outside the rings, without waiting; whether something had happened there.
    pub(crate) fn tick(&mut self, now: Instant) -> std::io::Result<bool> {
        let looked = self.outside.poller.wait(Some(Duration::ZERO), &mut self.outside.tokens);
        let happened = !self.outside.tokens.is_empty();
        self.handle_events(now);
        self.sessions.doze(now, &mut self.schedule.budget);
        // Pages that programs' data was in and is no more go back to the system, a few at a time.
        if now >= self.timing.trim_at {
            self.engine.poll_trim(now, &mut self.sessions);
            self.sessions.ring_for_pages();
            self.timing.trim_at = now.after_us(TRIM_AGAIN_US);
        }
        self.tell_load(now, false);
        looked.map(|()| happened)
    }

    fn tell_load(&mut self, now: Instant, sleeps: bool) {
        let flows = self.engine.view().totals().flows as u32;
        if self.timing.meter.is_due(now, flows, sleeps) {
            self.sessions.publish_load(self.timing.meter.load(now, flows));
        }
    }

    /// Sleeps until something happens, unless something has happened already.
    fn park(&mut self, now: Instant) -> std::io::Result<()> {
        // Nothing else may call for a long time.
        self.sessions.forget_drained(&mut self.engine);
        self.links.ports.set_quiet(&self.outside.poller, false);
        let deadline = self.next_deadline(now);
        if deadline <= now {
            return Ok(());
        }
        self.timing.rest.parked(now);
        self.tell_load(now, true);
        self.hosts.counts.parks += 1;
        self.sleep_until(now, deadline)
    }

    /// Sleeps for some µs if they are, unless something happens; that frames come does not count.
    fn coalescing_sleeps(&mut self, now: Instant, moved: usize) -> std::io::Result<bool> {
        if !self.lets_gather(now, moved) {
            return Ok(false);
        }
        self.links.ports.set_quiet(&self.outside.poller, true);
        let deadline = self.next_deadline(now).min(now.after_us(COALESCING_SLEEP_US));
        // However often it sleeps, the rest is looked at in its time.
        let next_tick = self.timing.next_tick;
        let slept = if deadline <= now { Ok(()) } else { self.sleep_until(now, deadline) };
        self.timing.next_tick = next_tick;
        self.timing.stages.done(Stage::Park, 1);
        slept.map(|()| true)
    }

    fn sleep_until(&mut self, now: Instant, deadline: Instant) -> std::io::Result<()> {
        let looked = self.sleep(now, deadline);
        self.handle_events(self.timing.clock.now());
        looked
    }

    /// Handles what has happened outside the rings.
    fn handle_events(&mut self, now: Instant) {
        self.timing.next_tick = now.after_us(TICK_US);
        let tokens = std::mem::take(&mut self.outside.tokens);
        self.outside.watchdog.iter_mut().for_each(|watchdog| watchdog.beat(now));
        for &token in &tokens {
            match token {
                Token::ControlServer => self.serve_control_server(now),
                Token::Signal => self.outside.stop = Stop::Now,
                Token::Owner => self.outside.owner_gone(),
                Token::Port(index) => {
                    if let Some(slot) = self.links.ports.slots.get_mut(usize::from(index)) {
                        slot.stir();
                    }
                }
                Token::Process(id) => self.end_session(now, id, "process ended"),
                Token::Doorbell(id) => {
                    self.sessions.rung(now, id, &mut self.schedule.budget, &self.outside.poller)
                }
                Token::Anchors(id) => self.take_closed_anchors(now, id),
                Token::Kernel => self.links.follow(now, &mut self.engine, &self.outside.poller),
            }
        }
        self.outside.tokens = tokens;
        self.sessions.unmute(now, &self.outside.poller);
        self.anchors.unmute(&self.outside.poller, now);
        self.anchors.settle(now, &mut self.engine, &mut self.sessions);
        if self.links.follow_at() <= now {
            self.links.follow(now, &mut self.engine, &self.outside.poller);
        }
        self.sessions.find_lost_memory();
        self.fence_faults(now);
        self.sessions.forget_drained(&mut self.engine);
    }

    /// Ends every session, so that peers hear of it and do not wait for an engine that is gone.
    fn farewell(&mut self) {
        let now = self.timing.clock.now();
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

    /// Ends what hung on anchors that were closed. Whoever closes so many that it takes his turn waits for the next one; the
    /// kernel keeps his reports until then.
    fn take_closed_anchors(&mut self, now: Instant, id: u32) {
        let cred = self.anchors.cred_of(id).filter(|cred| self.schedule.budget.is_shared_with_others(*cred));
        if cred.is_some_and(|cred| !self.schedule.budget.may_go(cred)) {
            return;
        }
        let before = cred.map(|cred| (cred, self.timing.clock.nanos()));
        let mut closed = std::mem::take(&mut self.schedule.closed_anchors);
        closed.clear();
        self.anchors.take_closed(id, &mut closed);
        // Before a descriptor was closed its holder may have published entries for it: those count first.
        self.catch_up_at(now, &closed);
        if closed.len() >= SPURIOUS_CLOSES
            && closed.iter().all(|anchor| self.engine.view().anchor_use(*anchor) == AnchorUse::Unused)
        {
            self.anchors.mute(&self.outside.poller, id, now);
        }
        for anchor in closed.drain(..) {
            self.anchors.last_close(now, &mut self.engine, &mut self.sessions, anchor);
        }
        self.schedule.closed_anchors = closed;
        if let Some((cred, before)) = before {
            self.schedule.budget.charge(cred, self.timing.clock.nanos() - before);
        }
    }
}
