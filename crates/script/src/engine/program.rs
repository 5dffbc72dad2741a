//! The program above the engine: what the host library does with entries and completions, without its memory and
//! descriptors. What calls give is Linux's (the table in `toe-host`'s `socket/stream`).

use super::memory::{LAYOUT, Memory};
use crate::packet::{FAR_ADDR, STACK_ADDR};
use crate::script::{Call, ConnName, SocketOption, StateName};
use crate::stack::{LISTEN_PORT, Outcome, StackError, conn_of, far_port, number_of};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use toe_abi::command::{
    CONNECT_FAST_OPEN, ConnectArgs, FLOW_WAITS_FOR_DATA, ListenArgs, NO_HANDLE, WireAddr,
};
use toe_abi::entry::{Command, Completion, FlowOption, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_abi::report::TcpReport;
use toe_base::{AnchorHandle, Cred, FlowId, Instant, ListenerId, QueueSetId, SessionId};
use toe_engine::control::names::Twin;
use toe_engine::{ControlEvent, Engine, HostMemory};
use zerocopy::IntoBytes;

pub(super) const QS: QueueSetId = QueueSetId(0);

/// One connection of the program.
#[derive(Debug, Default)]
struct Socket {
    flow: Option<FlowId>,
    /// The program's descriptor, once it has connected or accepted.
    anchor: Option<AnchorHandle>,
    /// How the connect ended.
    connected: Option<Errno>,
    error: Errno,
    /// How many soft errors had been noted when SO_ERROR last told one.
    noted_errors_reported: u8,
    is_eof: bool,
    is_reset: bool,
    is_shut: bool,
    unread: VecDeque<MemRange>,
    /// Bytes that came, and that were read.
    arrived: u64,
    read: u64,
    /// The place of the urgent byte, until it has been read.
    urgent: Option<u64>,
    /// TCP_NOTSENT_LOWAT, and what is known not to have gone out.
    unsent_low_water: u32,
    unsent: u32,
}

/// All that the program knows.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) session: SessionId,
    sockets: [Socket; ConnName::MAX as usize],
    listener: Option<ListenerId>,
    defer_secs: u32,
    /// Options that connections get when they are accepted, as Linux lets them inherit.
    inherited: Vec<(FlowOption, u32)>,
    answer: Option<(Errno, u32)>,
    send_at: u64,
}

/// What a call works with.
pub(super) struct Cx<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) memory: &'a mut Memory,
    pub(super) now: Instant,
}

impl Program {
    /// A program that says how often a SYN is sent again, or leaves it at the default.
    pub(super) fn new(session: SessionId, syn_retries: Option<u32>) -> Program {
        Program {
            session,
            sockets: Default::default(),
            listener: None,
            defer_secs: 0,
            inherited: syn_retries.map(|value| (FlowOption::SynRetries, value)).into_iter().collect(),
            answer: None,
            send_at: 0,
        }
    }

    fn command(&self, cx: &mut Cx<'_>, command: Command, args: &[u8]) -> Result<(), StackError> {
        let mut block = [0; 64];
        block[..args.len()].copy_from_slice(args);
        cx.engine
            .handle_command(cx.now, self.session, QS, command, &block, &mut cx.memory.host)
            .map_err(|reason| StackError(format!("the engine fences the session: {reason:?}")))
    }

    /// A command that is answered.
    fn ask(&mut self, cx: &mut Cx<'_>, command: Command, args: &[u8]) -> Result<(Errno, u32), StackError> {
        self.command(cx, command, args)?;
        self.take_completions(cx)?;
        self.answer.take().ok_or_else(|| StackError("the engine did not answer a command".to_owned()))
    }

    /// Takes what the engine tells; whether there was anything.
    pub(super) fn take_completions(&mut self, cx: &mut Cx<'_>) -> Result<bool, StackError> {
        let mut any = false;
        loop {
            cx.memory.host.hear(cx.engine);
            let Some((_, completion)) = cx.memory.host.completions.pop_front() else { return Ok(any) };
            any = true;
            self.take(cx, completion)?;
        }
    }

