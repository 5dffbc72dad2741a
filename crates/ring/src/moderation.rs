//! When an armed queue set is interrupted (TSSL paper section 4.3: on full, on each completion, on every N; and in
//! any case after a while). A plain state machine in virtual time; [`crate::irq::EngineIrq`] runs it.

use toe_abi::register::IrqMode;
use toe_base::Instant;

/// What a host asks for, as its registers say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqSettings {
    pub mode: IrqMode,
    /// N of `EveryN`; 0 counts as 1.
    pub count: u32,
    /// With `EveryN` and `OnFull`: µs that the first completion may wait. 0: it may not wait, as with `Each`.
    pub after_us: u32,
}

/// Completions that wait for an interrupt.
#[derive(Clone, Copy, Debug)]
pub struct Moderation {
    waiting: u32,
    deadline: Instant,
}

impl Default for Moderation {
    fn default() -> Self {
        Moderation { waiting: 0, deadline: Instant::FAR_FUTURE }
    }
}

impl Moderation {
    /// `count` completions were posted while the host sleeps; `full`: no more fit. `true`: interrupt now.
    pub fn posted(&mut self, now: Instant, count: u32, full: bool, settings: IrqSettings) -> bool {
        if self.waiting == 0 && count > 0 {
            self.deadline = now.after_us(u64::from(settings.after_us));
        }
        self.waiting = self.waiting.saturating_add(count);
        let due = match settings.mode {
            IrqMode::Each => self.waiting > 0,
            IrqMode::EveryN => full || self.waiting >= settings.count.max(1),
            IrqMode::OnFull => full,
        };
        due || self.is_due(now)
    }

    /// The time that has passed makes an interrupt due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.waiting > 0 && now >= self.deadline
    }

    /// When [`Moderation::is_due`] becomes true by itself; [`Instant::FAR_FUTURE`] when nothing waits.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The host was interrupted or is awake anyway: nothing waits any more.
    pub fn reset(&mut self) {
        *self = Moderation::default();
    }
}
