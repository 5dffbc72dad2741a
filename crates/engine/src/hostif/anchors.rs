//! Anchors: the kernel objects whose last close ends a flow or a listener. The daemon owns them; the engine knows them by
//! handle, and what each stands for.

use crate::control::listener_idx::ListenerIdx;
use crate::hostif::users::UserIdx;
use foldhash::HashMap;
use std::collections::BTreeSet;
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

/// The session that an anchor was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MadeFor {
    /// It uses it again after its last close.
    At(SessionId),
    /// The same, and it has closed its copy: others have what the anchor stands for.
    Closed(SessionId),
    /// It went to another session. This one has not said that it has closed its copy.
    Left(SessionId),
    Gone,
}

impl MadeFor {
    /// The session that uses it again.
    fn at(self) -> Option<SessionId> {
        if let MadeFor::At(session) | MadeFor::Closed(session) = self { Some(session) } else { None }
    }
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    target: AnchorTarget,
    owner: MadeFor,
    /// Who is charged for it.
    payer: UserIdx,
    /// Through which the owner used it last, and hears that it is free.
    queue_set: QueueSetId,
    /// It was kept open after its last use, of which somebody may have a copy that nobody knows of: only its owner is believed.
    private: bool,
    /// Opened and closed again while it stood for nothing yet: what it is bound to next has no descriptor.
    closed_early: bool,
    /// Processes that may have it open, as far as those say that had what it stands for; never too few of them.
    copies: u32,
}

/// All anchors by handle. New handles count up, so that those taken together are consecutive (as `Reply::Anchors` tells
/// them) and none means something else while it may still be open somewhere.
#[derive(Debug, Default)]
pub struct Anchors {
    table: HashMap<u32, Anchor>,
    /// Those whose owner is not gone, by that.
    by_owner: BTreeSet<(SessionId, u32)>,
    next: u32,
}

