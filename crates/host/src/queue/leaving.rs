//! How streams leave their channel, and are given back: see [`crate::leaving`].

use crate::leaving::{Attempt, GIVEN_BACK_WITHIN, Yielding};
use crate::queue::Queue;
use crate::slots::SlotId;
use crate::sys;
use toe_base::Cred;

impl Queue {
    /// Ends the use of all channels with this user, so that there is nothing of his that any later call waits for.
    fn distrust(&mut self, user: Cred) {
        self.distrusted.add(user);
        let channels = self.io.channels.iter().filter(|channel| channel.peer == user);
        let slot_ids: Vec<SlotId> = channels.flat_map(|channel| channel.streams()).collect();
        slot_ids.into_iter().for_each(|slot_id| _ = self.leave(slot_id));
    }

    /// Looks again at the streams that leave a channel: a peer that is late loses all its connections.
    pub(crate) fn settle_leaving(&mut self, at: usize) {
        let Some(channel) = self.io.channels.get_mut(at).filter(|channel| !channel.leaving.is_empty()) else {
            return;
        };
        if channel.leaving.until <= sys::now() {
            // What has come by now counts, however late it is.
            self.drain_channel(at);
            let is_pending = |queue: &Queue| {
                let leaving = &queue.io.channels[at].leaving;
                leaving.streams.iter().any(|slot_id| !queue.has_left(*slot_id))
            };
            if is_pending(self) {
                let channel = &mut self.io.channels[at];
                channel.leaving.is_late = true;
                let peer = channel.peer;
                self.reset_channel(at);
                self.distrust(peer);
            }
        }
        let streams = std::mem::take(&mut self.io.channels[at].leaving.streams);
        let pending = streams.into_iter().filter(|slot_id| !self.has_left(*slot_id)).collect();
        self.io.channels[at].leaving.streams = pending;
    }

    /// Tries again to give back what is to be. One that has waited long enough for bytes of which its peer has said that the
    /// engine brings them is reset, and no connection uses that channel any more.
    pub(crate) fn retry_yields(&mut self) {
        if self.yielding.is_empty() {
            return;
        }
        let now = sys::now();
        for Yielding { slot_id, until } in std::mem::take(&mut self.yielding) {
            if !self.is_yielding(slot_id) {
                continue;
            }
            let attempt = self.try_to_relinquish(slot_id);
            let mut is_done = attempt == Attempt::Done;
            let is_late = until.is_some_and(|until| until <= now);
            if !is_done && is_late && self.is_holding(slot_id) {
                let peer = self.channel_of(slot_id).map(|channel| channel.peer);
                self.reset_stream(slot_id);
                peer.into_iter().for_each(|peer| self.distrust(peer));
                is_done = true;
            }
            if is_done {
                self.streams.get_mut(slot_id).into_iter().for_each(|stream| stream.custody.yields = false);
                self.let_go_if_nobodys(slot_id, true);
            } else {
                let until = until.unwrap_or(now + GIVEN_BACK_WITHIN);
                let until = (attempt == Attempt::Early).then_some(until);
                self.yielding.push(Yielding { slot_id, until });
            }
        }
    }

    /// The first half of [`Queue::leave_all`]: all of them begin to leave.
    pub fn begin_leaving(&mut self) {
        if !self.io.session.is_foreign() {
            self.private_streams().into_iter().for_each(|slot_id| _ = self.leave(slot_id));
        }
    }

    /// Before a fork: no stream may have bytes that only this process can reach, for the child may be the one to read
    /// them, and this process may not get round to giving it up then.
    pub fn leave_all(&mut self) {
        if !self.io.session.is_foreign() {
            self.private_streams().into_iter().for_each(|slot_id| self.relinquish(slot_id));
        }
    }
}
