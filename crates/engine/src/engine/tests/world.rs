//! Two engines and the wire between them, in virtual time: the harness of the engine's tests.
//!
//! Each side has one session whose "program" is the test itself. The wire delays frames, and can drop, duplicate
//! and reorder them from a seed.

pub(super) use super::memory::{LAYOUT, Memory, Outbox};
use crate::ControlEvent;
use crate::control::names::Twin;
use crate::work::Link;
use crate::{Engine, EngineConfig, FastOpenMode, HostMemory, NetworkChange, Quotas};
use core::net::SocketAddr;
use std::collections::VecDeque;
use toe_abi::command::{
    CONNECT_FAST_OPEN, CONNECT_KERNEL_TOO, ConnectArgs, LISTEN_V6_ONLY, ListenArgs, NO_HANDLE, WireAddr,
};
use toe_abi::entry::{Command, Completion, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{
    Addr, AnchorHandle, Cred, Endpoint, FlowId, Instant, ListenerId, NetNs, PortId, QueueSetId, SessionId,
};
use toe_tcp::config::TcpConfig;
use toe_wire::icmpv6::link_local_of;
use toe_wire::link::{LinkCaps, MacAddr, RxOffload, TxOffload};
use zerocopy::IntoBytes;

const QS: QueueSetId = QueueSetId(0);

/// What the program knows of one of its connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Conn {
    pub(super) id: FlowId,
    pub(super) established: bool,
    pub(super) received: Vec<u8>,
    pub(super) unread: VecDeque<MemRange>,
    pub(super) eof: bool,
    pub(super) errno: Option<Errno>,
    pub(super) soft_errors: Vec<Errno>,
    pub(super) went_out: Vec<u32>,
    pub(super) moved: bool,
    pub(super) sent: u64,
    pub(super) acked: u64,
    pub(super) anchor: AnchorHandle,
}

/// One engine with a session and its program.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) engine: Engine,
    pub(super) memory: Memory,
    pub(super) session: SessionId,
    pub(super) conns: Vec<Conn>,
    pub(super) listeners: Vec<ListenerId>,
    pub(super) last_result: Option<(Errno, u32)>,
    /// Read data as soon as it is announced.
    pub(super) reads: bool,
    /// Leave completions in their ring.
    pub(super) deaf: bool,
    /// Programs close what they accepted before the engine has the entry that says so.
    pub(super) closes_early: bool,
    /// What the next connection has for an anchor, instead of a new one.
    pub(super) next_anchor: Option<AnchorHandle>,
    /// Anchors that the engine has told of: free, or shared.
    pub(super) anchors_told: Vec<(AnchorHandle, bool)>,
    /// Programs have bytes for the SYN when they connect.
    pub(super) fast: bool,
    /// Its programs can ask the kernel's stack.
    pub(super) kernel_too: bool,
    pub(super) outbox: Outbox,
    send_at: u64,
    /// Kernel sockets that its programs have had.
    twins: u64,
}

impl Side {
    pub(super) fn new(number: u8, caps: LinkCaps) -> Side {
        Side::with_quotas(number, caps, Quotas::default())
    }

    pub(super) fn with_quotas(number: u8, caps: LinkCaps, quotas: Quotas) -> Side {
        let mut engine = Engine::new(EngineConfig {
            secret: [number; 16],
            netns: NetNs(0),
            ports: crate::PortRange::DEFAULT,
            quotas,
            flows_max: 256,
            direct: true,
            // Listeners have to ask for it all the same.
            tcp: TcpConfig { fast_open: FastOpenMode::Both, ..TcpConfig::default() },
        });
        let link = Link { mac: MacAddr([2, 0, 0, 0, 0, number]), zone: 1, mtu: 1500, caps, vlan: None };
        let port = engine.add_port(link);
        engine.handle_network(NetworkChange::Loopback);
        let addrs = [
            (Addr::from([10, 0, 0, number]), 24),
            (Endpoint::from(addr6(usize::from(number) - 1, 0)).addr, 64),
            (link_local_of(link.mac, link.zone), 64),
        ];
        for (addr, prefix_len) in addrs {
            engine.handle_network(NetworkChange::Address { port, addr, prefix_len });
        }
        let session = engine.open_session(Cred::default(), LAYOUT).expect("room");
        engine.add_queue_set(session).expect("room");
        let memory = Memory::with_ring(64);
        Side {
            engine,
            memory,
            session,
            conns: Vec::new(),
            listeners: Vec::new(),
            last_result: None,
            reads: true,
            deaf: false,
            closes_early: false,
            next_anchor: None,
            anchors_told: Vec::new(),
            fast: false,
            kernel_too: false,
            outbox: Outbox::default(),
            send_at: 0,
            twins: 0,
        }
    }

