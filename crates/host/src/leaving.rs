//! Streams that leave their channel, and those that are given back to the engine.
//!
//! A sender counts bytes before it has stored their entry. So whoever ends a direction may know of bytes that are not
//! here yet: its peer stores them within the time of a copy, or was stopped or killed there and never does. Nobody waits
//! for that with a lock in hand. A stream that is still owed bytes is noted in its channel ([`Leaving`]), every drain
//! looks again, and a call that must have them waits between two drains ([`QueueSet::wait_until_left`]). A peer that is
//! late has broken the contract: all connections over the channel are reset at once, so that a call waits once however
//! many there are.
//!
//! A stream that is given back may also lack bytes that come before the channel's and that the engine still brings, if its
//! peer has told the truth. It is noted in [`Queue`] ([`Yielding`]), every drain tries again, and who must have it done waits
//! in the same way. One that waits too long is reset.
//!
//! A user whose session has made anybody wait so long is remembered ([`Distrusted`]): he would only need a new session to do it
//! again.
//!
//! Part of [`crate::queue`], behind its lock.

use crate::channel::Channel;
use crate::queue::{Queue, QueueIo, QueueSet};
use crate::send_memory::SEND_LIMIT_MAX;
use crate::slots::Place;
use crate::socket::Socket;
use crate::socket::direct::Direct;
use crate::socket::stream::{Link, Stream};
use crate::stack::Stack;
use crate::sys;
use std::collections::VecDeque;
use std::time::Duration;
use toe_abi::attach::{Request, Unread};
use toe_abi::entry::MemRange;
use toe_abi::errno::Errno;
use toe_base::arena::Block;
use toe_base::{Cred, FlowId};
use toe_ring::owner_word::{self, UseOutcome};

/// How long a sender that has counted bytes may take to store their entry.
pub const LAST_ENTRY_WITHIN: Duration = Duration::from_secs(1);

/// How long the engine may take to bring what comes before bytes of a channel, and to take a stream back: many times what it
/// needs on a machine with more to do than cores, and no program waits for ever for one that has stopped.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(2);
/// How often a thread that waits looks before it sleeps between two looks, and for how long then.
const LOOKS_AT_ONCE: u32 = 32;
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// How long no connection uses a channel with a user who was distrusted, and how many such users are known by name.
const DISTRUSTED_FOR: Duration = Duration::from_secs(600);
const DISTRUSTED_MAX: usize = 64;

/// Bytes that a stream keeps itself so that the engine can bring more.
const VACATED_MAX: usize = SEND_LIMIT_MAX as usize;

/// A stream that is to be given back, and cannot be yet.
#[derive(Clone, Copy, Debug)]
pub struct Yielding {
    place: Place,
    /// How long the engine may take to bring what comes first. `None`: nothing does; there is no memory for what is unread, and it
    /// stays here until it is read or there is some.
    until: Option<Duration>,
}

/// What becomes of giving a stream back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// Nothing is left to do.
    Done,
    /// The engine has to bring or to say something first.
    Early,
    /// There is no memory for what is unread: of the session's to send from, or of the engine's.
    NoMemory,
}

/// Users whose sessions have not sent what they said was on its way. Connections with them go through the engine, which waits for
/// nobody; a machine that was stopped for that long makes one of somebody honest, so that it is not for ever.
#[derive(Debug, Default)]
pub(crate) struct Distrusted {
    until: VecDeque<(Cred, Duration)>,
}

impl Distrusted {
    pub fn contains(&self, user: Cred) -> bool {
        !self.until.is_empty() && {
            let now = sys::now();
            self.until.iter().any(|(known, until)| *known == user && *until > now)
        }
    }

    fn add(&mut self, user: Cred) {
        self.until.retain(|(known, _)| *known != user);
        if self.until.len() >= DISTRUSTED_MAX {
            self.until.pop_front();
        }
        self.until.push_back((user, sys::now() + DISTRUSTED_FOR));
    }
}

/// The streams of one channel that are owed bytes.
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
    /// The flow goes back to the engine, and with it what its program has not read.
    fn give_back(&self, flow: FlowId, unread: Unread) -> Result<(), Errno> {
        self.request(Request::Relinquish { flow: flow.raw(), unread }, &[]).map(|_| ())
    }
}

