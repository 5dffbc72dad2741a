//! One stream given back to the engine, and what it takes: see [`crate::leaving`]. Also whose a flow is at this moment, by its owner word.

use crate::channel::Channel;
use crate::leaving::{Attempt, Yielding};
use crate::queue::{Queue, ROOM_WITHIN};
use crate::queue_io::QueueIo;
use crate::session::Session;
use crate::slots::SlotId;
use crate::socket::Socket;
use crate::socket::direct::Direct;
use crate::socket::stream::Stream;
use crate::sys;
use toe_abi::attach::{Request, Unread};
use toe_abi::entry::MemRange;
use toe_abi::errno::Errno;
use toe_base::FlowId;
use toe_base::arena::Block;
use toe_ring::owner_word;

impl Session {
    /// The flow goes back to the engine, and with it what its program has not read.
    fn give_back(&self, flow: FlowId, unread: Unread) -> Result<(), Errno> {
        self.request(Request::Relinquish { flow: flow.raw(), unread }, &[]).map(|_| ())
    }
}

impl QueueIo {
    /// Where the flow's owner word is. `None`: it is not this process's session that has it.
    pub(super) fn owner_word(&self, flow: FlowId) -> Option<u64> {
        let layout = self.session.layout();
        let is_ours = !self.session.is_foreign() && flow.slot() < layout.flows as usize;
        is_ours.then(|| layout.owner_word(flow.slot()))
    }

    /// All entries for what the thread did are published.
    pub(crate) fn end_use(&self, flow: FlowId) {
        self.owner_word(flow).into_iter().for_each(|at| owner_word::end_use(&self.region, at, flow));
    }
}

impl Queue {
    /// Hands the connection in `slot_id` to `socket`. `None` when it is gone: another process may have come to take from the listener.
    pub(crate) fn accept_stream(
        &mut self,
        slot_id: SlotId,
        socket: &'static Socket,
    ) -> Option<(&mut QueueIo, &mut Stream)> {
        let flow = self.streams.get(slot_id)?.flow;
        if !owner_word::accept(&self.io.region, self.io.owner_word(flow)?, flow) {
            self.on_moved(flow);
            return None;
        }
        let stream = self.streams.get_mut(slot_id)?;
        stream.custody.accept(socket);
        Some((&mut self.io, stream))
    }