    /// A program shows a kernel socket of its own.
    pub(super) fn show(&mut self, twin: Twin) -> u32 {
        self.engine.add_twin(self.session, twin).expect("room")
    }

    /// One more kernel socket, bound there. Those that tests number themselves have low numbers.
    pub(super) fn next_twin(&mut self, now: Instant, at: Endpoint) -> Twin {
        self.twins += 1;
        Twin::bound(at, 1_000_000 + self.twins, Cred::default(), now)
    }

    pub(super) fn command(&mut self, now: Instant, command: Command, args: &[u8; 64]) {
        self.engine
            .handle_command(now, self.session, QS, command, args, &mut self.memory)
            .expect("a well-formed command");
    }

    /// A command without arguments. Who closes has the only copy of the descriptor.
    pub(super) fn plain(&mut self, now: Instant, command: Command) {
        let closed = if let Command::Close { flow, .. } = command { self.anchor_of(flow) } else { None };
        self.command(now, command, &[0; 64]);
        if let Some(anchor) = closed {
            self.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut self.memory);
        }
    }

    fn anchor_of(&self, flow: FlowId) -> Option<AnchorHandle> {
        let idx = self.engine.hostif.sessions.get(self.session)?.flows.get(flow)?;
        self.engine.flows.get(idx).conn.tenancy.lifetime()
    }

    pub(super) fn listen(&mut self, now: Instant, at: SocketAddr) -> Result<ListenerId, Errno> {
        self.listen_for(now, at, 64)
    }

    /// The same with room for so many connections that wait.
    pub(super) fn listen_for(
        &mut self,
        now: Instant,
        at: SocketAddr,
        backlog: u32,
    ) -> Result<ListenerId, Errno> {
        let twin = self.next_twin(now, at.into());
        let twin = self.show(Twin { listens: true, ..twin });
        self.listen_as(now, ListenArgs { local: at.into(), backlog, twin, ..Default::default() })
    }

    /// The same for IPv6 alone.
    pub(super) fn listen_v6_only(&mut self, now: Instant, at: SocketAddr) -> Result<ListenerId, Errno> {
        let twin = self.next_twin(now, at.into());
        let twin = self.show(Twin { listens: true, v6_only: true, ..twin });
        let (local, flags) = (at.into(), LISTEN_V6_ONLY);
        self.listen_as(now, ListenArgs { local, backlog: 64, twin, flags, ..Default::default() })
    }

    /// The same with the handle of a kernel socket.
    pub(super) fn listen_with(
        &mut self,
        now: Instant,
        at: SocketAddr,
        twin: u32,
    ) -> Result<ListenerId, Errno> {
        self.listen_as(now, ListenArgs { local: at.into(), backlog: 64, twin, ..Default::default() })
    }

    pub(super) fn listen_as(&mut self, now: Instant, args: ListenArgs) -> Result<ListenerId, Errno> {
        let id = self.listen_untaken(now, args)?;
        self.plain(now, Command::AcceptCredit { listener: id, count: 64 });
        Ok(id)
    }

    /// One whose connections this session does not take.
    pub(super) fn listen_without_credit(
        &mut self,
        now: Instant,
        at: SocketAddr,
    ) -> Result<ListenerId, Errno> {
        let twin = self.next_twin(now, at.into());
        let twin = self.show(Twin { listens: true, ..twin });
        self.listen_untaken(now, ListenArgs { local: at.into(), backlog: 64, twin, ..Default::default() })
    }

    pub(super) fn listen_untaken(&mut self, now: Instant, args: ListenArgs) -> Result<ListenerId, Errno> {
        let anchor = self.engine.hostif.new_anchor(self.session);
        let args = ListenArgs { anchor: anchor.0, ..args };
        let mut block = [0; 64];
        block.copy_from_slice(args.as_bytes());
        self.command(now, Command::Listen { token: 1 }, &block);
        self.poll_completions(now);
        let (errno, id) = self.last_result.take().expect("answered");
        if !errno.is_ok() {
            return Err(errno);
        }
        let id = ListenerId(FlowId::from_raw(id));
        self.listeners.push(id);
        Ok(id)
    }

    /// Starts to connect; the connection is the last of `conns`.
    pub(super) fn connect(&mut self, now: Instant, to: SocketAddr) -> Result<usize, Errno> {
        self.connect_from(now, WireAddr::default(), to)
    }

    /// The same from an address that the program has bound.
    pub(super) fn connect_from(
        &mut self,
        now: Instant,
        local: WireAddr,
        to: SocketAddr,
    ) -> Result<usize, Errno> {
        let bound = local.to_endpoint().filter(|local| local.port != 0);
        let twin = match bound {
            Some(local) => {
                let twin = self.next_twin(now, local);
                self.show(twin)
            }
            None => NO_HANDLE,
        };
        self.connect_with(now, local, to, twin)
    }

    /// The same with the handle of a kernel socket.
    pub(super) fn connect_with(
        &mut self,
        now: Instant,
        local: WireAddr,
        to: SocketAddr,
        twin: u32,
    ) -> Result<usize, Errno> {
        let new = self.next_anchor.take();
        let anchor = new.unwrap_or_else(|| self.engine.hostif.new_anchor(self.session));
        let fast = if self.fast { CONNECT_FAST_OPEN } else { 0 };
        let flags = fast | if self.kernel_too { CONNECT_KERNEL_TOO } else { 0 };
        let args =
            ConnectArgs { remote: to.into(), local, anchor: anchor.0, flags, twin, ..Default::default() };
        let mut block = [0; 64];
        block.copy_from_slice(args.as_bytes());
        self.command(now, Command::Connect { token: 2 }, &block);
        self.poll_completions(now);
        let (errno, id) = self.last_result.take().expect("answered");
        if !errno.is_ok() {
            return Err(errno);
        }
        self.conns.push(Conn { id: FlowId::from_raw(id), anchor, ..Conn::default() });
        Ok(self.conns.len() - 1)
    }

    pub(super) fn send(&mut self, now: Instant, conn: usize, bytes: &[u8]) {
        self.send_flagged(now, conn, bytes, |send| send);
    }

    /// The same as a record (MSG_EOR).
    pub(super) fn send_record(&mut self, now: Instant, conn: usize, bytes: &[u8]) {
        self.send_flagged(now, conn, bytes, |send| Send { end_of_record: true, ..send });
    }

    fn send_flagged(&mut self, now: Instant, conn: usize, bytes: &[u8], flagged: impl FnOnce(Send) -> Send) {
        let part = LAYOUT.send_len;
        if self.send_at + bytes.len() as u64 > part {
            self.send_at = 0;
        }
        let offset = LAYOUT.send_offset() + self.send_at;
        self.send_at += bytes.len() as u64;
        self.memory.write(self.session, offset, bytes);
        let data = MemRange { offset, len: bytes.len() as u32 };
        let flow = self.conns[conn].id;
        self.conns[conn].sent += bytes.len() as u64;
        self.engine.handle_send(now, self.session, flagged(Send::new(flow, data))).expect("in range");
    }

    /// Bytes of a connection that the peer has acknowledged, told or not.
    pub(super) fn acknowledged(&self, conn: usize) -> u64 {
        let flows = &self.engine.hostif.sessions.get(self.session).expect("attached").flows;
        let idx = flows.get(self.conns[conn].id).expect("open");
        self.conns[conn].sent - u64::from(self.engine.flows.get(idx).tcb.sending.queue.len())
    }

    /// Reads everything that was announced.
    pub(super) fn read(&mut self, now: Instant, conn: usize) {
        while let Some(range) = self.conns[conn].unread.pop_front() {
            let mut bytes = vec![0; range.len as usize];
            self.memory.read(self.session, range.offset, &mut bytes);
            self.conns[conn].received.extend_from_slice(&bytes);
            let credit = ReceiveCredit { flow: self.conns[conn].id, len: range.len };
            self.engine.handle_credit(now, self.session, credit).expect("credit for announced data");
        }
    }

    fn conn_by_id(&mut self, id: FlowId) -> &mut Conn {
        self.conns.iter_mut().find(|c| c.id == id).expect("a completion for a known flow")
    }

    pub(super) fn poll_completions(&mut self, now: Instant) -> bool {
        let mut any = false;
        loop {
            self.memory.hear(&mut self.engine);
            let at = self.session.index();
            self.memory.region(self.session);
            if self.deaf {
                return any;
            }
            let Some(completion) = self.memory.completions[at].pop_front() else { return any };
            any = true;
            self.take(now, completion);
        }
    }

    fn take(&mut self, now: Instant, completion: Completion) {
        match completion {
            Completion::CommandResult { errno, id, .. } => self.last_result = Some((errno, id)),
            Completion::Accepted { flow, listener } => {
                self.plain(now, Command::AcceptCredit { listener, count: 1 });
                let anchor = self.engine.hostif.new_anchor(self.session);
                if self.closes_early {
                    self.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut self.memory);
                }
                assert!(self.memory.owns(self.session, flow, (Owned::Offered, Owned::Held)));
                self.plain(now, Command::Accept { flow, anchor, fd: 9 });
                self.conns.push(Conn { id: flow, established: true, anchor, ..Conn::default() });
            }
            Completion::Connected { flow, errno } => {
                let conn = self.conn_by_id(flow);
                conn.established = errno.is_ok();
                conn.errno = (!errno.is_ok()).then_some(errno);
            }
            Completion::Data { flow, data } => {
                self.conn_by_id(flow).unread.push_back(data);
                if self.reads {
                    let conn = self.conns.iter().position(|c| c.id == flow).expect("known");
                    self.read(now, conn);
                }
            }
            Completion::Sent { flow, len } => self.conn_by_id(flow).acked += u64::from(len),
            Completion::PeerClosed { flow } => self.conn_by_id(flow).eof = true,
            Completion::Reset { flow, errno } => self.conn_by_id(flow).errno = Some(errno),
            Completion::WentOut { flow, len } => self.conn_by_id(flow).went_out.push(len),
            Completion::SoftError { flow, errno } => self.conn_by_id(flow).soft_errors.push(errno),
            Completion::Moved { flow } => self.conn_by_id(flow).moved = true,
            Completion::AnchorFree { anchor } => self.anchors_told.push((anchor, true)),
            // Its connections are answered.
            Completion::ConnectCredit { .. } => {}
            Completion::AnchorShared { anchor } => self.anchors_told.push((anchor, false)),
            other => panic!("no channels in this world: {other:?}"),
        }
    }
}

