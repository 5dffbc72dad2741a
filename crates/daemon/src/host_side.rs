//! The engine's reach into the memory and queues of its sessions, over the shared regions.
//!
//! The engine checked every offset against the session's layout before it came here; the region checks again, and
//! what does not fit is ignored, as the engine's contract says. And what came for sockets, handed over.

use crate::capture::End;
use crate::session::{Sessions, Slot};
use core::sync::atomic::{AtomicU8, AtomicU64};
use toe_abi::capture::Program;
use toe_abi::region::{CPL_ENTRIES, PAGE};
use toe_base::{Instant, QueueSetId, SessionId};
use toe_engine::{
    Captured, ChannelRequest, CompletionBatch, ControlEvent, Delivered, Engine, ForSocket, GivenBack,
    HostMemory, Incoming, SharedMemory, SightingEnd,
};
use toe_ring::Region;

/// Session 0: the engine's own staging memory.
const STAGING: SessionId = SessionId(0);

impl Sessions {
    pub(crate) fn region_of(&self, id: SessionId) -> Option<&Region> {
        match self.slot(id) {
            _ if id == STAGING => Some(&self.staging),
            Some(Slot::Live(session)) => Some(&session.region),
            Some(Slot::Closing(remains)) => Some(&remains.region),
            Some(Slot::Free) | None => None,
        }
    }

    /// Puts what the engine has to tell into the queue sets, as far as they have room. How many flows that was of.
    pub(crate) fn post_completions(&mut self, engine: &mut Engine) -> usize {
        let mut flows = 0;
        while let Some((id, index)) = engine.poll_queue_set() {
            let room = self.room(id, index);
            let batch = engine.poll_completions((id, index), room, self);
            flows += batch.flows;
            self.post((id, index), &batch);
        }
        flows
    }

    /// What fits. Nobody will ever read what is for a session that is gone, or ends with this round.
    fn room(&mut self, id: SessionId, index: QueueSetId) -> usize {
        let Some(session) = self.get_mut(id) else { return CPL_ENTRIES as usize };
        let Some(queue_set) = session.queue_sets.get_mut(index.index()) else { return CPL_ENTRIES as usize };
        match queue_set.room() {
            Ok(room) => room as usize,
            Err(reason) => {
                self.faults.push((id, reason));
                CPL_ENTRIES as usize
            }
        }
    }

    fn post(&mut self, (id, index): (SessionId, QueueSetId), batch: &CompletionBatch<'_>) {
        let Some(session) = self.get_mut(id) else { return };
        let Some(queue_set) = session.queue_sets.get_mut(index.index()) else { return };
        let posted =
            batch.completions.iter().try_for_each(|completion| queue_set.post(*completion).map(|_| ()));
        // A queue that was full is not any more, until there is no room for what there is.
        let full = 1 << index.index();
        session.to_tell.full =
            if batch.is_full { session.to_tell.full | full } else { session.to_tell.full & !full };
        if batch.is_full || batch.completions.iter().any(|completion| !completion.is_quiet()) {
            self.touch(id, index);
        }
        self.faults.extend(posted.err().map(|reason| (id, reason)));
    }

    /// Does with a channel's memory what the engine wants; what it is to hear of that at once.
    pub(crate) fn serve_channel(&mut self, request: ChannelRequest) -> Option<ControlEvent> {
        match request {
            ChannelRequest::Open { channel, ends } => {
                // Who may send interrupts to another's host could send it descriptors beside them, and it would close what it
                // never asked for.
                let uid = |(id, _): (SessionId, QueueSetId)| self.get(id).map(|session| session.peer.uid);
                let is_safe = self.interrupts_carry_nothing || uid(ends[0]) == uid(ends[1]);
                let is_made = is_safe && self.channels.open(channel, ends);
                Some(if is_made {
                    ControlEvent::ChannelMade(channel)
                } else {
                    ControlEvent::ChannelRefused(channel)
                })
            }
            ChannelRequest::Settle(channel) => {
                if let Some((region, file, ends)) = self.channels.take_unsettled(channel) {
                    self.settle(region, file, ends);
                }
                None
            }
            ChannelRequest::Close(channel) => {
                if let Some((region, file, ends)) = self.channels.remove(channel) {
                    self.leave_unsettled(vec![(region, file)], ends);
                }
                None
            }
        }
    }

