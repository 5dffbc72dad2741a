//! Anchors: the kernel objects whose last close ends a flow or a listener. The daemon owns them; the engine knows them by
//! handle, and what each stands for.

use crate::control::listen::ListenerIdx;
use crate::hostif::users::UserIdx;
use std::collections::{BTreeSet, HashMap, VecDeque};
use toe_abi::command::NO_HANDLE;
use toe_base::{AnchorHandle, FlowIdx, QueueSetId, SessionId};

/// Anchors that a session may have beside one for each of its flows and listeners: its threads take one before they say
/// what it is for, and several at a time.
pub const IN_HAND_MAX: u32 = 256;

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
    /// Who is charged for it.
    payer: UserIdx,
    /// Through which the home used it last, and hears that it is free.
    queue_set: QueueSetId,
    /// It was kept open after its last use, of which somebody may have a copy that nobody knows of: only its home is believed.
    private: bool,
    /// Opened and closed again while it stood for nothing yet: what it is bound to next has no descriptor.
    closed_early: bool,
}

/// All anchors by handle. New handles count up, so that those taken together are consecutive (as `Reply::Anchors` tells
/// them) and none means something else while it may still be open somewhere.
#[derive(Debug, Default)]
pub struct Anchors {
    table: HashMap<u32, Anchor>,
    /// Those that have a home, by that.
    at_home: BTreeSet<(SessionId, u32)>,
    next: u32,
    released: VecDeque<AnchorHandle>,
}

/// What becomes of an anchor that nobody has open any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It is its session's again, who is to be told through this queue set.
    Home(SessionId, QueueSetId),
    /// It is forgotten, and charged to this user no more.
    Gone(UserIdx),
    /// There was none.
    Unknown,
}

impl Anchors {
    pub fn take(&mut self, session: SessionId, payer: UserIdx) -> AnchorHandle {
        while self.table.contains_key(&self.next) || self.next == NO_HANDLE {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1);
        let (target, queue_set) = (AnchorTarget::Unused(session), QueueSetId(0));
        let anchor =
            Anchor { target, home: Some(session), payer, queue_set, private: false, closed_early: false };
        self.table.insert(handle, anchor);
        self.at_home.insert((session, handle));
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

    /// It is its session's again, which keeps it open.
    pub fn keep(&mut self, anchor: AnchorHandle) {
        if let Some(slot) = self.table.get_mut(&anchor.0) {
            slot.private = true;
        }
    }

    /// The session says that others may have copies of this one.
    pub fn lend(&mut self, session: SessionId, anchor: AnchorHandle) {
        if let Some(slot) = self.table.get_mut(&anchor.0).filter(|slot| slot.home == Some(session)) {
            slot.private = false;
        }
    }

    /// Whether `session` may not show this anchor.
    pub fn is_private_from(&self, anchor: AnchorHandle, session: SessionId) -> bool {
        self.table.get(&anchor.0).is_some_and(|slot| slot.private && slot.home != Some(session))
    }

    /// Whether nobody but its home is believed who shows it.
    pub fn is_private(&self, anchor: AnchorHandle) -> bool {
        self.table.get(&anchor.0).is_some_and(|slot| slot.private)
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

    /// The session that it came from, which is returned, does not get it back.
    pub fn leave_home(&mut self, anchor: AnchorHandle) -> Option<SessionId> {
        let home = self.table.get_mut(&anchor.0)?.home.take()?;
        self.at_home.remove(&(home, anchor.0));
        Some(home)
    }

    /// The session that has it, if it is one that nobody else can have.
    pub fn home(&self, anchor: AnchorHandle) -> Option<SessionId> {
        self.table.get(&anchor.0)?.home
    }

    /// Nobody has it open any more.
    pub fn closed(&mut self, anchor: AnchorHandle) -> Closed {
        let Some(slot) = self.table.get_mut(&anchor.0) else { return Closed::Unknown };
        match slot.home {
            Some(home) => {
                slot.target = AnchorTarget::Unused(home);
                slot.closed_early = false;
                slot.private = false;
                Closed::Home(home, slot.queue_set)
            }
            None => {
                let payer = slot.payer;
                self.table.remove(&anchor.0);
                Closed::Gone(payer)
            }
        }
    }

    /// A session has gone: what of its anchors stands for nothing is forgotten, the others have no home any more. Returns
    /// how many are forgotten; they were charged to the session's user.
    pub fn forget_session(&mut self, session: SessionId) -> u32 {
        let its: Vec<u32> = self.at_home.range((session, 0)..=(session, u32::MAX)).map(|(_, h)| *h).collect();
        let mut forgotten = 0;
        for handle in its {
            self.at_home.remove(&(session, handle));
            let Some(anchor) = self.table.get_mut(&handle) else { continue };
            anchor.home = None;
            if !matches!(anchor.target, AnchorTarget::Flow(_) | AnchorTarget::Listener(_)) {
                self.table.remove(&handle);
                forgotten += 1;
            }
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QS: QueueSetId = QueueSetId(3);
    const USER: UserIdx = UserIdx(1);

    #[test]
    fn handles_taken_together_are_consecutive_whatever_was_closed() {
        let mut anchors = Anchors::default();
        let session = SessionId(1);
        let first: Vec<_> = (0..4).map(|_| anchors.take(session, USER)).collect();
        for &anchor in &first[..2] {
            assert_eq!(anchors.leave_home(anchor), Some(session));
            assert_eq!(anchors.closed(anchor), Closed::Gone(USER));
        }
        let again: Vec<_> = (0..3).map(|_| anchors.take(session, USER).0).collect();
        assert_eq!(again, [4, 5, 6]);
    }

    #[test]
    fn only_its_session_binds_an_anchor_and_only_once_until_it_was_closed() {
        let mut anchors = Anchors::default();
        let anchor = anchors.take(SessionId(1), USER);
        let target = AnchorTarget::Flow(FlowIdx(7));
        assert!(!anchors.bind(SessionId(2), QS, anchor, target));
        assert!(anchors.bind(SessionId(1), QS, anchor, target));
        assert!(!anchors.bind(SessionId(1), QS, anchor, target));
        anchors.release(anchor, AnchorTarget::Nothing);
        assert_eq!(anchors.poll_released(), None, "it stands for something else");
        anchors.release(anchor, target);
        assert_eq!(anchors.poll_released(), Some(anchor));
        assert!(!anchors.bind(SessionId(1), QS, anchor, target), "somebody may have it open");
        assert_eq!(anchors.closed(anchor), Closed::Home(SessionId(1), QS));
        assert!(anchors.bind(SessionId(1), QS, anchor, target));
    }

    #[test]
    fn of_a_session_that_has_gone_only_what_others_hold_stays() {
        let mut anchors = Anchors::default();
        let session = SessionId(1);
        let [held, released, unused] = [(); 3].map(|()| anchors.take(session, USER));
        for anchor in [held, released] {
            assert!(anchors.bind(session, QS, anchor, AnchorTarget::Flow(FlowIdx(7))));
        }
        anchors.release(released, AnchorTarget::Flow(FlowIdx(7)));
        assert_eq!(anchors.forget_session(session), 2);
        assert_eq!([held, released, unused].map(|a| anchors.get(a).is_some()), [true, false, false]);
        assert_eq!(anchors.closed(held), Closed::Gone(USER), "its number may be another session's by now");
        assert_eq!(anchors.get(held), None);
    }
}