/// What the wire does to frames, out of 1000.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) drop: u32,
    pub(super) reorder: u32,
    pub(super) duplicate: u32,
}

/// Both sides, the wire and the clock.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) sides: [Side; 2],
    pub(super) faults: Faults,
    pub(super) latency_us: u64,
    /// Every frame that was sent: (when, from, bytes).
    pub(super) log: Vec<(Instant, usize, Vec<u8>)>,
    in_flight: Vec<(Instant, u64, usize, Vec<u8>, RxOffload)>,
    order: u64,
    seed: u64,
    pub(super) unplugged: bool,
    /// Longer frames vanish.
    pub(super) longest: usize,
    /// Only each so-manieth frame arrives.
    pub(super) keep_one_in: u64,
    launched: u64,
}

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

pub(super) fn addr(side: usize, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, side as u8 + 1], port))
}

/// The same side's address of IPv6.
pub(super) fn addr6(side: usize, port: u16) -> SocketAddr {
    SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, side as u16 + 1], port))
}

impl World {
    pub(super) fn new() -> World {
        World::with_caps(LinkCaps { tx_checksum: true, gso_max: 65_000, ..LinkCaps::default() })
    }

    pub(super) fn with_caps(caps: LinkCaps) -> World {
        World {
            now: Instant::ZERO.after_us(1000),
            sides: [Side::new(1, caps), Side::new(2, caps)],
            faults: Faults::default(),
            latency_us: 50,
            log: Vec::new(),
            in_flight: Vec::new(),
            order: 0,
            seed: 1,
            unplugged: false,
            longest: usize::MAX,
            keep_one_in: 1,
            launched: 0,
        }
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.seed = seed;
    }

