//! Anchors: the kernel objects whose last close ends a flow or a listener. The daemon owns them; the engine knows them by
//! handle, and what each stands for.

use crate::control::listen::ListenerIdx;
use std::collections::{HashMap, VecDeque};
use toe_abi::command::NO_HANDLE;
use toe_base::{AnchorHandle, FlowIdx, QueueSetId, SessionId};

/// What an anchor holds alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorTarget {
    /// Nothing yet; the session that took it may use it.
    Unused(SessionId),
    Flow(FlowIdx),
    Listener(ListenerIdx),
    /// Nothing any more; somebody may have it open still.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    target: AnchorTarget,
    /// The session that uses it again after its last close. `None`: it went to another one, or its own is gone.
    home: Option<SessionId>,
    /// Through which the home used it last, and hears that it is free.
    queue_set: QueueSetId,
    /// Opened and closed again while it stood for nothing yet: what it is bound to next has no descriptor.
    closed_early: bool,
}

/// All anchors by handle. New handles count up, so that those taken together are consecutive (as `Reply::Anchors` tells
/// them) and none means something else while it may still be open somewhere.
#[derive(Debug, Default)]
pub struct Anchors {
    table: HashMap<u32, Anchor>,
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
        let (target, queue_set) = (AnchorTarget::Unused(session), QueueSetId(0));
        let anchor = Anchor { target, home: Some(session), queue_set, closed_early: false };
        self.table.insert(handle, anchor);
        AnchorHandle(handle)
    }

    pub fn get(&self, anchor: AnchorHandle) -> Option<AnchorTarget> {
        self.table.get(&anchor.0).map(|anchor| anchor.target)
    }

    /// Binds an unused anchor of `session`; `false` when it is not that.
    pub fn bind(
        &mut self,
        session: SessionId,
        queue_set: QueueSetId,
        anchor: AnchorHandle,
        target: AnchorTarget,
    ) -> bool {
        match self.table.get_mut(&anchor.0) {
            Some(slot) if slot.target == AnchorTarget::Unused(session) => {
                slot.target = target;
                slot.queue_set = queue_set;
                true
            }
            _ => false,
        }
    }

    /// `target`, which the anchor stood for, is gone; it may be open still.
    pub fn release(&mut self, anchor: AnchorHandle, target: AnchorTarget) {
        if let Some(slot) = self.table.get_mut(&anchor.0)
            && slot.target == target
        {
            slot.target = AnchorTarget::Nothing;
            self.released.push_back(anchor);
        }
    }

    /// The next anchor that stands for nothing any more.
    pub fn poll_released(&mut self) -> Option<AnchorHandle> {
        self.released.pop_front()
    }

    /// It was closed while it stood for nothing: its session may have a command under way that binds it.
    pub fn note_closed_early(&mut self, anchor: AnchorHandle) {
        if let Some(slot) = self.table.get_mut(&anchor.0) {
            slot.closed_early = true;
        }
    }

    /// Whether it had been closed before it was bound; told once.
    pub fn take_closed_early(&mut self, anchor: AnchorHandle) -> bool {
        self.table.get_mut(&anchor.0).is_some_and(|slot| core::mem::take(&mut slot.closed_early))
    }

    /// The session that it came from does not get it back.
    pub fn leave_home(&mut self, anchor: AnchorHandle) {
        if let Some(slot) = self.table.get_mut(&anchor.0) {
            slot.home = None;
        }
    }

    /// Nobody has it open any more. It is its session's again, who is to be told; or it is forgotten.
    pub fn closed(&mut self, anchor: AnchorHandle) -> Option<(SessionId, QueueSetId)> {
        let slot = self.table.get_mut(&anchor.0)?;
        match slot.home {
            Some(home) => {
                slot.target = AnchorTarget::Unused(home);
                slot.closed_early = false;
                Some((home, slot.queue_set))
            }
            None => {
                self.table.remove(&anchor.0);
                None
            }
        }
    }

    /// A session has gone: what of its anchors stands for nothing is forgotten, the others have no home any more.
    pub fn forget_session(&mut self, session: SessionId) {
        self.table.retain(|_, anchor| {
            let of_session = anchor.home == Some(session);
            if of_session {
                anchor.home = None;
            }
            !of_session || matches!(anchor.target, AnchorTarget::Flow(_) | AnchorTarget::Listener(_))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QS: QueueSetId = QueueSetId(3);

    #[test]
    fn handles_taken_together_are_consecutive_whatever_was_closed() {
        let mut anchors = Anchors::default();
        let session = SessionId(1);
        let first: Vec<_> = (0..4).map(|_| anchors.take(session)).collect();
        for &anchor in &first[..2] {
            anchors.leave_home(anchor);
            assert_eq!(anchors.closed(anchor), None);
        }
        let again: Vec<_> = (0..3).map(|_| anchors.take(session).0).collect();
        assert_eq!(again, [4, 5, 6]);
    }

    #[test]
    fn only_its_session_binds_an_anchor_and_only_once_until_it_was_closed() {
        let mut anchors = Anchors::default();
        let anchor = anchors.take(SessionId(1));
        let target = AnchorTarget::Flow(FlowIdx(7));
        assert!(!anchors.bind(SessionId(2), QS, anchor, target));
        assert!(anchors.bind(SessionId(1), QS, anchor, target));
        assert!(!anchors.bind(SessionId(1), QS, anchor, target));
        anchors.release(anchor, AnchorTarget::Nothing);
        assert_eq!(anchors.poll_released(), None, "it stands for something else");
        anchors.release(anchor, target);
        assert_eq!(anchors.poll_released(), Some(anchor));
        assert!(!anchors.bind(SessionId(1), QS, anchor, target), "somebody may have it open");
        assert_eq!(anchors.closed(anchor), Some((SessionId(1), QS)));
        assert!(anchors.bind(SessionId(1), QS, anchor, target));
    }

    #[test]
    fn of_a_session_that_has_gone_only_what_others_hold_stays() {
        let mut anchors = Anchors::default();
        let session = SessionId(1);
        let [held, released, unused] = [(); 3].map(|()| anchors.take(session));
        for anchor in [held, released] {
            assert!(anchors.bind(session, QS, anchor, AnchorTarget::Flow(FlowIdx(7))));
        }
        anchors.release(released, AnchorTarget::Flow(FlowIdx(7)));
        anchors.forget_session(session);
        assert_eq!([held, released, unused].map(|a| anchors.get(a).is_some()), [true, false, false]);
        assert_eq!(anchors.closed(held), None, "its number may be another session's by now");
        assert_eq!(anchors.get(held), None);
    }
}
