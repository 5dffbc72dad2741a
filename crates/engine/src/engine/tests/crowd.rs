//! Two engines with several processes each, over a bad wire, in virtual time: the harness of the swarm test. It plays
//! the daemons, the host libraries and the wire; what the programs do is decided elsewhere.

use super::crowd_parts::{
    Faults, Host, Listening, Memory, Outbox, Process, Random, Socket, free_blocks, octet,
};
use crate::flow::tcp::open::TcpConfig;
use crate::work::Link;
use crate::{Claimed, Engine, EngineConfig, HostSide, STAGING_LEN};
use core::net::SocketAddr;
use std::collections::{HashMap, HashSet};
use toe_abi::attach::FenceReason;
use toe_abi::command::{ConnectArgs, ListenArgs, NO_HANDLE};
use toe_abi::entry::{Command, Completion, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::arena::Arena;
use toe_base::{FlowId, Instant, ListenerId, PortId, QueueSetId, SessionId};
use toe_wire::link::{LinkCaps, MacAddr, RxOffload, TxOffload};
use zerocopy::IntoBytes;

const QS: QueueSetId = QueueSetId(0);
const PORT: PortId = PortId(0);

#[derive(Debug)]
pub(super) struct Crowd {
    pub(super) now: Instant,
    pub(super) random: Random,
    pub(super) hosts: [Host; 2],
    pub(super) sockets: Vec<Socket>,
    /// Listeners at which connections wait: host, process, name.
    asking: HashSet<(usize, usize, ListenerId)>,
    pub(super) listeners: Vec<Listening>,
    /// Octets that each end has given to its engine, by (own address, peer's address).
    pub(super) sent: HashMap<(SocketAddr, SocketAddr), u64>,
    pub(super) faults: Faults,
    in_flight: Vec<(Instant, u64, usize, Vec<u8>, RxOffload)>,
    order: u64,
    receive_len: u64,
}

impl Crowd {
    pub(super) fn new(seed: u64) -> Crowd {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        let gso = if random.one_in(2) { 65_000 } else { 0 };
        let caps = LinkCaps { tx_checksum: random.one_in(2), gso_max: gso };
        let receive_len = [1 << 16, 1 << 19, 8 << 20][random.below(3) as usize];
        let flows_max = [24, 200][random.below(2) as usize];
        let host = |number: u8| {
            let mut engine = Engine::new(EngineConfig {
                secret: [number; 16],
                flows_max,
                direct: true,
                tcp: TcpConfig::default(),
            });
            let mac = MacAddr([2, 0, 0, 0, 0, number]);
            let port = engine.add_port(Link { mac, zone: 1, mtu: 1500, caps, vlan: None });
            engine.add_local();
            engine.add_addr(port, [10, 0, 0, number].into(), 24);
            let mut memory = Memory { ring_len: 64, ..Memory::default() };
            memory.open(SessionId(0), STAGING_LEN);
            Host { engine, memory, processes: Vec::new(), closing: Vec::new(), outbox: Outbox::default() }
        };
        let mut crowd = Crowd {
            now: Instant::ZERO.after_us(1000),
            random,
            hosts: [host(1), host(2)],
            sockets: Vec::new(),
            asking: HashSet::new(),
            listeners: Vec::new(),
            sent: HashMap::new(),
            faults: Faults::default(),
            in_flight: Vec::new(),
            order: 0,
            receive_len,
        };
        for host in 0..2 {
            crowd.start_process(host);
            crowd.start_process(host);
        }
        crowd
    }

    // ---- processes ----

    pub(super) fn start_process(&mut self, host: usize) {
        let layout =
            RegionLayout { queue_sets: 1, flows: 64, receive_len: self.receive_len, send_len: 1 << 20 };
        let host = &mut self.hosts[host];
        let Some(session) = host.engine.open_session(0, layout) else { return };
        host.engine.add_queue_set(session).expect("room");
        host.memory.open(session, layout.len());
        host.processes.push(Process {
            session,
            alive: true,
            send_arena: Arena::new(layout.send_offset(), layout.send_len),
            result: None,
            frozen: false,
            free_anchors: Vec::new(),
        });
    }

    /// The process ends; the kernel closes its descriptors before or after the engine hears of it.
    pub(super) fn kill(&mut self, host: usize, process: usize, fenced: bool) {
        let anchors_first = self.random.one_in(2);
        if anchors_first {
            self.close_descriptors_of(host, process);
        }
        let (now, h) = (self.now, &mut self.hosts[host]);
        let session = h.processes[process].session;
        if fenced {
            h.engine.fence(now, session, FenceReason::BadArgument, &mut h.memory);
        } else {
            h.engine.close_session(now, session, &mut h.memory);
        }
        h.processes[process].alive = false;
        h.closing.push(session);
        for socket in self.sockets.iter_mut().filter(|s| s.host == host && s.owner == Some(process)) {
            socket.owner = None;
            socket.unread.clear();
            socket.blocks.clear();
            socket.announced = socket.consumed;
            socket.gone |= socket.anchor.is_none();
        }
        for listener in self.listeners.iter_mut().filter(|l| l.host == host) {
            listener.ids.retain(|(p, _)| *p != process);
        }
        if !anchors_first {
            self.close_descriptors_of(host, process);
        }
    }

    fn close_descriptors_of(&mut self, host: usize, process: usize) {
        for at in 0..self.sockets.len() {
            if self.sockets[at].host == host {
                self.close_descriptor(at, process);
            }
        }
        for at in 0..self.listeners.len() {
            if self.listeners[at].host == host {
                self.close_listening_descriptor(at, process);
            }
        }
    }

    /// One process closes its descriptor; with the last one the anchor closes.
    pub(super) fn close_descriptor(&mut self, at: usize, process: usize) {
        let (now, socket) = (self.now, &mut self.sockets[at]);
        let before = socket.holders.len();
        socket.holders.retain(|p| *p != process);
        if socket.holders.is_empty() && before > 0 {
            socket.gone = true;
            socket.unread.clear();
            if let Some(anchor) = socket.anchor {
                self.hosts[socket.host].anchor_closed(now, anchor);
            }
        }
    }

    pub(super) fn close_listening_descriptor(&mut self, at: usize, process: usize) {
        let (now, listener) = (self.now, &mut self.listeners[at]);
        let before = listener.holders.len();
        listener.holders.retain(|p| *p != process);
        if listener.holders.is_empty() && before > 0 {
            listener.open = false;
            listener.ids.clear();
            self.hosts[listener.host].anchor_closed(now, listener.anchor);
            let (host, local) = (listener.host, listener.at);
            for socket in self.sockets.iter_mut().filter(|s| s.host == host && s.anchor.is_none()) {
                if socket.key.0 == local {
                    socket.disown_unaccepted();
                }
            }
        }
    }

    pub(super) fn command(&mut self, host: usize, process: usize, command: Command, args: &[u8]) {
        let (now, h) = (self.now, &mut self.hosts[host]);
        let mut block = [0; 64];
        block[..args.len()].copy_from_slice(args);
        let session = h.processes[process].session;
        h.engine
            .handle_command(now, session, QS, command, &block, &mut h.memory)
            .expect("a well-formed command");
    }

    /// A command and its answer.
    fn ask(&mut self, host: usize, process: usize, command: Command, args: &[u8]) -> Result<u32, Errno> {
        self.command(host, process, command, args);
        let was_frozen = core::mem::take(&mut self.hosts[host].processes[process].frozen);
        for _ in 0..10_000 {
            self.take_completions(host, process);
            if let Some((errno, id)) = self.hosts[host].processes[process].result.take() {
                self.hosts[host].processes[process].frozen = was_frozen;
                return if errno.is_ok() { Ok(id) } else { Err(errno) };
            }
        }
        panic!("a command is answered");
    }

    // ---- listeners ----

    pub(super) fn listen(&mut self, host: usize, process: usize, at: SocketAddr) {
        let h = &mut self.hosts[host];
        let anchor = h.take_anchor(process);
        let args = ListenArgs {
            local: at.into(),
            backlog: 4,
            anchor: anchor.0,
            twin: NO_HANDLE,
            ..ListenArgs::default()
        };
        match self.ask(host, process, Command::Listen { token: 1 }, args.as_bytes()) {
            Ok(id) => self.listeners.push(Listening {
                host,
                at,
                anchor,
                ids: vec![(process, ListenerId(FlowId::from_raw(id)))],
                holders: vec![process],
                open: true,
            }),
            Err(_) => self.hosts[host].anchor_closed(self.now, anchor),
        }
    }

    pub(super) fn claim_listener(&mut self, at: usize, process: usize) {
        let (now, listener) = (self.now, &mut self.listeners[at]);
        let h = &mut self.hosts[listener.host];
        let session = h.processes[process].session;
        let claimed = h.engine.claim(now, session, QS, 3, listener.anchor, &mut h.memory);
        let id = match claimed {
            Ok(Claimed::Listener(id)) => id,
            // Nobody held it, and connections waited in vain for long.
            Err(Errno::ENOENT) if listener.ids.is_empty() => return,
            other => panic!("{other:?}"),
        };
        listener.ids.retain(|(p, _)| *p != process);
        listener.ids.push((process, id));
        if !listener.holders.contains(&process) {
            listener.holders.push(process);
        }
    }

    /// `Command::CloseListener`: what the process was handed and did not accept goes to others.
    pub(super) fn drop_listener(&mut self, at: usize, process: usize) {
        let host = self.listeners[at].host;
        let Some(i) = self.listeners[at].ids.iter().position(|(p, _)| *p == process) else { return };
        let (_, id) = self.listeners[at].ids.remove(i);
        let local = self.listeners[at].at;
        // A host library does not close a listener while it has not seen all that the ring says.
        self.drain(host, process);
        self.command(host, process, Command::CloseListener { listener: id, last: false }, &[]);
        for socket in &mut self.sockets {
            let handed = socket.host == host && socket.owner == Some(process) && socket.anchor.is_none();
            if handed && socket.key.0 == local {
                socket.disown_unaccepted();
            }
        }
        self.drain(host, process);
    }

    // ---- sockets ----

    pub(super) fn connect(&mut self, host: usize, process: usize, to: SocketAddr) {
        let h = &mut self.hosts[host];
        let anchor = h.take_anchor(process);
        let args = ConnectArgs { remote: to.into(), anchor: anchor.0, ..ConnectArgs::default() };
        match self.ask(host, process, Command::Connect { token: 2 }, args.as_bytes()) {
            Ok(id) => {
                let h = &self.hosts[host];
                let id = FlowId::from_raw(id);
                let info = h.memory.slots[&(h.processes[process].session.0, id.slot())];
                let mut socket = Socket::new(host, process, id, &info);
                socket.anchor = Some(anchor);
                self.sockets.push(socket);
            }
            Err(_) => self.hosts[host].anchor_closed(self.now, anchor),
        }
    }

    pub(super) fn accept(&mut self, at: usize) {
        let (host, id) = (self.sockets[at].host, self.sockets[at].id);
        let Some(process) = self.sockets[at].owner else { return };
        let h = &mut self.hosts[host];
        let anchor = h.take_anchor(process);
        self.command(host, process, Command::Accept { flow: id, anchor, fd: 5 }, &[]);
        self.sockets[at].anchor = Some(anchor);
    }

    /// Another process, or the same one again, shows the descriptor.
    pub(super) fn claim(&mut self, at: usize, process: usize) {
        let now = self.now;
        let socket = &mut self.sockets[at];
        let h = &mut self.hosts[socket.host];
        let Some(anchor) = socket.anchor else { return };
        let session = h.processes[process].session;
        match h.engine.claim(now, session, QS, 7, anchor, &mut h.memory) {
            Ok(Claimed::Flow(id)) if socket.owner == Some(process) => {
                assert_eq!(id, socket.id, "it keeps its name");
            }
            Ok(Claimed::Flow(id)) => {
                // What the old owner's ring still says of its send memory is of no interest to the model.
                if let Some(old) = socket.owner {
                    free_blocks(h, old, &mut socket.blocks, u32::MAX);
                }
                socket.blocks.clear();
                socket.owner = Some(process);
                socket.id = id;
                socket.unread.clear();
                socket.announced = socket.consumed;
                if !socket.holders.contains(&process) {
                    socket.holders.push(process);
                }
            }
            Ok(other) => panic!("{other:?}"),
            // Again: its owner is to give it up first.
            Err(Errno::ENOENT | Errno::ENOMEM | Errno::EAGAIN) => {}
            Err(errno) => panic!("{errno:?}"),
        }
    }

    /// The owner gives a flow up that another process has shown the descriptor of. It keeps nothing back: all octets
    /// of this model go through the engine, which announces those anew that the program has not read.
    fn relinquish(&mut self, host: usize, process: usize, id: FlowId) {
        let h = &mut self.hosts[host];
        let session = h.processes[process].session;
        let mine = |s: &&mut Socket| s.host == host && s.owner == Some(process) && s.id == id;
        match h.engine.relinquish(session, id, false, &mut h.memory) {
            Ok(anchor) => {
                let socket = self.sockets.iter_mut().find(mine).expect("its own flow");
                assert_eq!(socket.anchor, Some(anchor));
                free_blocks(h, process, &mut socket.blocks, u32::MAX);
                socket.owner = None;
                socket.unread.clear();
                socket.announced = socket.consumed;
            }
            // It was closed in the meantime, or there is no memory: whoever wants it asks again.
            Err(Errno::EINVAL | Errno::ENOMEM) => {}
            Err(errno) => panic!("{errno:?}"),
        }
    }

    pub(super) fn send(&mut self, at: usize, len: u32) {
        let socket = &mut self.sockets[at];
        let Some(process) = socket.owner else { return };
        if socket.blocks.len() >= 8 || socket.anchor.is_none() || socket.error.is_some() {
            return;
        }
        let h = &mut self.hosts[socket.host];
        let Some(block) = h.processes[process].send_arena.alloc(len) else { return };
        let so_far = self.sent.entry(socket.key).or_default();
        let bytes: Vec<u8> = (*so_far..*so_far + u64::from(len)).map(|i| octet(socket.key, i)).collect();
        if !socket.shut {
            *so_far += u64::from(len);
        }
        socket.blocks.push_back((block, len));
        let session = h.processes[process].session;
        h.memory.write(session, block.offset, &bytes);
        let data = MemRange { offset: block.offset, len };
        let more = self.random.one_in(5);
        h.engine
            .handle_send(self.now, session, Send { flow: socket.id, data, more, urgent: false })
            .expect("in range");
    }

    /// Reads up to `len` octets and compares them with what the peer must have sent.
    pub(super) fn read(&mut self, at: usize, len: u32) {
        let socket = &mut self.sockets[at];
        let Some(process) = socket.owner else { return };
        let h = &mut self.hosts[socket.host];
        let session = h.processes[process].session;
        let mut left = len;
        while let Some(range) = socket.unread.front_mut() {
            let take = range.len.min(left);
            if take == 0 {
                return;
            }
            let mut bytes = vec![0; take as usize];
            h.memory.read(session, range.offset, &mut bytes);
            let from = (socket.key.1, socket.key.0);
            for (i, byte) in bytes.iter().enumerate() {
                let place = socket.consumed + i as u64;
                assert_eq!(*byte, octet(from, place), "octet {place} from {from:?}");
            }
            socket.consumed += u64::from(take);
            range.offset += u64::from(take);
            range.len -= take;
            if range.len == 0 {
                socket.unread.pop_front();
            }
            left -= take;
            h.engine
                .handle_credit(self.now, session, ReceiveCredit { flow: socket.id, len: take })
                .expect("credit for announced data");
        }
    }

    pub(super) fn shutdown(&mut self, at: usize) {
        let socket = &mut self.sockets[at];
        let (host, id) = (socket.host, socket.id);
        let Some(process) = socket.owner else { return };
        socket.shut = true;
        self.command(host, process, Command::ShutdownSend { flow: id }, &[]);
    }

    /// `Command::Close`, as for a descriptor that was never shared.
    pub(super) fn close(&mut self, at: usize, abort: bool) {
        let socket = &mut self.sockets[at];
        let (host, id) = (socket.host, socket.id);
        let Some(process) = socket.owner else { return };
        socket.holders.clear();
        socket.gone = true;
        socket.unread.clear();
        self.command(host, process, Command::Close { flow: id, abort }, &[]);
        if self.random.one_in(3) {
            self.command(host, process, Command::Close { flow: id, abort: !abort }, &[]);
        }
    }

    // ---- completions ----

    /// Takes completions until there are none.
    pub(super) fn drain(&mut self, host: usize, process: usize) {
        let was_frozen = core::mem::take(&mut self.hosts[host].processes[process].frozen);
        while self.take_completions(host, process) {}
        self.hosts[host].processes[process].frozen = was_frozen;
    }

    fn take_completions(&mut self, host: usize, process: usize) -> bool {
        let h = &mut self.hosts[host];
        h.engine.poll_completions(&mut h.memory);
        if h.processes[process].frozen || !h.processes[process].alive {
            return false;
        }
        let session = h.processes[process].session;
        let mut any = false;
        while let Some(completion) = self.hosts[host].memory.rings[session.index()].pop_front() {
            any = true;
            self.take(host, process, completion);
        }
        any
    }

    fn take(&mut self, host: usize, process: usize, completion: Completion) {
        let session = self.hosts[host].processes[process].session;
        let (id, sockets) = match completion {
            Completion::CommandResult { errno, id, .. } => {
                self.hosts[host].processes[process].result = Some((errno, id));
                return;
            }
            Completion::Accepted { flow, listener } => {
                let info = self.hosts[host].memory.infos[&(session.0, flow.raw())];
                self.sockets.push(Socket::new(host, process, flow, &info));
                let last = self.sockets.len() - 1;
                self.sockets[last].connected = true;
                let mine = |l: &Listening| l.host == host && l.ids.contains(&(process, listener));
                if !self.listeners.iter().any(mine) {
                    self.sockets[last].disown_unaccepted();
                } else if self.asking.contains(&(host, process, listener)) {
                    self.command(host, process, Command::TakeConnection { listener }, &[]);
                }
                return;
            }
            Completion::ConnectionsWait { listener } => {
                self.asking.insert((host, process, listener));
                self.command(host, process, Command::TakeConnection { listener }, &[]);
                return;
            }
            Completion::NothingWaits { listener, .. } => {
                self.asking.remove(&(host, process, listener));
                return;
            }
            Completion::Urgent { .. } => panic!("nobody sends anything urgent"),
            Completion::SoftError { .. } => panic!("nobody asked for it"),
            Completion::Moved { .. } | Completion::ChannelClosed { .. } | Completion::Direct { .. } => return,
            Completion::OfferChannel { channel } => {
                // Some hosts take none.
                if self.random.below(8) > 0 {
                    self.command(host, process, Command::ChannelReady { channel }, &[]);
                }
                return;
            }
            Completion::Yield { flow } => {
                self.relinquish(host, process, flow);
                return;
            }
            Completion::AnchorFree { anchor } => {
                let held = |s: &Socket| s.host == host && s.anchor == Some(anchor) && !s.gone;
                assert!(!self.sockets.iter().any(held), "{anchor:?} is still a socket's");
                self.hosts[host].processes[process].free_anchors.push(anchor);
                return;
            }
            Completion::Connected { flow, .. }
            | Completion::Data { flow, .. }
            | Completion::Sent { flow, .. }
            | Completion::PeerClosed { flow }
            | Completion::Reset { flow, .. } => (flow, &mut self.sockets),
        };
        let find = |s: &&mut Socket| s.host == host && s.owner == Some(process) && s.id == id;
        let Some(socket) = sockets.iter_mut().find(find) else { return };
        match completion {
            Completion::Connected { errno, .. } if errno.is_ok() => socket.connected = true,
            Completion::Connected { errno, .. } => socket.error = Some(errno),
            Completion::Data { data, .. } => {
                socket.announced += u64::from(data.len);
                if !socket.gone {
                    socket.unread.push_back(data);
                }
            }
            Completion::Sent { len, .. } => {
                let h = &mut self.hosts[host];
                let extra = free_blocks(h, process, &mut socket.blocks, len);
                assert!(extra == 0 || socket.error.is_some(), "no more comes back than was given");
            }
            Completion::PeerClosed { .. } => {
                socket.eof = true;
                let all = self.sent.get(&(socket.key.1, socket.key.0)).copied().unwrap_or(0);
                assert!(
                    socket.gone || socket.announced == all,
                    "FIN comes behind all data: {socket:?} {all}"
                );
            }
            Completion::Reset { errno, .. } => {
                socket.error = Some(errno);
                let h = &mut self.hosts[host];
                free_blocks(h, process, &mut socket.blocks, u32::MAX);
            }
            _ => {}
        }
    }

    // ---- time ----

    fn launch(&mut self, from: usize, frame: Vec<u8>, offload: TxOffload) {
        if self.random.below(1000) < self.faults.drop {
            return;
        }
        let copies = 1 + usize::from(self.random.below(1000) < self.faults.duplicate);
        for _ in 0..copies {
            let reorder = self.random.below(1000) < self.faults.reorder;
            let late = if reorder { u64::from(self.random.below(5000)) } else { 0 };
            let rx = RxOffload {
                checksum_ok: offload.checksum.is_some(),
                coalesced_mss: offload.segmentation.map(|s| s.mss),
            };
            self.order += 1;
            self.in_flight.push((self.now.after_us(50 + late), self.order, 1 - from, frame.clone(), rx));
        }
    }

    /// Lets everything happen that can happen at this moment.
    pub(super) fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 20_000, "it never comes to rest");
            let mut moved = false;
            for at in 0..2 {
                let (now, budget) = (self.now, 1 + self.random.below(64) as usize);
                let h = &mut self.hosts[at];
                moved |= h.engine.poll_local(now, &mut h.memory, budget) > 0;
                h.outbox.room = budget;
                moved |= h.engine.poll_transmit(now, PORT, &mut h.outbox, &mut h.memory, budget) > 0;
                for (frame, offload) in core::mem::take(&mut h.outbox.sent) {
                    self.launch(at, frame, offload);
                }
                for process in 0..self.hosts[at].processes.len() {
                    moved |= self.take_completions(at, process);
                }
                let h = &mut self.hosts[at];
                while let Some(anchor) = h.engine.poll_released_anchor() {
                    // The other end of the pair closes: whoever still has the descriptor sees it.
                    let has = |s: &&mut Socket| s.host == at && s.anchor == Some(anchor) && !s.gone;
                    if let Some(socket) = self.sockets.iter_mut().find(has) {
                        socket.error = Some(Errno::ECONNRESET);
                        if let Some(owner) = socket.owner {
                            free_blocks(h, owner, &mut socket.blocks, u32::MAX);
                        }
                    }
                }
                let drained: Vec<_> = h.closing.extract_if(.., |s| h.engine.session_drained(*s)).collect();
                for session in drained {
                    h.engine.forget_session(session);
                    h.memory.regions[session.index()] = Vec::new();
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn next_event(&self) -> Instant {
        let wire = self.in_flight.iter().map(|f| f.0);
        wire.chain(self.hosts.iter().map(|h| h.engine.poll_timeout())).min().unwrap_or(Instant::FAR_FUTURE)
    }

    pub(super) fn run_us(&mut self, us: u64) {
        let limit = self.now.after_us(us);
        loop {
            self.settle();
            let next = self.next_event();
            if next > limit {
                self.now = limit;
                return;
            }
            self.now = self.now.max(next);
            let now = self.now;
            let mut due: Vec<_> = self.in_flight.extract_if(.., |f| f.0 <= now).collect();
            due.sort_by_key(|f| (f.0, f.1));
            for (_, _, to, frame, offload) in due {
                let h = &mut self.hosts[to];
                h.engine.handle_frame(now, PORT, &frame, offload, &mut h.memory);
            }
            for h in &mut self.hosts {
                h.engine.handle_timeout(now, &mut h.memory);
            }
        }
    }
}
