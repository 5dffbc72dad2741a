//! Deadlines: none in the past once it was handled, and no flow that waits for something without one.

use toe_base::Instant;
use toe_engine::Engine;

/// Every time-out that was due has been handled, and nothing more can be done now.
pub fn nothing_is_due(engine: &Engine, now: Instant) -> Result<(), String> {
    let next = engine.poll_timeout();
    if next <= now {
        return Err(format!("the next deadline, {} us, has passed", next.as_micros()));
    }
    Ok(())
}

/// No silent stall: whatever waits for the peer has a deadline. To be asked when nothing is ready to be sent.
pub fn no_silent_stall(engine: &Engine) -> Result<(), String> {
    for flow in engine.view().audit_flows() {
        if flow.waits_for_peer && flow.deadline.is_far_future() {
            return Err(format!("{flow:?} waits for ever"));
        }
        if flow.waits_for_peer && engine.poll_timeout() > flow.deadline.after_us(WHEEL_TICK_US) {
            return Err(format!("{flow:?} is due before the engine's next deadline"));
        }
    }
    Ok(())
}

/// The timer wheel rounds up to this.
const WHEEL_TICK_US: u64 = 1000;
