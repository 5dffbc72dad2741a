//! A listener's queues, as Linux has them: of connections that are not open yet, and of those that wait for `accept`.

use std::collections::VecDeque;
use toe_base::{FlowIdx, Instant};

/// Longest backlog; longer ones count as this.
pub const BACKLOG_MAX: u32 = 4096;
/// Connections that are not open yet have room for so many at a listener with a short backlog.
const HALF_OPEN_MIN: u32 = 128;

/// See the module.
#[derive(Debug)]
pub struct AcceptQueue {
    pub backlog: u32,
    /// Connections in SYN_RECEIVED.
    pub half_open: u32,
    /// Those of them that their peers hold to be open and that find no place in the backlog, in their order.
    pub line: VecDeque<FlowIdx>,
    /// Until then an ACK may bring a cookie back.
    pub cookies_until: Instant,
    /// Established connections that no session has been handed.
    pub waiting: VecDeque<FlowIdx>,
    /// Connections handed to a session and not taken by its program yet.
    pub handed: u32,
}

impl AcceptQueue {
    pub fn new(backlog: u32) -> AcceptQueue {
        AcceptQueue {
            backlog: backlog.min(BACKLOG_MAX),
            half_open: 0,
            line: VecDeque::new(),
            cookies_until: Instant::ZERO,
            waiting: VecDeque::new(),
            handed: 0,
        }
    }

    /// Connections that its program has not taken.
    pub fn not_taken(&self) -> u32 {
        self.waiting.len() as u32 + self.handed
    }

    /// Whether they are as many as it wants to wait. Linux lets one more come than `listen` says.
    pub fn is_full(&self) -> bool {
        self.not_taken() > self.backlog
    }

    /// Whether another SYN may have a record.
    pub fn has_room_for_half_open(&self) -> bool {
        self.half_open < self.backlog.max(HALF_OPEN_MIN)
    }
}
