//! Streams that leave their channel, and those that are given back to the engine.
//!
//! A sender counts octets before it has stored their entry. So whoever ends a direction may know of octets that are not
//! here yet: its peer stores them within the time of a copy, or was stopped or killed there and never does. Nobody waits
//! for that with a lock in hand. A stream that is still owed octets is noted in its channel ([`Leaving`]), every drain
//! looks again, and a call that must have them waits between two drains ([`QueueSet::wait_until_left`]). A peer that is
//! late has broken the contract: all connections over the channel are reset at once, so that a call waits once however
//! many there are.
//!
//! Part of [`crate::queue`], behind its lock.

use crate::queue::{Queue, QueueSet};
use crate::slots::Place;
use crate::socket::stream::Link;
use crate::stack::Stack;
use crate::sys;
use std::time::Duration;
use toe_abi::attach::Request;
use toe_abi::errno::Errno;
use toe_base::FlowId;

/// How long a sender that has counted octets may take to store their entry.
pub const LAST_ENTRY_WITHIN: Duration = Duration::from_secs(1);

/// The streams of one channel that are owed octets.
#[derive(Debug, Default)]
pub struct Leaving {
    streams: Vec<Place>,
    /// When the first of them has waited long enough, on the clock of [`sys::now`].
    until: Duration,
    /// The peer was late, and nothing has come from it since: it is given no more time.
    is_late: bool,
}

impl Leaving {
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    fn add(&mut self, place: Place) {
        if self.streams.is_empty() {
            self.until = sys::now() + if self.is_late { Duration::ZERO } else { LAST_ENTRY_WITHIN };
        }
        if !self.streams.contains(&place) {
            self.streams.push(place);
        }
    }

    /// An entry has come.
    pub fn note_life(&mut self) {
        self.is_late = false;
    }
}

impl Stack {
    /// The octets that a flow's program has not read go back to the engine with the flow.
    fn hand_back(&self, flow: FlowId, unread: &[u8]) -> Result<(), Errno> {
        let memory = (!unread.is_empty()).then(|| sys::memory_with(unread)).transpose()?;
        let shown: Vec<_> = memory.iter().map(rustix::fd::AsFd::as_fd).collect();
        let request = Request::Relinquish { flow: flow.raw(), unread: unread.len() as u32 };
        self.request(request, &shown).map(|_| ())
    }
}

impl QueueSet {
    /// Waits, without the lock, until nothing that leaves a channel is owed octets. Ends soon after
    /// [`LAST_ENTRY_WITHIN`], because then the channels of those that are owed some are reset.
    pub(crate) fn wait_until_left(&self) {
        loop {
            let mut queue = self.lock();
            queue.drain();
            if !queue.is_leaving() || self.is_dead() {
                return;
            }
            drop(queue);
            rustix::thread::sched_yield();
        }
    }
}

impl Queue {
    pub(crate) fn is_leaving(&self) -> bool {
        self.io.channels.iter().any(|channel| !channel.leaving.is_empty())
    }

    /// Ends a stream's use of its channel: what comes after goes through the engine. `true`: what came before is all
    /// here. Otherwise it will be, or the connection is reset.
    pub(crate) fn leave(&mut self, place: Place) -> bool {
        let Some(direct) = self.streams.get_mut(place).and_then(|stream| stream.direct.as_mut()) else {
            return true;
        };
        direct.leave();
        let channel = direct.channel;
        let Some(at) = self.channel_at(channel) else { return true };
        self.drain_channel(at);
        let has_left = self.has_left(place);
        if !has_left {
            self.io.channels[at].leaving.add(place);
        }
        has_left
    }

    /// Whether all that its peer will ever have sent through the channel is here, or nobody wants it any more.
    fn has_left(&self, place: Place) -> bool {
        self.streams.get(place).is_none_or(|stream| {
            stream.let_go || stream.direct.as_ref().is_none_or(|direct| direct.is_complete())
        })
    }

