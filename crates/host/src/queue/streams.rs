//! The streams and listeners of a queue set: how they come, are told, and go.

use crate::channel::SWEEP;
use crate::queue::Queue;
use crate::queue_io::QueueIo;
use crate::slots::SlotId;
use crate::socket::arrivals::Listener;
use crate::socket::stream::Stream;
use toe_abi::entry::Command;
use toe_base::{FlowId, ListenerId};

impl Queue {
    /// A stream that the program has let go of but whose data the engine still reads, or that another process is to have.
    pub fn orphan(&mut self, slot_id: SlotId) {
        let Some(stream) = self.streams.get_mut(slot_id) else { return };
        stream.custody.orphan();
        let in_channel = stream.direct.as_ref().is_some_and(|direct| direct.send.lent);
        let is_held = (in_channel || stream.custody.yields) && !self.io.session.is_foreign();
        if !is_held && (stream.send.memory.outstanding() == 0 || stream.link.is_closed()) {
            self.remove_stream(slot_id);
        }
    }

    pub(crate) fn remove_stream(&mut self, slot_id: SlotId) {
        if let Some(mut stream) = self.streams.remove(slot_id) {
            stream.send.memory.release_all(&mut self.io.blocks);
            if self.by_flow.get(&stream.flow.raw()) == Some(&slot_id) {
                self.by_flow.remove(&stream.flow.raw());
            }
            if let Some(mut direct) = stream.direct.take() {
                self.end_direct(&mut direct);
            }
        }
    }

    /// Drops a listener and the connections that wait in it; they are another session's now.
    pub fn remove_listener(&mut self, slot_id: SlotId) {
        if let Some(mut listener) = self.listeners.remove(slot_id) {
            while let Some(stream) = listener.take_waiting() {
                self.remove_stream(stream);
            }
        }
    }

    /// Does `f` to the flow's stream, and lets the stream go when it was an orphan and has nothing left to wait for.
    pub(crate) fn with_flow(&mut self, flow: FlowId, f: impl FnOnce(&mut QueueIo, &mut Stream)) {
        let Some(slot_id) = self.slot_id_of(flow) else { return };
        let Some(stream) = self.streams.get_mut(slot_id) else { return };
        let was_connecting = stream.link.is_connecting();
        f(&mut self.io, stream);
        if was_connecting && stream.link.is_closed() && stream.custody.let_go() {
            // Host interface: the host closes what could not connect.
            self.io.command(Command::Close { flow, abort: false });
        }
        if stream.half_close.is_unwanted() {
            self.reset_stream(slot_id);
        } else if stream.custody.is_nobodys() {
            self.orphan(slot_id);
        }
    }

    pub(super) fn with_listener(&mut self, id: ListenerId, f: impl FnOnce(&mut Listener)) {
        if let Some(listener) = self.listeners.values_mut().find(|listener| listener.id == id) {
            f(listener);
        }
    }

    pub(super) fn on_accepted(&mut self, id: ListenerId, flow: FlowId) {
        if !self.listeners.values().any(|listener| listener.id == id) {
            return;
        }
        let mut stream = Stream::accepted(flow);
        stream.read_addrs(&self.flow_info(flow));
        let slot_id = self.add_stream(stream);
        self.with_listener(id, |listener| listener.on_connection(slot_id));
    }

    /// The engine has taken back what was handed to this session's listeners and not accepted yet.
    pub(crate) fn give_back_connections(&mut self) {
        self.listeners.values_mut().for_each(Listener::give_back);
        let untaken = |(slot_id, stream): (SlotId, &Stream)| stream.custody.is_untaken().then_some(slot_id);
        let untaken: Vec<SlotId> = self.streams.iter().filter_map(untaken).collect();
        untaken.into_iter().for_each(|slot_id| self.remove_stream(slot_id));
    }

    /// Takes back memory that peers have read, of some streams. Called before the thread sleeps and now and then.
    pub(crate) fn sweep_lent(&mut self) {
        if self.io.session.is_foreign() {
            return;
        }
        // Backwards: with its last stream a channel may go, and another one come to its place.
        for at in (0..self.io.channels.len()).rev() {
            let looks = self.io.channels.get(at).map_or(0, |channel| SWEEP.min(channel.lent.len()));
            for _ in 0..looks {
                let lent = self.io.channels.get_mut(at).and_then(|channel| channel.lent.pop_front());
                let Some(slot_id) = lent else { break };
                self.sweep_stream(at, slot_id);
            }
        }
    }

    fn sweep_stream(&mut self, at: usize, slot_id: SlotId) {
        let Some(channel) = self.io.channels.get_mut(at) else { return };
        let Some(stream) = self.streams.get_mut(slot_id) else { return };
        let direct = stream.direct.as_mut().filter(|direct| direct.send.lent && direct.channel == channel.id);
        let Some(direct) = direct else { return };
        direct.reclaim(channel);
        direct.send.lent = direct.send.memory.outstanding() > 0;
        if direct.send.lent {
            channel.lent.push_back(slot_id);
        }
        let is_idle = !direct.send.lent;
        stream.on_reclaimed();
        if is_idle && stream.custody.is_nobodys() {
            self.orphan(slot_id);
        }
    }
}