    /// A flow is another session's now, or goes back to its listener because this program has not taken it.
    pub(crate) fn on_moved(&mut self, flow: FlowId) {
        let Some(slot_id) = self.slot_id_of(flow) else { return };
        if self.is_untaken(slot_id) {
            // A thread may be about to take it, and finds nothing.
            let _ = self.listeners.values_mut().any(|listener| listener.take_back(slot_id));
            self.remove_stream(slot_id);
        } else {
            self.with_flow(flow, |_, stream| stream.on_moved());
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.io.channels.iter().any(|channel| !channel.leaving.is_empty())
    }

    /// Whether all that its peer will ever have sent through the channel is here, or nobody wants it any more. Of one that was over
    /// when its channel was broken no more comes.
    pub(super) fn has_left(&self, slot_id: SlotId) -> bool {
        let is_broken = |id| self.channel_at(id).is_some_and(|at| self.io.channels[at].is_broken);
        self.streams.get(slot_id).is_none_or(|stream| {
            let has_all = |direct: &Direct| {
                direct.recv.is_complete() || stream.link.is_closed() && is_broken(direct.channel)
            };
            stream.custody.has_let_go() || stream.direct.as_deref().is_none_or(has_all)
        })
    }

    pub(super) fn let_go_if_nobodys(&mut self, slot_id: SlotId, is_done: bool) {
        if is_done && self.streams.get(slot_id).is_some_and(|stream| stream.custody.is_nobodys()) {
            self.orphan(slot_id);
        }
    }

    pub(super) fn channel_of(&mut self, slot_id: SlotId) -> Option<&mut Channel> {
        let id = self.streams.get(slot_id)?.direct.as_ref()?.channel;
        self.io.channel(id)
    }

    /// Whether a stream is to be given back as soon as it can be.
    pub(super) fn is_yielding(&self, slot_id: SlotId) -> bool {
        self.streams.get(slot_id).is_some_and(|stream| stream.custody.yields)
    }

    /// Whether one is that the engine brings the rest of: not one whose bytes nothing but the program's reading lets go.
    pub(crate) fn awaits_rest_of(&self, slot_id: SlotId) -> bool {
        let is_awaited = |one: &Yielding| one.slot_id == slot_id && one.until.is_some();
        self.is_yielding(slot_id) && self.yielding.iter().any(is_awaited)
    }

    /// The same of any.
    pub(crate) fn awaits_rest(&self) -> bool {
        self.yielding.iter().any(|one| one.until.is_some())
    }

    pub(super) fn is_holding(&self, slot_id: SlotId) -> bool {
        let direct = self.streams.get(slot_id).and_then(|stream| stream.direct.as_ref());
        direct.is_some_and(|direct| direct.recv.is_holding())
    }

    /// What only this process can reach goes to the engine by way of `block`.
    pub(super) fn hand_over(&mut self, slot_id: SlotId, block: Option<Block>) -> Attempt {
        let Some(stream) = self.streams.get_mut(slot_id) else { return Attempt::Done };
        let Ok((bytes, copied)) =
            stream.lenders(&mut self.io, slot_id, |recv, from| recv.private_bytes(from))
        else {
            self.reset_stream(slot_id);
            return Attempt::Done;
        };
        let data = MemRange { offset: block.map_or(0, |block| block.offset()), len: bytes.len() as u32 };
        let by_pipe = stream.direct.as_ref().map_or(0, |direct| direct.recv.arrived);
        let unread = Unread { data, credit: copied.engine, by_pipe };
        let given_back = match self.io.region.write(data.offset, &bytes) {
            Ok(()) => self.io.session.give_back(stream.flow, unread),
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
            Err(_) if stream.link.is_closed() => {}
            // Nobody else had it, and the last descriptor has gone meanwhile: its close said it all.
            Err(_) if stream.custody.socket().is_none() && bytes.is_empty() => stream.on_moved(),
            // It is another session's already, and the word of that is on its way; nothing of it is left here.
            Err(Errno::EINVAL) if bytes.is_empty() => stream.on_moved(),
            Err(_) => self.reset_stream(slot_id),
        }
        Attempt::Done
    }

    /// Gives up a flow of which nothing is left here.
    pub(crate) fn give_up(&mut self, flow: FlowId) {
        // A refusal means that the engine knows already.
        let _ = self.io.session.give_back(flow, Unread::default());
    }

    /// Streams with bytes that only this process can reach.
    pub(super) fn private_streams(&self) -> Vec<SlotId> {
        let is_private = |stream: &Stream| {
            let private = stream.direct.is_some() || stream.recv.received.private() > 0;
            private && stream.can_be_given_back() && stream.custody.socket().is_some()
        };
        self.streams.iter().filter_map(|(slot_id, stream)| is_private(stream).then_some(slot_id)).collect()
    }

    /// Publishes what found no room in the rings, before a flow that it may concern goes elsewhere: an engine that lives
    /// makes room at once. One that does not within a moment is left to find out by itself.
    pub(crate) fn settle_pending(&mut self) {
        let end =
            (!self.io.owing.is_empty() || !self.io.deferred.is_empty()).then(|| sys::now() + ROOM_WITHIN);
        while end.is_some_and(|end| sys::now() < end)
            && (!self.io.owing.is_empty() || !self.io.deferred.is_empty())
        {
            rustix::thread::sched_yield();
            self.retry_entries();
        }
    }

    pub(super) fn retry_entries(&mut self) {
        for slot_id in std::mem::take(&mut self.io.owing) {
            if let Some(stream) = self.streams.get_mut(slot_id) {
                self.io.credit(slot_id, stream.flow, &mut stream.recv.credit);
            }
        }
        while self.io.owing.is_empty()
            && let Some(command) = self.io.deferred.front()
            && self.io.ring.push_command(*command).is_ok()
        {
            self.io.deferred.pop_front();
        }
        self.io.ring();
    }
}
