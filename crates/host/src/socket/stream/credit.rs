//! Credit towards the engine: the memory of what has been read is told to be free, so that the peer's window opens again.

use crate::queue::QueueIo;
use crate::slots::SlotId;
use toe_abi::entry::ReceiveCredit;
use toe_base::FlowId;
use toe_base::limits::RECEIVE_WINDOW_INITIAL;

/// Credit that a sleeping engine need not be woken for: half of the smallest window that it offers, so the peer always
/// has the other half to go on with. Less wakes would be a stall, more a system call for each message.
const QUIET_MAX: u32 = RECEIVE_WINDOW_INITIAL / 2;

/// A stream's.
#[derive(Clone, Copy, Debug)]
pub struct WindowCredit {
    /// Bytes read for which the engine has no credit yet.
    pub pending: u32,
    /// Bytes read since a sleeping engine was last woken for them.
    quiet: u32,
    /// How much of that may be.
    quiet_max: u32,
}

impl Default for WindowCredit {
    fn default() -> WindowCredit {
        WindowCredit { pending: 0, quiet: 0, quiet_max: QUIET_MAX }
    }
}

impl WindowCredit {
    /// The receive window is at most `bytes` (SO_RCVBUF).
    pub fn set_window(&mut self, bytes: u32) {
        self.quiet_max = QUIET_MAX.min(bytes / 2);
    }

    /// The program has read so many of the engine's bytes. Whether a sleeping engine is to be woken for that.
    pub fn on_read(&mut self, bytes: u32) -> bool {
        self.pending += bytes;
        self.quiet = self.quiet.saturating_add(bytes);
        let wakes = self.quiet >= self.quiet_max;
        if wakes {
            self.quiet = 0;
        }
        wakes
    }
}

impl QueueIo {
    /// Publishes the credit that a stream owes, or remembers to.
    pub fn credit(&mut self, slot_id: SlotId, flow: FlowId, credit: &mut WindowCredit) {
        if credit.pending == 0 {
            return;
        }
        if self.ring.push_credit(ReceiveCredit { flow, len: credit.pending }).is_ok() {
            credit.pending = 0;
        } else if !self.owing.contains(&slot_id) {
            self.owing.push(slot_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_engine_is_woken_for_half_of_the_window() {
        let mut credit = WindowCredit::default();
        assert!(!credit.on_read(QUIET_MAX - 1));
        assert!(credit.on_read(1) && !credit.on_read(1));
        assert_eq!(credit.pending, QUIET_MAX + 1);
        credit.set_window(10);
        assert!(!credit.on_read(3) && credit.on_read(1));
    }
}
