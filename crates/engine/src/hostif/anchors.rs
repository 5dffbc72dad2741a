//! Anchors: the kernel objects whose last close ends a flow or a listener. The daemon owns the descriptors; the
//! engine knows them by handle, and what each stands for.

use crate::control::listen::ListenerIdx;
use std::collections::VecDeque;
use toe_base::{AnchorHandle, FlowIdx, SessionId};

/// What an anchor holds alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorTarget {
    /// Nothing yet; the session that took it may use it.
    Unused(SessionId),
    Flow(FlowIdx),
    Listener(ListenerIdx),
}

/// All anchors by handle.
#[derive(Debug, Default)]
pub struct Anchors {
    table: Vec<Option<AnchorTarget>>,
    free: Vec<u32>,
    released: VecDeque<AnchorHandle>,
}

impl Anchors {
    pub fn take(&mut self, session: SessionId) -> AnchorHandle {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        self.table[slot as usize] = Some(AnchorTarget::Unused(session));
        AnchorHandle(slot)
    }

    pub fn get(&self, anchor: AnchorHandle) -> Option<AnchorTarget> {
        *self.table.get(anchor.index())?
    }

    /// Binds an unused anchor of `session`; `false` when it is not that.
    pub fn bind(&mut self, session: SessionId, anchor: AnchorHandle, target: AnchorTarget) -> bool {
        if self.get(anchor) != Some(AnchorTarget::Unused(session)) {
            return false;
        }
        self.table[anchor.index()] = Some(target);
        true
    }

    /// Forgets the anchor; the daemon is told to close its end.
    pub fn release(&mut self, anchor: AnchorHandle) {
        if let Some(slot) = self.table.get_mut(anchor.index())
            && slot.take().is_some()
        {
            self.released.push_back(anchor);
        }
    }

    /// The next handle whose descriptor the daemon is to close. Only now may the handle be given out again: until
    /// then its descriptor could still report.
    pub fn poll_released(&mut self) -> Option<AnchorHandle> {
        let anchor = self.released.pop_front()?;
        self.free.push(anchor.0);
        Some(anchor)
    }

    /// Unused anchors of a session that has gone.
    pub fn release_unused_of(&mut self, session: SessionId) {
        for slot in 0..self.table.len() as u32 {
            if self.get(AnchorHandle(slot)) == Some(AnchorTarget::Unused(session)) {
                self.release(AnchorHandle(slot));
            }
        }
    }
}
