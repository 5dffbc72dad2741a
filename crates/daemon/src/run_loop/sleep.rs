//! How the engine's thread rests: what [`crate::rest`] and [`crate::pace`] advise, done. Called by the run loop.

use crate::daemon::Daemon;
use crate::watchdog::Watchdog;
use std::time::Duration;
use toe_base::Instant;

/// When anchors that are in doubt are looked after again, at the latest.
const DOUBTS_AGAIN_US: u64 = 100;

impl Daemon {
    /// Sleeps until something happens; what has is in the tokens.
    pub(super) fn sleep(&mut self, now: Instant, deadline: Instant) -> std::io::Result<()> {
        self.sessions.tell_woken(&mut self.schedule.budget);
        self.timing.looks.begin_sleep();
        let sleep = self.sessions.announce_sleep(&self.schedule.budget);
        // A host that published before it could see the announcement does not ring: look once more.
        let timeout = if self.sessions.need_engine(&self.schedule.budget) {
            Some(Duration::ZERO)
        } else if deadline.is_far_future() {
            None
        } else {
            Some(now.until(deadline))
        };
        let sleeps = timeout != Some(Duration::ZERO) && !self.engine.view().has_local();
        if sleeps {
            self.timing.looks.sleep();
        }
        let looked = self.outside.poller.wait(timeout, &mut self.outside.tokens);
        if sleeps {
            self.timing.looks.wake();
        }
        self.sessions.end_sleep(sleep, &self.schedule.budget);
        looked
    }

    /// The next time at which there is something to do even if nothing comes in.
    pub(super) fn next_deadline(&self, now: Instant) -> Instant {
        let doubts = self.anchors.doubts() > 0;
        let doubts_again = if doubts { now.after_us(DOUBTS_AGAIN_US) } else { Instant::FAR_FUTURE };
        self.engine
            .poll_timeout()
            .min(doubts_again)
            .min(self.links.ports.deadline(now))
            .min(self.sessions.next_interrupt())
            .min(self.sessions.next_unmute())
            .min(self.anchors.next_unmute())
            .min(
                self.engine.view().trim_due().map_or(Instant::FAR_FUTURE, |due| due.max(self.timing.trim_at)),
            )
            .min(if self.hosts.deferred.is_empty() { Instant::FAR_FUTURE } else { now })
            .min(self.links.follow_at())
            .min(self.outside.watchdog.as_ref().map_or(Instant::FAR_FUTURE, Watchdog::next))
            .min(self.sessions.datagrams.next_look(now))
    }

    /// Lets a program run that reads its datagrams, and perhaps could not; its user is charged for it.
    pub(crate) fn give_way(&mut self) {
        let Some(whose) = self.sessions.datagrams.take_crowded() else { return };
        let (before, began) = (self.timing.clock.now(), self.timing.clock.nanos());
        self.timing.let_others_run(before);
        self.schedule.budget.charge(whose, self.timing.clock.nanos() - began);
        let now = self.timing.clock.now();
        self.sessions.datagrams.gave_way(now, now.since_us(before));
    }

    /// Whether datagrams are to gather before the next round.
    pub(super) fn lets_gather(&mut self, now: Instant, moved: usize) -> bool {
        let heard = self.sessions.datagrams.take_heard();
        let others = moved.saturating_sub(heard);
        self.sessions.datagrams.pace.round(now, heard, others)
            && self.links.ports.are_drained()
            && !self.sessions.need_engine(&self.schedule.budget)
    }
}