/// What becomes of an anchor that nobody has open any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It is its session's again, who is to be told through this queue set.
    Owned(SessionId, QueueSetId),
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
        let owner = MadeFor::At(session);
        let anchor =
            Anchor { target, owner, payer, queue_set, private: false, closed_early: false, copies: 0 };
        self.table.insert(handle, anchor);
        self.by_owner.insert((session, handle));
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
                slot.copies = 1;
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
        }
    }

    /// It is its session's again, which keeps it open.
    pub fn keep(&mut self, anchor: AnchorHandle) {
        if let Some(slot) = self.table.get_mut(&anchor.0) {
            slot.private = true;
        }
    }

    /// The session says that one more process gets a copy. `has_it`: it has what the anchor stands for; else it is believed of what it was
    /// made for, and has not said that it has closed.
    pub fn lend(&mut self, session: SessionId, anchor: AnchorHandle, has_it: bool) {
        let Some(slot) = self.table.get_mut(&anchor.0) else { return };
        let is_owner = matches!(slot.owner, MadeFor::At(owner) | MadeFor::Left(owner) if owner == session);
        slot.private &= slot.owner.at() != Some(session);
        if is_owner || has_it && slot.owner != MadeFor::Closed(session) {
            slot.copies = slot.copies.saturating_add(1);
        }
    }

    /// A child gets copies of all that a session `has`, and of what it has lost to another one and not closed yet.
    pub fn lend_all(&mut self, session: SessionId, has: impl Iterator<Item = AnchorHandle>) {
        has.for_each(|anchor| self.lend(session, anchor, true));
        let its = self.by_owner.range((session, 0)..=(session, u32::MAX)).map(|(_, handle)| *handle);
        for handle in its {
            if let Some(slot) =
                self.table.get_mut(&handle).filter(|slot| slot.owner == MadeFor::Left(session))
            {
                slot.copies = slot.copies.saturating_add(1);
            }
        }
    }

    /// The process that it was made for has closed its copy. Whether one other process alone has it now, and has claimed what it stands
    /// for.
    pub fn copy_closed(&mut self, session: SessionId, anchor: AnchorHandle) -> bool {
        let Some(slot) = self.table.get_mut(&anchor.0) else { return false };
        match slot.owner {
            MadeFor::At(owner) if owner == session => slot.owner = MadeFor::Closed(owner),
            MadeFor::Left(owner) if owner == session => {
                slot.owner = MadeFor::Gone;
                self.by_owner.remove(&(owner, anchor.0));
            }
            _ => return false,
        }
        slot.copies = slot.copies.saturating_sub(1);
        self.is_single(anchor)
    }

    /// Whether the process alone has it open that has what it stands for: not one that has closed it, and of which another has yet to
    /// claim that.
    pub fn is_single(&self, anchor: AnchorHandle) -> bool {
        let is_it = |slot: &Anchor| slot.copies <= 1 && !matches!(slot.owner, MadeFor::Closed(_));
        self.table.get(&anchor.0).is_some_and(is_it)
    }

    /// Whether `session` may not show this anchor.
    pub fn is_private_from(&self, anchor: AnchorHandle, session: SessionId) -> bool {
        self.table.get(&anchor.0).is_some_and(|slot| slot.private && slot.owner.at() != Some(session))
    }

    /// Whether nobody but its owner is believed who shows it.
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
    pub fn leave_owner(&mut self, anchor: AnchorHandle) -> Option<SessionId> {
        let slot = self.table.get_mut(&anchor.0)?;
        let owner = slot.owner.at()?;
        if slot.owner == MadeFor::Closed(owner) {
            slot.owner = MadeFor::Gone;
            self.by_owner.remove(&(owner, anchor.0));
        } else {
            slot.owner = MadeFor::Left(owner);
        }
        Some(owner)
    }

    /// The session that has it, if it is one that nobody else can have.
    pub fn owner(&self, anchor: AnchorHandle) -> Option<SessionId> {
        self.table.get(&anchor.0)?.owner.at()
    }

    /// Nobody has it open any more.
    pub fn closed(&mut self, anchor: AnchorHandle) -> Closed {
        let Some(slot) = self.table.get_mut(&anchor.0) else { return Closed::Unknown };
        match slot.owner {
            MadeFor::At(owner) | MadeFor::Closed(owner) => {
                slot.owner = MadeFor::At(owner);
                slot.target = AnchorTarget::Unused(owner);
                slot.closed_early = false;
                slot.private = false;
                Closed::Owned(owner, slot.queue_set)
            }
            MadeFor::Left(_) | MadeFor::Gone => {
                let payer = slot.payer;
                if let MadeFor::Left(owner) = slot.owner {
                    self.by_owner.remove(&(owner, anchor.0));
                }
                self.table.remove(&anchor.0);
                Closed::Gone(payer)
            }
        }
    }

    /// A session has gone: what of its anchors stands for nothing is forgotten, the others have no owner any more. Returns
    /// how many are forgotten; they were charged to the session's user.
    pub fn forget_session(&mut self, session: SessionId) -> u32 {
        let its: Vec<u32> =
            self.by_owner.range((session, 0)..=(session, u32::MAX)).map(|(_, h)| *h).collect();
        let mut forgotten = 0;
        for handle in its {
            self.by_owner.remove(&(session, handle));
            let Some(anchor) = self.table.get_mut(&handle) else { continue };
            let was_left = matches!(core::mem::replace(&mut anchor.owner, MadeFor::Gone), MadeFor::Left(_));
            if !was_left && !matches!(anchor.target, AnchorTarget::Flow(_) | AnchorTarget::Listener(_)) {
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
            assert_eq!(anchors.leave_owner(anchor), Some(session));
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
        anchors.release(anchor, AnchorTarget::Flow(FlowIdx(8)));
        assert_eq!(anchors.get(anchor), Some(target), "it stands for something else");
        anchors.release(anchor, target);
        assert_eq!(anchors.get(anchor), Some(AnchorTarget::Nothing));
        assert!(!anchors.bind(SessionId(1), QS, anchor, target), "somebody may have it open");
        assert_eq!(anchors.closed(anchor), Closed::Owned(SessionId(1), QS));
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
