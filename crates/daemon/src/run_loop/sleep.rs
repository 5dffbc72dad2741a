//! How the engine's thread rests: what [`crate::rest`] and [`crate::pace`] advise, done. Called by the run loop.

use super::{DOUBTS_AGAIN_US, TICK_US};
use crate::daemon::Daemon;
use crate::stages::Stage;
use crate::watchdog::Watchdog;
use std::time::Duration;
use toe_base::Instant;

/// How long ports are left alone while datagrams gather.
const COALESCING_SLEEP_US: u64 = 50;

impl Daemon {
    pub(crate) fn let_others_run(&mut self, before: Instant) {
        rustix::thread::sched_yield();
        self.rest.yielded(before, self.clock.now());
        self.stages.done(Stage::Pause, 1);
    }

    /// Sleeps until something happens, unless something has happened already.
    pub(super) fn park(&mut self, now: Instant) -> std::io::Result<()> {
        // Nothing else may call for a long time.
        self.forget_drained_sessions();
        self.links.ports.set_quiet(&self.poller, false);
        let deadline = self.next_deadline(now);
        if deadline <= now {
            return Ok(());
        }
        self.rest.parked(now);
        self.tell_load(now, true);
        self.counts.parks += 1;
        self.sleep(now, deadline)
    }

    pub(crate) fn sleep(&mut self, now: Instant, deadline: Instant) -> std::io::Result<()> {
        self.sessions.tell_woken(&mut self.budget);
        self.looks.begin_sleep();
        let sleep = self.sessions.announce_sleep(&self.budget);
        // A host that published before it could see the announcement does not ring: look once more.
        let timeout = if self.sessions.need_engine(&self.budget) {
            Some(Duration::ZERO)
        } else if deadline.is_far_future() {
            None
        } else {
            Some(now.until(deadline))
        };
        let sleeps = timeout != Some(Duration::ZERO) && !self.engine.view().has_local();
        if sleeps {
            self.looks.sleep();
        }
        let mut tokens = std::mem::take(&mut self.tokens);
        let looked = self.poller.wait(timeout, &mut tokens);
        if sleeps {
            self.looks.wake();
        }
        self.sessions.end_sleep(sleep, &self.budget);
        let now = self.clock.now();
        self.next_tick = now.after_us(TICK_US);
        self.handle_events(now, &tokens);
        self.tokens = tokens;
        looked
    }

    /// The next time at which there is something to do even if nothing comes in.
    pub(crate) fn next_deadline(&self, now: Instant) -> Instant {
        let doubts = self.anchors.doubts() > 0;
        let doubts_again = if doubts { now.after_us(DOUBTS_AGAIN_US) } else { Instant::FAR_FUTURE };
        self.engine
            .poll_timeout()
            .min(doubts_again)
            .min(self.links.ports.deadline(now))
            .min(self.sessions.next_interrupt())
            .min(self.sessions.next_unmute())
            .min(self.anchors.next_unmute())
            .min(self.engine.view().trim_due().map_or(Instant::FAR_FUTURE, |due| due.max(self.trim_at)))
            .min(if self.deferred.is_empty() { Instant::FAR_FUTURE } else { now })
            .min(self.links.follow_at())
            .min(self.watchdog.as_ref().map_or(Instant::FAR_FUTURE, Watchdog::next))
            .min(self.sessions.datagrams.next_look(now))
    }

    /// Lets a program run that reads its datagrams, and perhaps could not; its user is charged for it.
    pub(crate) fn give_way(&mut self) {
        let Some(whose) = self.sessions.datagrams.take_crowded() else { return };
        let (before, began) = (self.clock.now(), self.clock.nanos());
        self.let_others_run(before);
        self.budget.charge(whose, self.clock.nanos() - began);
        let now = self.clock.now();
        self.sessions.datagrams.gave_way(now, now.since_us(before));
    }

    /// Whether datagrams are to gather before the next round.
    fn lets_gather(&mut self, now: Instant, moved: usize) -> bool {
        let heard = self.sessions.datagrams.take_heard();
        let others = moved.saturating_sub(heard);
        self.sessions.datagrams.pace.round(now, heard, others)
            && self.links.ports.are_drained()
            && !self.sessions.need_engine(&self.budget)
    }

    /// Sleeps for some µs if they are, unless something happens; that frames come does not count.
    pub(crate) fn coalescing_sleeps(&mut self, now: Instant, moved: usize) -> std::io::Result<bool> {
        if !self.lets_gather(now, moved) {
            return Ok(false);
        }
        self.links.ports.set_quiet(&self.poller, true);
        let deadline = self.next_deadline(now).min(now.after_us(COALESCING_SLEEP_US));
        // However often it sleeps, the rest is looked at in its time.
        let next_tick = self.next_tick;
        let slept = if deadline <= now { Ok(()) } else { self.sleep(now, deadline) };
        self.next_tick = next_tick;
        self.stages.done(Stage::Park, 1);
        slept.map(|()| true)
    }
}
