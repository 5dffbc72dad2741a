//! One deadline per flow, in a wheel of 1 ms slots. A deadline beyond one turn of the wheel waits in its slot and is
//! looked at once a turn. Moving a flow is two list operations; nothing allocates.
//!
//! The next deadline is asked for every round, so it is kept: never later than the first armed deadline, and made exact
//! again only when it has passed. A flow that is taken out leaves it as it is, which costs one early look.

use toe_base::{FlowIdx, Instant};

const SLOTS: usize = 4096;
const TICK_US: u64 = 1000;
const NONE: u32 = u32::MAX;

/// The wheel.
#[derive(Debug)]
pub struct TimerWheel {
    heads: Vec<u32>,
    next: Vec<u32>,
    prev: Vec<u32>,
    deadline: Vec<Instant>,
    occupied: [u64; SLOTS / 64],
    /// The next tick to look at.
    tick: u64,
    armed: usize,
    /// No armed deadline is due before this time.
    soonest: Instant,
}

impl TimerWheel {
    pub fn new(flows: usize) -> TimerWheel {
        TimerWheel {
            heads: vec![NONE; SLOTS],
            next: vec![NONE; flows],
            prev: vec![NONE; flows],
            deadline: vec![Instant::FAR_FUTURE; flows],
            occupied: [0; SLOTS / 64],
            tick: 0,
            armed: 0,
            soonest: Instant::FAR_FUTURE,
        }
    }

    /// The tick in which a deadline is due: the first one that starts at or after it, so that none fires early.
    fn tick_of(deadline: Instant) -> u64 {
        deadline.as_micros().div_ceil(TICK_US)
    }

    /// Sets the flow's deadline; [`Instant::FAR_FUTURE`] takes it out.
    pub fn set(&mut self, flow: FlowIdx, deadline: Instant) {
        let idx = flow.index();
        let old = self.deadline[idx];
        if old == deadline {
            return;
        }
        if !old.is_far_future() {
            self.unlink(idx);
        }
        self.deadline[idx] = deadline;
        if !deadline.is_far_future() {
            self.link(idx);
            self.soonest = self.soonest.min(Instant::from_micros(Self::tick_of(deadline) * TICK_US));
        }
    }

    fn slot_of(&self, idx: usize) -> usize {
        (Self::tick_of(self.deadline[idx]).max(self.tick) % SLOTS as u64) as usize
    }

    fn link(&mut self, idx: usize) {
        let slot = self.slot_of(idx);
        let head = self.heads[slot];
        self.next[idx] = head;
        // A first element's `prev` names its slot, beyond all flow numbers.
        self.prev[idx] = self.next.len() as u32 + slot as u32;
        if head != NONE {
            self.prev[head as usize] = idx as u32;
        }
        self.heads[slot] = idx as u32;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.armed += 1;
    }

    fn unlink(&mut self, idx: usize) {
        let (prev, next) = (self.prev[idx], self.next[idx]);
        if next != NONE {
            self.prev[next as usize] = prev;
        }
        if (prev as usize) < self.next.len() {
            self.next[prev as usize] = next;
        } else {
            let slot = prev as usize - self.next.len();
            self.heads[slot] = next;
            if next == NONE {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
            }
        }
        self.armed -= 1;
    }

    /// Takes out one flow whose deadline has passed.
    pub fn pop_due(&mut self, now: Instant) -> Option<FlowIdx> {
        if now < self.soonest {
            return None;
        }
        let due = self.search_due(now);
        if due.is_none() {
            self.soonest = self.first_deadline();
        }
        due
    }