    fn socket_of(&mut self, flow: FlowId) -> Option<&mut Socket> {
        self.sockets.iter_mut().find(|socket| socket.flow == Some(flow))
    }

    fn take(&mut self, cx: &mut Cx<'_>, completion: Completion) -> Result<(), StackError> {
        match completion {
            Completion::CommandResult { errno, id, .. } => self.answer = Some((errno, id)),
            Completion::Accepted { listener, flow } => {
                self.command(cx, Command::AcceptCredit { listener, count: 1 }, &[])?;
                let remote = cx.memory.info(self.session, flow).and_then(|info| info.remote.to_socket_addr());
                let conn = remote.and_then(|remote| conn_of(remote.port()));
                let conn = conn.ok_or_else(|| StackError(format!("accepted from {remote:?}")))?;
                self.sockets[usize::from(conn.0)] = Socket { flow: Some(flow), ..Socket::default() };
            }
            Completion::Connected { flow, errno } => {
                if let Some(socket) = self.socket_of(flow) {
                    socket.connected = Some(errno);
                    socket.is_reset = !errno.is_ok();
                    socket.error = errno;
                }
            }
            Completion::Data { flow, data } => {
                if let Some(socket) = self.socket_of(flow) {
                    socket.unread.push_back(data);
                    socket.arrived += u64::from(data.len);
                }
            }
            Completion::Urgent { flow, distance } => {
                if let Some(socket) = self.socket_of(flow) {
                    socket.urgent = Some(socket.arrived + u64::from(distance));
                }
            }
            Completion::PeerClosed { flow } => {
                if let Some(socket) = self.socket_of(flow) {
                    socket.is_eof = true;
                }
            }
            Completion::Reset { flow, errno } => {
                if let Some(socket) = self.socket_of(flow) {
                    socket.is_reset = true;
                    socket.error = errno;
                }
            }
            Completion::WentOut { flow, len } => {
                if let Some(socket) = self.socket_of(flow) {
                    socket.unsent = socket.unsent.saturating_sub(len);
                }
            }
            Completion::SoftError { flow, errno } => {
                if let Some(socket) = self.socket_of(flow) {
                    socket.error = errno;
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn call(
        &mut self,
        cx: &mut Cx<'_>,
        conn: ConnName,
        call: &Call,
        bytes: &[u8],
    ) -> Result<Outcome, StackError> {
        let at = usize::from(conn.0);
        Ok(match call {
            Call::Listen { backlog } => self.listen(cx, *backlog)?,
            Call::CloseListener => {
                if let Some(listener) = self.listener.take() {
                    self.command(cx, Command::CloseListener { listener, last: true }, &[])?;
                }
                Outcome::Done
            }
            Call::Connect { from, fast: None } => self.connect(cx, conn, *from, 0)?,
            Call::Connect { from, fast: Some(_) } => self.connect_sending(cx, conn, *from, bytes)?,
            Call::Connected(_) => self.connected(at),
            Call::Accept(_) => self.accept(cx, at)?,
            Call::Send { more, urgent, end_of_record, .. } => {
                let (more, urgent, end_of_record) = (*more, *urgent, *end_of_record);
                self.send(cx, at, bytes, |send| Send { more, urgent, end_of_record, ..send })?
            }
            Call::Read { len, .. } => self.read(cx, at, *len)?,
            Call::Shutdown { read, .. } => self.shutdown(cx, at, *read)?,
            Call::Close => self.close(cx, at, false)?,
            Call::Abort => self.close(cx, at, true)?,
            Call::Set(option, value) => self.set(cx, at, *option, *value)?,
            Call::AtMark(_) => {
                let socket = &self.sockets[at];
                Outcome::Number(i64::from(socket.urgent == Some(socket.read)))
            }
            Call::ErrorIs(_) => Outcome::Error(self.take_error(cx, at)),
            Call::State(_) => Outcome::State(state(cx, conn)),
            Call::Info(name, _) => Outcome::Number(number_of(&report(cx, at)?, *name)),
        })
    }

    /// SO_ERROR: the error that waits, or else a soft one that has not been told.
    fn take_error(&mut self, cx: &mut Cx<'_>, at: usize) -> Errno {
        let socket = &mut self.sockets[at];
        let info = socket.flow.and_then(|flow| cx.memory.info(self.session, flow));
        let noted = info.filter(|info| !socket.is_reset && info.soft_errors != socket.noted_errors_reported);
        match (core::mem::take(&mut socket.error), noted) {
            (Errno::OK, Some(info)) if info.soft_error != 0 => {
                socket.noted_errors_reported = info.soft_errors;
                Errno(info.soft_error.into())
            }
            (error, _) => error,
        }
    }

    fn flow(&self, at: usize) -> Result<FlowId, StackError> {
        let socket = &self.sockets[at];
        socket.flow.filter(|_| socket.anchor.is_some()).ok_or_else(|| {
            StackError("the program has no such connection: connect or accept first".to_owned())
        })
    }

    /// The kernel lets the program bind a socket there, and listen; the program shows it. It has no two at one port.
    fn show_twin(&self, cx: &mut Cx<'_>, at: SocketAddr, listens: bool) -> u32 {
        let twin = Twin::bound(at.into(), at.port().into(), Cred::default(), cx.now);
        cx.engine.add_twin(self.session, Twin { listens, ..twin }).unwrap_or(NO_HANDLE)
    }

    fn listen(&mut self, cx: &mut Cx<'_>, backlog: u32) -> Result<Outcome, StackError> {
        let anchor = cx.engine.take_anchor(self.session).expect("an anchor");
        let local = SocketAddr::from((STACK_ADDR, LISTEN_PORT));
        let twin = self.show_twin(cx, local, true);
        let args = ListenArgs { local: local.into(), backlog, anchor: anchor.0, twin, ..Default::default() };
        let (errno, id) = self.ask(cx, Command::Listen { token: 1 }, args.as_bytes())?;
        if !errno.is_ok() {
            return Ok(Outcome::Error(errno));
        }
        let listener = ListenerId(FlowId::from_raw(id));
        self.listener = Some(listener);
        self.command(cx, Command::FastOpen { listener, limit: backlog }, &[])?;
        self.command(cx, Command::DeferAccept { listener, secs: self.defer_secs }, &[])?;
        self.command(cx, Command::AcceptCredit { listener, count: backlog }, &[])?;
        Ok(Outcome::Done)
    }

    /// MSG_FASTOPEN: the bytes are taken if the SYN has them.
    fn connect_sending(
        &mut self,
        cx: &mut Cx<'_>,
        conn: ConnName,
        from: u16,
        bytes: &[u8],
    ) -> Result<Outcome, StackError> {
        let outcome = self.connect(cx, conn, from, CONNECT_FAST_OPEN)?;
        let at = usize::from(conn.0);
        let info = self.sockets[at].flow.and_then(|flow| cx.memory.info(self.session, flow));
        if outcome != Outcome::Done || info.is_none_or(|info| info.flags & FLOW_WAITS_FOR_DATA == 0) {
            return Ok(if outcome == Outcome::Done { Outcome::Number(0) } else { outcome });
        }
        let room = info.map_or(0, |info| usize::from(info.mss)).min(bytes.len());
        self.send(cx, at, &bytes[..room], |send| send)?;
        Ok(Outcome::Number(room as i64))
    }

    fn connect(
        &mut self,
        cx: &mut Cx<'_>,
        conn: ConnName,
        from: u16,
        flags: u32,
    ) -> Result<Outcome, StackError> {
        let anchor = cx.engine.take_anchor(self.session).expect("an anchor");
        let remote = SocketAddr::from((FAR_ADDR, far_port(conn))).into();
        let (local, twin) = if from == 0 {
            (WireAddr::default(), NO_HANDLE)
        } else {
            let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, from));
            (local.into(), self.show_twin(cx, local, false))
        };
        let args = ConnectArgs { remote, local, anchor: anchor.0, flags, twin, ..Default::default() };
        let (errno, id) = self.ask(cx, Command::Connect { token: 2 }, args.as_bytes())?;
        if !errno.is_ok() {
            return Ok(Outcome::Error(errno));
        }
        let flow = FlowId::from_raw(id);
        self.sockets[usize::from(conn.0)] =
            Socket { flow: Some(flow), anchor: Some(anchor), ..Socket::default() };
        self.inherit(cx, flow)?;
        Ok(Outcome::Done)
    }

    fn inherit(&self, cx: &mut Cx<'_>, flow: FlowId) -> Result<(), StackError> {
        for (option, value) in &self.inherited {
            self.command(cx, Command::SetOption { flow, option: *option, value: *value }, &[])?;
        }
        Ok(())
    }

    fn connected(&mut self, at: usize) -> Outcome {
        let socket = &mut self.sockets[at];
        match (core::mem::take(&mut socket.error), socket.connected) {
            (Errno::OK, Some(Errno::OK)) => Outcome::Done,
            (Errno::OK, _) => Outcome::Nothing,
            (errno, _) => Outcome::Error(errno),
        }
    }

    fn accept(&mut self, cx: &mut Cx<'_>, at: usize) -> Result<Outcome, StackError> {
        let Some(flow) = self.sockets[at].flow.filter(|_| self.sockets[at].anchor.is_none()) else {
            return Ok(Outcome::Nothing);
        };
        let anchor = cx.engine.take_anchor(self.session).expect("an anchor");
        self.command(cx, Command::Accept { flow, anchor, fd: at as u32 }, &[])?;
        self.sockets[at].anchor = Some(anchor);
        self.inherit(cx, flow)?;
        Ok(Outcome::Done)
    }

    fn send(
        &mut self,
        cx: &mut Cx<'_>,
        at: usize,
        bytes: &[u8],
        with_flags: impl FnOnce(Send) -> Send,
    ) -> Result<Outcome, StackError> {
        let flow = self.flow(at)?;
        let socket = &mut self.sockets[at];
        if socket.is_shut || socket.is_reset || !socket.error.is_ok() {
            let error = core::mem::take(&mut socket.error);
            return Ok(Outcome::Error(if error.is_ok() { Errno::EPIPE } else { error }));
        }
        if socket.unsent_low_water > 0 {
            if socket.unsent >= socket.unsent_low_water {
                return Ok(Outcome::Nothing);
            }
            socket.unsent += bytes.len() as u32;
        }
        if self.send_at + bytes.len() as u64 > LAYOUT.send_len {
            return Err(StackError("the script sends more than the program has memory for".to_owned()));
        }
        let offset = LAYOUT.send_offset() + self.send_at;
        self.send_at += bytes.len() as u64;
        cx.memory.host.write(self.session, offset, bytes);
        let data = MemRange { offset, len: bytes.len() as u32 };
        cx.engine
            .handle_send(cx.now, self.session, with_flags(Send::new(flow, data)))
            .map_err(|reason| StackError(format!("the engine fences the session: {reason:?}")))?;
        Ok(Outcome::Done)
    }

    fn read(&mut self, cx: &mut Cx<'_>, at: usize, len: u32) -> Result<Outcome, StackError> {
        let flow = self.flow(at)?;
        let mut bytes = Vec::new();
        while let Some(range) = self.sockets[at].unread.front_mut().filter(|_| bytes.len() < len as usize) {
            let take = range.len.min(len - bytes.len() as u32);
            let mut part = vec![0; take as usize];
            cx.memory.host.read(self.session, range.offset, &mut part);
            bytes.extend_from_slice(&part);
            range.offset += u64::from(take);
            range.len -= take;
            if range.len == 0 {
                self.sockets[at].unread.pop_front();
            }
            cx.engine
                .handle_credit(cx.now, self.session, ReceiveCredit { flow, len: take })
                .map_err(|reason| StackError(format!("the engine fences the session: {reason:?}")))?;
        }
        let socket = &mut self.sockets[at];
        socket.read += bytes.len() as u64;
        socket.urgent = socket.urgent.filter(|urgent| *urgent >= socket.read);
        Ok(match (bytes.is_empty(), core::mem::take(&mut socket.error)) {
            (false, error) => {
                socket.error = error;
                Outcome::Bytes(bytes)
            }
            (true, error) if !error.is_ok() => Outcome::Error(error),
            _ if socket.is_eof || socket.is_reset => Outcome::EndOfFile,
            _ => Outcome::Nothing,
        })
    }

    fn shutdown(&mut self, cx: &mut Cx<'_>, at: usize, read: bool) -> Result<Outcome, StackError> {
        let flow = self.flow(at)?;
        if self.sockets[at].is_reset {
            return Ok(Outcome::Error(Errno::ENOTCONN));
        }
        if read {
            self.command(cx, Command::SetOption { flow, option: FlowOption::ReceiveShut, value: 1 }, &[])?;
            self.sockets[at].is_eof = true;
        } else {
            self.sockets[at].is_shut = true;
            self.command(cx, Command::ShutdownSend { flow }, &[])?;
        }
        Ok(Outcome::Done)
    }

    fn close(&mut self, cx: &mut Cx<'_>, at: usize, abort: bool) -> Result<Outcome, StackError> {
        let flow = self.flow(at)?;
        let anchor = self.sockets[at].anchor;
        self.sockets[at] = Socket::default();
        self.command(cx, Command::Close { flow, abort }, &[])?;
        if let Some(anchor) = anchor {
            cx.engine.handle_control(cx.now, ControlEvent::LastClose(anchor), &mut cx.memory.host);
        }
        Ok(Outcome::Done)
    }

    fn set(
        &mut self,
        cx: &mut Cx<'_>,
        at: usize,
        option: SocketOption,
        value: u32,
    ) -> Result<Outcome, StackError> {
        let option = match option {
            SocketOption::NoDelay => FlowOption::NoDelay,
            SocketOption::Cork => FlowOption::Cork,
            SocketOption::KeepAlive => FlowOption::KeepAlive,
            SocketOption::KeepIdle => FlowOption::KeepIdleSecs,
            SocketOption::KeepInterval => FlowOption::KeepIntervalSecs,
            SocketOption::KeepCount => FlowOption::KeepCount,
            SocketOption::UserTimeoutMs => FlowOption::UserTimeoutMs,
            SocketOption::ReceiveBuffer => FlowOption::ReceiveWindowMax,
            SocketOption::TimeToLive => FlowOption::HopLimit,
            SocketOption::ReceiveErrors => FlowOption::SoftErrors,
            SocketOption::NotSentLowWater => {
                self.sockets[at].unsent_low_water = value;
                FlowOption::UnsentLowWater
            }
            SocketOption::DeferAccept => {
                self.defer_secs = value;
                return Ok(Outcome::Done);
            }
        };
        match self.flow(at) {
            Ok(flow) => self.command(cx, Command::SetOption { flow, option, value }, &[])?,
            // Before there is a connection: for all that come.
            Err(_) => self.inherited.push((option, value)),
        }
        Ok(Outcome::Done)
    }
}

/// What `toe ss -i` shows of the connection.
fn report(cx: &Cx<'_>, at: usize) -> Result<TcpReport, StackError> {
    let port = far_port(ConnName(at as u8));
    let mut sockets = cx.engine.view().sockets(cx.now).into_iter();
    let found = sockets.find_map(|socket| socket.tcp.filter(|_| socket.remote.port() == port));
    found.ok_or_else(|| StackError("there is no such connection".to_owned()))
}

/// The state of a connection, which the program may not have any more.
fn state(cx: &Cx<'_>, conn: ConnName) -> StateName {
    let sockets = cx.engine.view().sockets(cx.now);
    let found = sockets.iter().find(|socket| !socket.listener && socket.remote.port() == far_port(conn));
    found.map_or(StateName::Closed, |socket| StateName::of_ss(socket.state))
}
