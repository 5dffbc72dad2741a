//! Anchors: the kernel objects whose last close ends a flow or a listener. The daemon owns the descriptors; the
//! engine knows them by handle, and what each stands for.

use crate::control::listen::ListenerIdx;
use std::collections::{HashMap, VecDeque};
use toe_abi::command::NO_HANDLE;
use toe_base::{AnchorHandle, FlowIdx, SessionId};

/// What an anchor holds alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorTarget {
    /// Nothing yet; the session that took it may use it.
    Unused(SessionId),
    Flow(FlowIdx),
    Listener(ListenerIdx),
}

/// All anchors by handle. Handles count up, so that those taken together are consecutive (as `Reply::Anchors` tells
/// them) and none is given out again while its descriptor may still report.
#[derive(Debug, Default)]
pub struct Anchors {
    table: HashMap<u32, AnchorTarget>,
    next: u32,
    released: VecDeque<AnchorHandle>,
}

impl Anchors {
    pub fn take(&mut self, session: SessionId) -> AnchorHandle {
        while self.table.contains_key(&self.next) || self.next == NO_HANDLE {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1);
        self.table.insert(handle, AnchorTarget::Unused(session));
        AnchorHandle(handle)
    }

    pub fn get(&self, anchor: AnchorHandle) -> Option<AnchorTarget> {
        self.table.get(&anchor.0).copied()
    }

    /// Binds an unused anchor of `session`; `false` when it is not that.
    pub fn bind(&mut self, session: SessionId, anchor: AnchorHandle, target: AnchorTarget) -> bool {
        match self.table.get_mut(&anchor.0) {
            Some(slot) if *slot == AnchorTarget::Unused(session) => {
                *slot = target;
                true
            }
            _ => false,
        }
    }

    /// Forgets the anchor; the daemon is told to close its end.
    pub fn release(&mut self, anchor: AnchorHandle) {
        if self.table.remove(&anchor.0).is_some() {
            self.released.push_back(anchor);
        }
    }

    /// The next handle whose descriptor the daemon is to close.
    pub fn poll_released(&mut self) -> Option<AnchorHandle> {
        self.released.pop_front()
    }

    /// Releases the unused anchors of a session that has gone.
    pub fn release_unused_of(&mut self, session: SessionId) {
        let unused = |(handle, target): (&u32, &AnchorTarget)| {
            (*target == AnchorTarget::Unused(session)).then_some(AnchorHandle(*handle))
        };
        let mut all: Vec<AnchorHandle> = self.table.iter().filter_map(unused).collect();
        // In a fixed order: the map's own differs from run to run.
        all.sort();
        for anchor in all {
            self.release(anchor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_taken_together_are_consecutive_whatever_was_released() {
        let mut anchors = Anchors::default();
        let session = SessionId(1);
        let first: Vec<_> = (0..4).map(|_| anchors.take(session)).collect();
        anchors.release(first[1]);
        anchors.release(first[0]);
        let again: Vec<_> = (0..3).map(|_| anchors.take(session).0).collect();
        assert_eq!(again, [4, 5, 6]);
    }

    #[test]
    fn only_its_session_binds_an_anchor_and_only_once() {
        let mut anchors = Anchors::default();
        let anchor = anchors.take(SessionId(1));
        let target = AnchorTarget::Flow(FlowIdx(7));
        assert!(!anchors.bind(SessionId(2), anchor, target));
        assert!(anchors.bind(SessionId(1), anchor, target));
        assert!(!anchors.bind(SessionId(1), anchor, target));
    }
}