    /// Looks again at the streams that leave a channel: what is whole is given back if somebody waits for it, and a peer that
    /// is late loses all its connections.
    pub(crate) fn settle_leaving(&mut self, at: usize) {
        let Some(channel) = self.io.channels.get_mut(at).filter(|channel| !channel.leaving.is_empty()) else {
            return;
        };
        if channel.leaving.until <= sys::now() {
            // What has come by now counts, however late it is.
            self.drain_channel(at);
            let is_owed = |queue: &Queue| {
                let leaving = &queue.io.channels[at].leaving;
                leaving.streams.iter().any(|place| !queue.has_left(*place))
            };
            if is_owed(self) {
                self.io.channels[at].leaving.is_late = true;
                self.break_channel(at);
            }
        }
        let streams = std::mem::take(&mut self.io.channels[at].leaving.streams);
        let (whole, owed) = streams.into_iter().partition(|place| self.has_left(*place));
        self.io.channels[at].leaving.streams = owed;
        let whole: Vec<Place> = whole;
        for place in whole {
            if self.streams.get(place).is_some_and(|stream| stream.must_yield) {
                self.relinquish(place);
            }
        }
    }

    /// Gives a stream back to the engine, with what the program has not read; whoever shows the descriptor next gets it.
    /// What it is still owed comes first: then this happens later, by a drain.
    pub(crate) fn relinquish(&mut self, place: Place) {
        let has_left = self.leave(place);
        let Some(stream) = self.streams.get_mut(place) else { return };
        if stream.let_go || stream.link != Link::Open {
            let flow = stream.flow;
            self.give_up(flow);
            return;
        }
        // Octets that come before some of those in the channel may still be the engine's: once they are here.
        stream.must_yield = !has_left || stream.direct.as_ref().is_some_and(|direct| direct.is_holding());
        if stream.must_yield {
            return;
        }
        let unread = stream.take_unread(&mut self.io, place);
        // Credit that the engine does not know of would bring octets a second time.
        self.settle_owed();
        let Some(stream) = self.streams.get_mut(place) else { return };
        let Ok(unread) = unread else { return self.reset_stream(place) };
        self.io.ring();
        match self.io.stack.hand_back(stream.flow, &unread) {
            Ok(()) => stream.on_moved(),
            Err(Errno::EAGAIN) => {
                // The engine has something to say first, perhaps of a channel; it is done when that is heard.
                stream.received.carry(unread);
                stream.must_yield = true;
            }
            Err(_) => self.reset_stream(place),
        }
    }

    /// Gives up a flow of which nothing is left here.
    pub(crate) fn give_up(&mut self, flow: FlowId) {
        // A refusal means that the engine knows already.
        let _ = self.io.stack.request(Request::Relinquish { flow: flow.raw(), unread: 0 }, &[]);
    }

    /// Streams with octets that only this process can reach.
    fn private_streams(&self) -> Vec<Place> {
        let is_private = |stream: &crate::socket::stream::Stream| {
            let private = stream.direct.is_some() || stream.received.private() > 0;
            private && !stream.let_go && stream.link == Link::Open && stream.socket.is_some()
        };
        self.streams.iter().filter_map(|(place, stream)| is_private(stream).then_some(place)).collect()
    }

    /// The first half of [`Queue::leave_all`]: all of them begin to leave.
    pub fn begin_leaving(&mut self) {
        if !self.io.stack.is_foreign() {
            self.private_streams().into_iter().for_each(|place| _ = self.leave(place));
        }
    }

    /// Before a fork: no stream may have octets that only this process can reach, for the child may be the one to read
    /// them, and this process may not get round to giving it up then.
    pub fn leave_all(&mut self) {
        if !self.io.stack.is_foreign() {
            self.private_streams().into_iter().for_each(|place| self.relinquish(place));
        }
    }
}