    /// Shows a packet, with the processes at its ends, to the captures that want it.
    pub(crate) fn show(&mut self, Captured { packet, bytes }: &Captured) {
        let program = |end: Option<SightingEnd>| {
            let end = end?;
            let peer = &self.get(end.session)?.peer;
            let program =
                Program { listens: end.listens.into(), ..Program::new(peer.pid, end.fd, &peer.program) };
            Some(End { program, owner: Some(peer.cred()) })
        };
        let seen = self.captures.seen(packet, [program(packet.sender), program(packet.receiver)]);
        self.captures.take(&seen, bytes);
    }

    /// Notes that the host has something to hear of, be it a completion or that its queue is full.
    fn touch(&mut self, id: SessionId, index: QueueSetId) {
        let Some(session) = self.get_mut(id) else { return };
        let first = session.to_tell.touched == 0;
        session.to_tell.touched |= 1 << index.index();
        if first {
            self.touched.push(id);
        }
    }
}

impl HostMemory for Sessions {
    fn write(&mut self, session: SessionId, offset: u64, bytes: &[u8]) {
        if let Some(region) = self.region_of(session) {
            let _ = region.write(offset, bytes);
        }
    }

    fn read(&mut self, session: SessionId, offset: u64, out: &mut [u8]) {
        if let Some(region) = self.region_of(session) {
            let _ = region.read(offset, out);
        }
    }

    fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32) {
        if let (Some(source), Some(target)) = (self.region_of(from.0), self.region_of(to.0)) {
            let _ = Region::copy_between(source, from.1, target, to.1, len);
        }
    }

    fn lend(&self, session: SessionId, offset: u64, len: u32) -> Option<&[AtomicU8]> {
        self.region_of(session)?.lend(offset, len as usize).ok()
    }

    fn word(&mut self, memory: SharedMemory, offset: u64) -> Option<&AtomicU64> {
        match memory {
            SharedMemory::OfSession(id) => self.region_of(id),
            SharedMemory::OfPair(id) => self.channels.memory(id),
        }?
        .word(offset)
    }

    fn give_back(&mut self, session: SessionId, offset: u64, len: u32) -> GivenBack {
        if session != STAGING {
            if u64::from(len) < PAGE {
                return GivenBack::Now;
            }
            // Its host has it too, so it is not for this thread to punch.
            let sent = self.send_pages(session, offset, len);
            return if sent { GivenBack::Later } else { GivenBack::Retained };
        }
        match self.staging.fill_hole(offset, u64::from(len)) {
            Ok(()) => GivenBack::Now,
            Err(_) => GivenBack::Retained,
        }
    }
}

impl Sessions {
    /// Hands over what came for sockets, and tells the engine what became of it.
    #[inline]
    pub(crate) fn hand_over(&mut self, now: Instant, engine: &mut Engine, incoming: Option<Incoming<'_>>) {
        let mut next = match incoming {
            Some(Incoming::Datagram(one)) if one.tail.is_some() => {
                return self.hand_over_tail(now, engine, one);
            }
            whole => whole,
        };
        while let Some(incoming) = next {
            let became = match &incoming {
                Incoming::Datagram(one) => self.datagrams.deliver(one.to, &one.datagram),
                Incoming::Error(error) => self.datagrams.deliver_error(error),
            };
            next = self.became(now, engine, incoming, became);
        }
    }

    #[inline]
    fn became<'a>(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        incoming: Incoming<'a>,
        became: Delivered,
    ) -> Option<Incoming<'a>> {
        let (over, next) = incoming.became(became);
        if let Some(over) = over {
            engine.handle_control(now, ControlEvent::HandedOver(over), self);
        }
        next
    }

    /// Of a large frame only the headers were read: whose lane takes it gets the bytes from the link itself.
    fn hand_over_tail(&mut self, now: Instant, engine: &mut Engine, one: ForSocket<'_>) {
        let mut bytes = std::mem::take(&mut self.datagrams.large);
        bytes.clear();
        let became = match self.datagrams.deliver_tail(&one, &mut bytes) {
            None if bytes.is_empty() && !one.read(&mut bytes) => Some(Delivered::Nowhere),
            became => became,
        };
        if let Some(became) = became {
            self.became(now, engine, Incoming::Datagram(one), became);
        } else {
            self.hand_over(now, engine, Some(one.with_text(&bytes)));
        }
        self.datagrams.large = bytes;
    }
}