/// When a wait that begins now is over whatever comes; after the last moment of those that may be reset for it.
pub(crate) fn give_up_at() -> Duration {
    sys::now() + GIVEN_BACK_WITHIN + GIVEN_BACK_WITHIN / 4
}

impl QueueSet {
    /// Waits, without the lock, until nothing that leaves a channel is owed bytes. Ends soon after
    /// [`LAST_ENTRY_WITHIN`], because then the channels of those that are owed some are reset.
    pub(crate) fn wait_until_left(&self) {
        self.drain_until(give_up_at(), |queue| !queue.is_leaving());
    }

    /// Waits, without the lock, until `done` says so of what the drains have brought, or until `end`.
    pub(crate) fn drain_until(&self, end: Duration, mut done: impl FnMut(&Queue) -> bool) {
        for look in 0_u32.. {
            let mut queue = self.lock();
            queue.drain();
            if done(&queue) || self.is_dead() {
                return;
            }
            drop(queue);
            if look < LOOKS_AT_ONCE {
                rustix::thread::sched_yield();
                continue;
            }
            // Whoever is waited for may need this very core.
            if sys::now() >= end {
                return;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }
}

/// A thread is about to take or give bytes of a stream whose flow other processes may have. `Some`: it is at that flow until
/// [`QueueIo::end_use`]. A flow that was withdrawn is another's, though the completion that says so is not here yet.
pub(crate) fn begin_use(queue: &mut Queue, place: Place) -> Option<FlowId> {
    let flow = queue.streams.get(place)?.flow;
    let at = queue.io.owner_word(flow)?;
    match owner_word::begin_use(&queue.io.region, at, flow) {
        UseOutcome::Begun => return Some(flow),
        UseOutcome::Withdrawn => queue.on_moved(flow),
        UseOutcome::OfAnother if queue.streams.get(place)?.link == Link::Open => _ = queue.drain(),
        UseOutcome::OfAnother => {}
    }
    None
}

impl QueueIo {
    /// Where the flow's owner word is. `None`: it is not this process's session that has it.
    fn owner_word(&self, flow: FlowId) -> Option<u64> {
        let layout = self.stack.layout();
        let is_ours = !self.stack.is_foreign() && flow.slot() < layout.flows as usize;
        is_ours.then(|| layout.owner_word(flow.slot()))
    }

    /// All entries for what the thread did are published.
    pub(crate) fn end_use(&self, flow: FlowId) {
        self.owner_word(flow).into_iter().for_each(|at| owner_word::end_use(&self.region, at, flow));
    }
}

impl Queue {
    /// Hands the connection in `place` to `socket`. `None` when it is gone: another process may have come to take from the listener.
    pub(crate) fn accept_stream(
        &mut self,
        place: Place,
        socket: &'static Socket,
    ) -> Option<(&mut QueueIo, &mut Stream)> {
        let flow = self.streams.get(place)?.flow;
        if !owner_word::accept(&self.io.region, self.io.owner_word(flow)?, flow) {
            self.on_moved(flow);
            return None;
        }
        let stream = self.streams.get_mut(place)?;
        stream.socket = Some(socket);
        stream.waits_in_listener = false;
        Some((&mut self.io, stream))
    }

    /// A flow is another session's now, or goes back to its listener because this program has not taken it.
    pub(crate) fn on_moved(&mut self, flow: FlowId) {
        let Some(place) = self.place_of(flow) else { return };
        if self.is_untaken(place) {
            // A thread may be about to take it, and finds nothing.
            let _ = self.listeners.values_mut().any(|listener| listener.take_back(place));
            self.remove_stream(place);
        } else {
            self.with_flow(flow, |_, stream| stream.on_moved());
        }
    }

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

    /// Whether all that its peer will ever have sent through the channel is here, or nobody wants it any more. Of one that was over
    /// when its channel was broken no more comes.
    fn has_left(&self, place: Place) -> bool {
        let is_broken = |id| self.channel_at(id).is_some_and(|at| self.io.channels[at].is_broken);
        self.streams.get(place).is_none_or(|stream| {
            let has_all = |direct: &Direct| {
                direct.is_complete() || stream.link == Link::Closed && is_broken(direct.channel)
            };
            stream.let_go || stream.direct.as_deref().is_none_or(has_all)
        })
    }

    /// Ends the use of all channels with this user, so that there is nothing of his that any later call waits for.
    fn distrust(&mut self, user: Cred) {
        self.distrusted.add(user);
        let channels = self.io.channels.iter().filter(|channel| channel.peer == user);
        let places: Vec<Place> = channels.flat_map(|channel| channel.streams()).collect();
        places.into_iter().for_each(|place| _ = self.leave(place));
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
                leaving.streams.iter().any(|place| !queue.has_left(*place))
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
        let pending = streams.into_iter().filter(|place| !self.has_left(*place)).collect();
        self.io.channels[at].leaving.streams = pending;
    }

    /// Gives a stream back to the engine, with what the program has not read; whoever shows the descriptor next gets it.
    /// What it is still owed comes first: then every drain tries again ([`Queue::retry_yields`]), also when the program has
    /// let go of its descriptor meanwhile, because the bytes here are those of whoever has another.
    pub(crate) fn relinquish(&mut self, place: Place) {
        let attempt = self.try_to_relinquish(place);
        let is_done = attempt == Attempt::Done;
        let Some(stream) = self.streams.get_mut(place) else { return };
        // One that was listed and is done leaves the list with the next look at it.
        let was_listed = std::mem::replace(&mut stream.yields, !is_done);
        if !is_done && !was_listed {
            let peer = self.channel_of(place).map(|channel| channel.peer);
            let is_distrusted = peer.is_some_and(|peer| self.distrusted.contains(peer));
            let within = if is_distrusted { Duration::ZERO } else { GIVEN_BACK_WITHIN };
            let until = (attempt == Attempt::Early).then(|| sys::now() + within);
            self.yielding.push(Yielding { place, until });
        }
        self.let_go_if_nobodys(place, is_done);
    }

    fn let_go_if_nobodys(&mut self, place: Place, is_done: bool) {
        let is_nobodys = |stream: &Stream| stream.socket.is_none() && !stream.waits_in_listener;
        if is_done && self.streams.get(place).is_some_and(is_nobodys) {
            self.orphan(place);
        }
    }

    fn channel_of(&mut self, place: Place) -> Option<&mut Channel> {
        let id = self.streams.get(place)?.direct.as_ref()?.channel;
        self.io.channel(id)
    }

    /// Whether a stream is to be given back as soon as it can be.
    fn is_yielding(&self, place: Place) -> bool {
        self.streams.get(place).is_some_and(|stream| stream.yields)
    }

    /// Whether one is that the engine brings the rest of: not one whose bytes nothing but the program's reading lets go.
    pub(crate) fn awaits_rest_of(&self, place: Place) -> bool {
        let is_awaited = |one: &Yielding| one.place == place && one.until.is_some();
        self.is_yielding(place) && self.yielding.iter().any(is_awaited)
    }

    /// The same of any.
    pub(crate) fn awaits_rest(&self) -> bool {
        self.yielding.iter().any(|one| one.until.is_some())
    }

    /// Tries again to give back what is to be. One that has waited long enough for bytes of which its peer has said that the
    /// engine brings them is reset, and no connection uses that channel any more.
    pub(crate) fn retry_yields(&mut self) {
        if self.yielding.is_empty() {
            return;
        }
        let now = sys::now();
        for Yielding { place, until } in std::mem::take(&mut self.yielding) {
            if !self.is_yielding(place) {
                continue;
            }
            let attempt = self.try_to_relinquish(place);
            let mut is_done = attempt == Attempt::Done;
            let is_late = until.is_some_and(|until| until <= now);
            if !is_done && is_late && self.is_holding(place) {
                let peer = self.channel_of(place).map(|channel| channel.peer);
                self.reset_stream(place);
                peer.into_iter().for_each(|peer| self.distrust(peer));
                is_done = true;
            }
            if is_done {
                self.streams.get_mut(place).into_iter().for_each(|stream| stream.yields = false);
                self.let_go_if_nobodys(place, true);
            } else {
                let until = until.unwrap_or(now + GIVEN_BACK_WITHIN);
                let until = (attempt == Attempt::Early).then_some(until);
                self.yielding.push(Yielding { place, until });
            }
        }
    }

    fn is_holding(&self, place: Place) -> bool {
        let direct = self.streams.get(place).and_then(|stream| stream.direct.as_ref());
        direct.is_some_and(|direct| direct.is_holding())
    }

    fn try_to_relinquish(&mut self, place: Place) -> Attempt {
        let has_left = self.leave(place);
        let Some(stream) = self.streams.get_mut(place) else { return Attempt::Done };
        if !stream.can_be_given_back() {
            let flow = stream.flow;
            self.give_up(flow);
            return Attempt::Done;
        }
        // Bytes that come before some of those in the channel may still be the engine's, and it brings them only while its
        // window has room, which a program that does not read never makes.
        let is_holding = stream.direct.as_ref().is_some_and(|direct| direct.is_holding());
        // No more than its peer can have sent by the engine: beyond, there is no end to it.
        let may_vacate = is_holding && stream.unread() < VACATED_MAX;
        if may_vacate && stream.vacate_window(&mut self.io, place).is_ok() {
            self.io.ring();
        }
        if is_holding || !has_left {
            return Attempt::Early;
        }
        let private = stream.received.private();
        let block = self.io.blocks.take_whole(private);
        let attempt = if block.is_none() && private > 0 {
            Attempt::NoMemory
        } else {
            // Credit that the engine does not know of would bring bytes a second time.
            self.settle_pending();
            self.io.ring();
            self.hand_over(place, block)
        };
        block.into_iter().for_each(|block| self.io.blocks.give_back(block));
        attempt
    }

    /// What only this process can reach goes to the engine by way of `block`.
    fn hand_over(&mut self, place: Place, block: Option<Block>) -> Attempt {
        let Some(stream) = self.streams.get_mut(place) else { return Attempt::Done };
        let Ok((bytes, copied)) = stream.private_bytes(&mut self.io) else {
            self.reset_stream(place);
            return Attempt::Done;
        };
        let data = MemRange { offset: block.map_or(0, |block| block.offset()), len: bytes.len() as u32 };
        let by_pipe = stream.direct.as_ref().map_or(0, |direct| direct.arrived);
        let unread = Unread { data, credit: copied.engine, by_pipe };
        let given_back = match self.io.region.write(data.offset, &bytes) {
            Ok(()) => self.io.stack.give_back(stream.flow, unread),
            Err(_) => Err(Errno::ENOMEM),
        };
        match given_back {
            Ok(()) => {
                if let Some(direct) = &mut stream.direct {
                    // The peer may wait for room.
                    direct.on_read(self.io.channel(direct.channel), copied.channel as usize);
                }
                stream.on_moved();
            }
            // The engine has something to say first, perhaps of a channel; it is done when that is heard.
            Err(Errno::EAGAIN) => return Attempt::Early,
            Err(Errno::ENOMEM) => return Attempt::NoMemory,
            // It is over, and the engine knows it no more.
            Err(_) if stream.link == Link::Closed => {}
            // Nobody else had it, and the last descriptor has gone meanwhile: its close said it all.
            Err(_) if stream.socket.is_none() && bytes.is_empty() => stream.on_moved(),
            // It is another session's already, and the word of that is on its way; nothing of it is left here.
            Err(Errno::EINVAL) if bytes.is_empty() => stream.on_moved(),
            Err(_) => self.reset_stream(place),
        }
        Attempt::Done
    }

    /// Gives up a flow of which nothing is left here.
    pub(crate) fn give_up(&mut self, flow: FlowId) {
        // A refusal means that the engine knows already.
        let _ = self.io.stack.give_back(flow, Unread::default());
    }

    /// Streams with bytes that only this process can reach.
    fn private_streams(&self) -> Vec<Place> {
        let is_private = |stream: &Stream| {
            let private = stream.direct.is_some() || stream.received.private() > 0;
            private && stream.can_be_given_back() && stream.socket.is_some()
        };
        self.streams.iter().filter_map(|(place, stream)| is_private(stream).then_some(place)).collect()
    }

    /// The first half of [`Queue::leave_all`]: all of them begin to leave.
    pub fn begin_leaving(&mut self) {
        if !self.io.stack.is_foreign() {
            self.private_streams().into_iter().for_each(|place| _ = self.leave(place));
        }
    }

    /// Before a fork: no stream may have bytes that only this process can reach, for the child may be the one to read
    /// them, and this process may not get round to giving it up then.
    pub fn leave_all(&mut self) {
        if !self.io.stack.is_foreign() {
            self.private_streams().into_iter().for_each(|place| self.relinquish(place));
        }
    }
}
