//! When an interrupt is due, in virtual time.

use crate::moderation::{IrqSettings, Moderation};
use toe_abi::register::IrqMode;
use toe_base::Instant;

fn at(us: u64) -> Instant {
    Instant::from_micros(us)
}

#[test]
fn each_completion_interrupts_at_once() {
    let settings = IrqSettings { mode: IrqMode::Each, count: 9, after_us: 9 };
    let mut moderation = Moderation::default();
    assert!(!moderation.posted(at(0), 0, false, settings), "nothing was posted");
    assert!(moderation.posted(at(0), 1, false, settings));
    moderation.reset();
    assert!(moderation.deadline().is_far_future());
}

#[test]
fn every_n_counts_or_waits_for_the_first() {
    let settings = IrqSettings { mode: IrqMode::EveryN, count: 4, after_us: 50 };
    let mut moderation = Moderation::default();
    assert!(!moderation.posted(at(100), 1, false, settings));
    assert!(!moderation.posted(at(120), 2, false, settings));
    assert_eq!(moderation.deadline(), at(150), "counted from the first");
    assert!(!moderation.is_due(at(149)));
    assert!(moderation.is_due(at(150)));
    assert!(moderation.posted(at(121), 1, false, settings), "the fourth");
    moderation.reset();
    assert!(!moderation.is_due(at(1000)), "the old deadline is gone");
    assert!(!moderation.posted(at(200), 1, false, settings));
    assert!(moderation.posted(at(250), 1, false, settings), "too late for the first");
    moderation.reset();
    assert!(moderation.posted(at(300), 1, true, settings), "a full queue cannot reach any N");
}

#[test]
fn on_full_waits_for_full_or_for_time() {
    let settings = IrqSettings { mode: IrqMode::OnFull, count: 1, after_us: 1000 };
    let mut moderation = Moderation::default();
    assert!(!moderation.posted(at(0), 4000, false, settings));
    assert!(moderation.posted(at(1), 1, true, settings));
    moderation.reset();
    assert!(!moderation.posted(at(5), 1, false, settings));
    assert!(moderation.is_due(at(1005)));
}

#[test]
fn registers_left_at_zero_never_lose_a_wake_up() {
    for mode in [IrqMode::Each, IrqMode::EveryN, IrqMode::OnFull] {
        let mut moderation = Moderation::default();
        assert!(
            moderation.posted(at(7), 1, false, IrqSettings { mode, ..IrqSettings::default() }),
            "{mode:?}"
        );
    }
}

#[test]
fn counts_and_times_at_their_limits_do_not_overflow() {
    let settings = IrqSettings { mode: IrqMode::EveryN, count: u32::MAX, after_us: u32::MAX };
    let mut moderation = Moderation::default();
    // One later is never.
    let last = at((1 << 48) - 2);
    assert!(!last.is_far_future() && last.after_us(1).is_far_future());
    assert!(!moderation.posted(last, u32::MAX - 1, false, settings));
    assert!(moderation.posted(last, u32::MAX, false, settings));
}
