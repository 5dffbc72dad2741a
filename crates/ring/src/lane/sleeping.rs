//! A lane from the engine whose receiver sleeps: it is woken by one datagram in the kernel's queue, and what follows is in the lane by then.
//!
//! The one thread of the receiver says that it sleeps ([`LaneReceiver::sleep`]). The engine then sends one datagram by the kernel and publishes what
//! follows all the same: whoever was woken looks into the lane, and *claims* it before anything is taken ([`LaneReceiver::claim`]). Until the datagram that wakes is in
//! the kernel's queue, or has come from there ([`LaneReceiver::wakes`]), the lane is *ringing* and counts as empty, so that nothing of it comes before that. What nobody
//! has claimed may go by the kernel yet, and its record is voided ([`LaneSender::void`]), while the lane is *returning* it, when nobody can claim it.

use super::{DIVERT_TRIES, LaneReceiver, LaneSender, NotEmpty, PUBLISH_TRIES};
use crate::sync::{Ordering, Words};
use toe_abi::lane::{VOID, header};

/// Looks at a lane that is ringing for which a second thread is not let to sleep: the engine needs some µs for that, or some ms if it has lost its processor.
const RINGING_LOOKS: u32 = 1 << 16;

impl<M: Words> LaneSender<M> {
    /// Whether the last record was published for a receiver that was woken, and has not come.
    pub fn is_asleep(&self) -> bool {
        self.word.is_asleep()
    }

    /// Whether the receiver has not come yet since it was woken.
    pub fn is_unclaimed(&self) -> bool {
        let now = self.lane.load();
        now.is_asleep() && self.rung == Some(now.opening())
    }

    /// The receiver sleeps and is to be woken: the lane may be published in, and what is counts as absent until [`LaneSender::end_ring`]. `again`: as it did
    /// not come; else of a new sleep. `false`: it does not sleep, or several threads do.
    #[cold]
    pub fn begin_ring(&mut self, again: bool) -> bool {
        for _ in 0..PUBLISH_TRIES {
            let now = self.lane.load();
            let is_known = self.rung == Some(now.opening());
            if self.is_over || !now.is_asleep() || now.tail() != self.word.tail() || is_known != again {
                return false;
            }
            let ringing = if again { now.returning() } else { now.ringing() };
            if self.lane.replace(now, ringing) {
                (self.word, self.rung) = (ringing, Some(now.opening()));
                return true;
            }
        }
        false
    }

    /// The datagram is in the kernel's queue.
    pub fn end_ring(&mut self) {
        for _ in 0..PUBLISH_TRIES {
            let now = self.lane.load();
            // Meanwhile the receiver may have come, as it was woken by then, or left.
            if now.tail() != self.word.tail() || self.lane.replace(now, now.rung()) {
                self.word = self.word.rung();
                return;
            }
        }
        self.close();
    }

    /// While the lane is returning it: a record that nobody has claimed goes by the kernel.
    pub fn void(&mut self, position: u64, len: u32) {
        self.lane.memory.store_u64(
            self.lane.record_at(position),
            header(len, false) | VOID,
            Ordering::Relaxed,
        );
    }
}

impl<M: Words> LaneReceiver<M> {
    /// [`LaneReceiver::divert`] of a lane from the engine, whose receiver may be woken by one datagram if it sleeps `alone`: if another thread of it does
    /// already, that would wake one of the two.
    pub fn sleep(&mut self, alone: bool) -> core::result::Result<(), NotEmpty> {
        for _ in 0..DIVERT_TRIES {
            if !self.is_empty() && !self.is_void(alone) {
                return Err(NotEmpty);
            }
            let is_returning = self.word.is_returning();
            let is_notified = !alone && self.word.is_diverted() && !self.word.is_asleep() && !is_returning;
            if is_notified || self.is_closed() {
                return Ok(());
            }
            if is_returning || self.word.is_ringing() && !self.woken {
                return self.sleep_while_ringing(alone && !is_returning);
            }
            self.tell();
            let asleep = self.word.asleep(alone);
            if self.lane.replace(self.word, asleep) {
                // What the engine puts into it from here on is younger than what wakes the receiver.
                (self.word, self.parked, self.fresh) = (asleep, true, true);
                (self.woken, self.ringing) = (false, 0);
                return Ok(());
            }
            self.look();
        }
        self.give_up();
        Ok(())
    }

    /// A datagram has come from the kernel's queue since the last sleep.
    pub fn wakes(&mut self) {
        self.woken = true;
    }

    /// What wakes one thread will be in the kernel's queue in a moment, and wakes this one if it is the only one.
    #[cold]
    fn sleep_while_ringing(&mut self, may_sleep: bool) -> core::result::Result<(), NotEmpty> {
        if may_sleep {
            return Ok(());
        }
        self.ringing += 1;
        if self.ringing < RINGING_LOOKS {
            return Err(NotEmpty);
        }
        self.give_up();
        Ok(())
    }

    /// Whether all that is there went by the kernel.
    #[cold]
    fn is_void(&mut self, alone: bool) -> bool {
        let is_void = |lane: &Self| {
            lane.lane.memory.load_u64(lane.lane.record_at(lane.head), Ordering::Relaxed) & VOID != 0
        };
        is_void(self) && self.claim(alone) && self.first().is_none() && self.is_empty()
    }

    /// Takes to itself what the engine has put into the lane for a receiver that sleeps, before any of it is taken. `alone`: no thread waits, and the lane is open
    /// from here on. Whether it is the receiver's.
    #[inline]
    pub fn claim(&mut self, alone: bool) -> bool {
        let is_open = !self.word.is_asleep() && !self.word.is_returning();
        is_open || self.claim_asleep(alone)
    }

    #[cold]
    fn claim_asleep(&mut self, alone: bool) -> bool {
        for _ in 0..DIVERT_TRIES {
            if self.is_empty() {
                return false;
            }
            if !self.word.is_asleep() {
                return true;
            }
            let opened = self.word.opened();
            let claimed = if alone { opened } else { opened.diverted() };
            if self.lane.replace(self.word, claimed) {
                self.word = claimed;
                // Where another thread waits, what woke that one is left to it.
                (self.fresh, self.untouched, self.parked) = (alone, true, !alone);
                return true;
            }
            self.look();
        }
        false
    }
}