    fn random(&mut self, below: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.seed >> 33) as u32) % below
    }

    fn launch(&mut self, from: usize, frame: Vec<u8>, offload: TxOffload) {
        self.log.push((self.now, from, frame.clone()));
        self.launched += 1;
        let kept = self.launched.is_multiple_of(self.keep_one_in);
        if self.unplugged || frame.len() > self.longest || !kept || self.random(1000) < self.faults.drop {
            return;
        }
        let copies = 1 + usize::from(self.random(1000) < self.faults.duplicate);
        for _ in 0..copies {
            let late = if self.random(1000) < self.faults.reorder { 3 * self.latency_us + 100 } else { 0 };
            let rx = RxOffload {
                checksum_ok: offload.checksum.is_some(),
                coalesced_mss: offload.segmentation.map(|s| s.mss),
            };
            self.order += 1;
            let at = self.now.after_us(self.latency_us + late);
            self.in_flight.push((at, self.order, 1 - from, frame.clone(), rx));
        }
    }

    /// Lets everything happen that can happen now. Returns whether anything did.
    fn settle(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut moved = false;
            for from in [A, B] {
                let now = self.now;
                let side = &mut self.sides[from];
                moved |= side.engine.poll_local(now, &mut side.memory, 64) > 0;
                let sent = side.engine.poll_transmit(now, PortId(0), &mut side.outbox, &mut side.memory, 64);
                moved |= sent > 0;
                moved |= side.poll_completions(now);
                for (frame, offload) in core::mem::take(&mut side.outbox.sent) {
                    self.launch(from, frame, offload);
                }
            }
            if !moved {
                return any;
            }
            any = true;
        }
    }

    /// The next moment at which something happens.
    fn next_event(&self) -> Instant {
        let wire = self.in_flight.iter().map(|f| f.0);
        let engines = self.sides.iter().map(|s| s.engine.poll_timeout());
        wire.chain(engines).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Runs until `done`, or until nothing will ever happen, or `limit_ms` of virtual time have passed. Returns
    /// whether `done` came true.
    pub(super) fn run_until(&mut self, limit_ms: u64, mut done: impl FnMut(&World) -> bool) -> bool {
        let limit = self.now.after_us(limit_ms * 1000);
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            let next = self.next_event();
            if next > limit {
                self.now = limit;
                return false;
            }
            self.now = self.now.max(next);
            self.deliver();
            for side in &mut self.sides {
                side.engine.handle_timeout(self.now, &mut side.memory);
            }
        }
    }

    /// Lets virtual time pass.
    pub(super) fn run_ms(&mut self, ms: u64) {
        self.run_until(ms, |_| false);
    }

    fn deliver(&mut self) {
        let now = self.now;
        let mut due: Vec<_> = self.in_flight.extract_if(.., |f| f.0 <= now).collect();
        due.sort_by_key(|f| (f.0, f.1));
        for (_, _, to, frame, offload) in due {
            let side = &mut self.sides[to];
            let incoming = side.engine.handle_frame(now, PortId(0), &frame, offload, &mut side.memory);
            side.memory.take(now, &mut side.engine, incoming);
        }
    }

    /// What is on its way arrives before either side sends anything.
    pub(super) fn hear_first(&mut self) {
        self.now = self.in_flight.iter().map(|f| f.0).max().unwrap_or(self.now);
        self.deliver();
    }

    /// An established connection from A to B's listener: (A's, B's) connection numbers.
    pub(super) fn connected(&mut self) -> (usize, usize) {
        self.connected_to(addr(B, 80))
    }

    /// The same to this address of B's.
    pub(super) fn connected_to(&mut self, at: SocketAddr) -> (usize, usize) {
        let now = self.now;
        if self.sides[B].listeners.is_empty() {
            self.sides[B].listen(now, at).expect("listens");
        }
        let before = self.sides[B].conns.len();
        let a = self.sides[A].connect(now, at).expect("connects");
        assert!(self.run_until(5000, |w| w.sides[A].conns[a].established && w.sides[B].conns.len() > before));
        (a, before)
    }

    /// Sends all of `data` one way while the other side reads; sends more as acknowledgements come.
    pub(super) fn transfer(
        &mut self,
        from: usize,
        conns: (usize, usize),
        data: &[u8],
        limit_ms: u64,
    ) -> bool {
        let (sender, receiver) = if from == A { conns } else { (conns.1, conns.0) };
        let mut at = 0;
        let start = self.sides[1 - from].conns[receiver].received.len();
        let limit = self.now.after_us(limit_ms * 1000);
        while self.sides[1 - from].conns[receiver].received.len() - start < data.len() {
            let conn = &self.sides[from].conns[sender];
            let room = (256 << 10) - (conn.sent - conn.acked) as usize;
            let chunk = room.min(data.len() - at).min(64 << 10);
            if chunk > 0 {
                let now = self.now;
                self.sides[from].send(now, sender, &data[at..at + chunk]);
                at += chunk;
            }
            let goal = self.sides[from].conns[sender].acked;
            let got = self.sides[1 - from].conns[receiver].received.len();
            self.run_until(1000, |w| {
                w.sides[from].conns[sender].acked > goal
                    || w.sides[1 - from].conns[receiver].received.len() > got
            });
            if self.now >= limit {
                return false;
            }
        }
        self.sides[1 - from].conns[receiver].received[start..] == *data
    }

    /// `Command::Close` for a connection.
    pub(super) fn close(&mut self, side: usize, conn: usize) {
        let now = self.now;
        let flow = self.sides[side].conns[conn].id;
        self.sides[side].plain(now, Command::Close { flow, abort: false });
    }
}

/// Recognisable, seeded bytes.
pub(super) fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 23) as u8).collect()
}