    fn search_due(&mut self, now: Instant) -> Option<FlowIdx> {
        let now_tick = now.as_micros() / TICK_US;
        if self.armed == 0 {
            self.tick = self.tick.max(now_tick);
            return None;
        }
        // After a long sleep one turn of the wheel sees every slot.
        self.tick = self.tick.max((now_tick + 1).saturating_sub(SLOTS as u64));
        while self.tick <= now_tick {
            let slot = (self.tick % SLOTS as u64) as usize;
            let mut at = self.heads[slot];
            while at != NONE {
                let idx = at as usize;
                if self.deadline[idx] <= now {
                    self.unlink(idx);
                    self.deadline[idx] = Instant::FAR_FUTURE;
                    return Some(FlowIdx(at));
                }
                at = self.next[idx];
            }
            if self.tick == now_tick {
                break;
            }
            self.tick += 1;
        }
        None
    }

    /// The earliest time at which [`TimerWheel::pop_due`] may have something. It may be early, never late.
    pub fn next_deadline(&self) -> Instant {
        if self.armed == 0 { Instant::FAR_FUTURE } else { self.soonest }
    }

    /// The tick of the first deadline.
    fn first_deadline(&self) -> Instant {
        if self.armed == 0 {
            return Instant::FAR_FUTURE;
        }
        for tick in self.tick..self.tick + SLOTS as u64 {
            let slot = (tick % SLOTS as u64) as usize;
            let at = Instant::from_micros(tick * TICK_US);
            if self.occupied[slot / 64] & (1 << (slot % 64)) != 0 && self.has_due(slot, at) {
                return at;
            }
        }
        // All that is armed waits for another turn: look again when this one is over.
        Instant::from_micros((self.tick + SLOTS as u64) * TICK_US)
    }

    /// Whether something in the slot is due at `time`, and does not wait for another turn of the wheel.
    fn has_due(&self, slot: usize, time: Instant) -> bool {
        let mut at = self.heads[slot];
        while at != NONE {
            if self.deadline[at as usize] <= time {
                return true;
            }
            at = self.next[at as usize];
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random deadlines against a plain sorted list.
    #[test]
    fn it_agrees_with_a_sorted_list() {
        let mut wheel = TimerWheel::new(64);
        let mut model = [Instant::FAR_FUTURE; 64];
        let mut seed = 7u64;
        let mut next = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        let mut now = Instant::ZERO;
        for _ in 0..20_000 {
            let flow = (next() % 64) as usize;
            let span = if next() % 10 == 0 { 20_000_000 } else { 300_000 };
            let deadline = if next() % 8 == 0 { Instant::FAR_FUTURE } else { now.after_us(next() % span) };
            wheel.set(FlowIdx(flow as u32), deadline);
            model[flow] = deadline;
            let first = *model.iter().min().expect("not empty");
            assert!(
                wheel.next_deadline() <= first.after_us(TICK_US).max(now.after_us(4_096_000)),
                "wake-up comes in time"
            );
            now = now.after_us(next() % 4000);
            while let Some(flow) = wheel.pop_due(now) {
                assert!(model[flow.index()] <= now, "not early");
                model[flow.index()] = Instant::FAR_FUTURE;
            }
            assert!(wheel.next_deadline() > now, "nothing is due any more, so there is time to sleep");
            let late = model.iter().filter(|d| d.after_us(1000) < now).count();
            assert_eq!(late, 0, "none is left behind");
        }
    }

    #[test]
    fn nothing_armed_means_no_deadline() {
        let mut wheel = TimerWheel::new(1);
        assert!(wheel.next_deadline().is_far_future());
        wheel.set(FlowIdx(0), Instant::from_millis(5));
        assert_eq!(wheel.next_deadline(), Instant::from_millis(5));
        wheel.set(FlowIdx(0), Instant::from_millis(90));
        assert_eq!(wheel.next_deadline(), Instant::from_millis(5), "one early look is cheaper than a search");
        assert_eq!(wheel.pop_due(Instant::from_millis(5)), None);
        assert_eq!(wheel.next_deadline(), Instant::from_millis(90));
        wheel.set(FlowIdx(0), Instant::FAR_FUTURE);
        assert!(wheel.next_deadline().is_far_future());
        assert_eq!(wheel.pop_due(Instant::from_millis(50)), None);
    }
}
