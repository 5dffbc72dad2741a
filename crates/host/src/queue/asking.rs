//! Questions to the engine that a command asks, and what the engine has written down.

use crate::queue::{Pending, Queue, QueueSet};
use crate::socket::stream::Stream;
use crate::socket::{Kind, Socket};
use rustix::fd::RawFd;
use std::net::SocketAddr;
use toe_abi::command::{ConnectArgs, ListenArgs};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_abi::tcp_info::FlowDetail;
use toe_base::{AnchorHandle, FlowId, ListenerId};

impl Queue {
    /// Publishes a question about something of `socket`, `Inspect` or `CountWaiting`; the token of its result, or `None` when there is no room now.
    pub(crate) fn start_asking(
        &mut self,
        owner_queue: &'static QueueSet,
        socket: &'static Socket,
        question: impl FnOnce(u32) -> Command,
    ) -> Option<u32> {
        if !self.io.deferred.is_empty() {
            // What it is to tell of comes first.
            return None;
        }
        let token = self.io.session.next_token();
        self.io.ring.push_command(question(token)).ok()?;
        Some(self.await_result(token, owner_queue, socket))
    }

    /// What the engine has written down.
    pub(crate) fn flow_detail(&self, flow: FlowId) -> FlowDetail {
        let layout = self.io.session.layout();
        if flow.slot() >= layout.flows as usize {
            return FlowDetail::default();
        }
        self.io.region.read_record(layout.flow_detail(flow.slot())).unwrap_or_default()
    }

    /// Publishes `Connect` for `socket`; the token of its result, or `None` when there is no room now.
    pub fn start_connect(
        &mut self,
        owner_queue: &'static QueueSet,
        socket: &'static Socket,
        args: &ConnectArgs,
    ) -> Option<u32> {
        let token = self.io.session.next_token();
        self.io.ring.push_connect(token, args).ok()?;
        Some(self.await_result(token, owner_queue, socket))
    }

    /// Publishes a `Connect` that is not answered, from any port; the flow's id. `None`: there is no credit for it, or no room now.
    pub fn begin_connect(
        &mut self,
        (anchor, fd): (AnchorHandle, RawFd),
        remote: SocketAddr,
        names: u32,
    ) -> Option<FlowId> {
        let flow = self.connect_credit.take(remote, names, self.io.session.heard())?;
        let (anchor, fd) = (anchor.0, fd as u32);
        let args =
            ConnectArgs { remote: remote.into(), anchor, fd, flow: flow.raw(), ..ConnectArgs::default() };
        if self.io.ring.push_connect(self.io.session.next_token(), &args).is_err() {
            self.connect_credit.give(flow);
            return None;
        }
        self.io.ring();
        Some(flow)
    }

    /// Publishes `Listen` for `socket`; the token of its result, or `None` when there is no room now.
    pub fn start_listen(
        &mut self,
        owner_queue: &'static QueueSet,
        socket: &'static Socket,
        args: &ListenArgs,
    ) -> Option<u32> {
        let token = self.io.session.next_token();
        self.io.ring.push_listen(token, args).ok()?;
        Some(self.await_result(token, owner_queue, socket))
    }

    pub(crate) fn await_result(
        &mut self,
        token: u32,
        owner_queue: &'static QueueSet,
        socket: &'static Socket,
    ) -> u32 {
        self.pending.push(Pending { token, socket, owner_queue, result: None, abandoned: false });
        self.io.ring();
        token
    }

    /// The result of a command, once.
    pub fn take_result(&mut self, token: u32) -> Option<Result<u32, Errno>> {
        let at = self.pending.iter().position(|p| p.token == token && p.result.is_some())?;
        self.pending.swap_remove(at).result
    }

    /// Nobody waits for `token` any more.
    pub fn abandon_result(&mut self, token: u32) {
        self.pending.iter_mut().filter(|p| p.token == token).for_each(|p| p.abandoned = true);
    }

    /// Whether the engine has not answered yet what nobody waits for any more.
    pub(crate) fn has_pending_answer(&self) -> bool {
        self.pending.iter().any(|pending| pending.abandoned && pending.result.is_none())
    }

    pub(super) fn on_result(&mut self, token: u32, command: u8, errno: Errno, id: u32) {
        let Some(at) = self.pending.iter().position(|p| p.token == token) else { return };
        let Pending { socket, owner_queue, .. } = self.pending[at];
        let abandoned = self.pending[at].abandoned;
        let result = if errno.is_ok() { Ok(id) } else { Err(errno) };
        if abandoned {
            self.pending.swap_remove(at);
            match result {
                Ok(id) if command == Command::CONNECT => {
                    self.io.command(Command::Close { flow: FlowId::from_raw(id), abort: true });
                }
                Ok(id) if command == Command::LISTEN => {
                    let listener = ListenerId(FlowId::from_raw(id));
                    self.io.command(Command::CloseListener { listener, last: true });
                }
                _ => {}
            }
            return;
        }
        if let (Ok(id), Command::CONNECT) = (result, command) {
            let flow = FlowId::from_raw(id);
            let mut stream = Stream::connecting(flow, socket);
            stream.read_addrs(&self.flow_info(flow));
            let slot_id = self.add_stream(stream);
            socket.move_in(owner_queue, slot_id, Kind::Stream);
        }
        self.pending[at].result = Some(result);
        socket.kick_waiters();
    }
}
