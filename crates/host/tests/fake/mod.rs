//! An engine for tests that knows no TCP: the test says what it does. It answers attach requests on a thread of its own;
//! entries are taken and completions posted by hand.
#![allow(dead_code, reason = "each test program uses a part of it")]

mod control;
pub mod peer;

use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use toe::socket::{ConnectHow, FastOpen};
use toe::{Anchor, Socket, Stack, fd_release, fd_table};
use toe_abi::attach::{Reply, Unread};
use toe_abi::channel::Side;
use toe_abi::command::{CONNECT_FAST_OPEN, ConnectArgs, FLOW_WAITS_FOR_DATA, FlowInfo, ListenArgs};
use toe_abi::entry::{Command, Completion, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_abi::region::{QueueSetLayout, RegionLayout};
use toe_abi::register::HostRegisters;
use toe_abi::tcp_info::FlowDetail;
use toe_base::{AnchorHandle, ChannelId, Cred, FlowId, ListenerId};
use toe_ring::sync::Words;
use toe_ring::{ChannelEnd, ChannelMemory, EngineQueueSet, EventFd, Region};
use zerocopy::FromBytes;

/// Longest that a test waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whose the other sessions are.
const PEER: Cred = Cred::of_user(1000);
pub const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 4, flows: 256, receive_len: 16 << 20, send_len: 16 << 20 };

/// One attached process.
pub struct Session {
    pub region: Region,
    pub queue_sets: Vec<EngineQueueSet>,
    pub bell: EventFd,
    /// Where the next received bytes go.
    receive_at: u64,
}

#[derive(Default)]
struct Shared {
    sessions: Vec<Session>,
    /// The directory of all anchors.
    anchors: PathBuf,
    anchors_made: u32,
    /// What the next claims are answered.
    claims: Vec<Reply>,
    presented: u32,
    /// Channels that were offered: the memory's descriptor and the engine's mapping.
    channels: HashMap<u32, (OwnedFd, ChannelMemory)>,
    /// What was given back, with what had not been read.
    relinquished: Vec<(u32, Vec<u8>)>,
    /// What was said of those bytes.
    given_back: Vec<Unread>,
    /// Nothing can be given back.
    refuses_relinquish: Option<Errno>,
    /// What is announced with the next claimed flow.
    unread: Vec<u8>,
    connections: Vec<Arc<OwnedFd>>,
}

/// The engine. One at a time in a process: [`Engine::start`] waits for the last one to go.
pub struct Engine {
    shared: Arc<Mutex<Shared>>,
    listener: Arc<OwnedFd>,
    path: PathBuf,
    next_slot: AtomicU32,
    /// Takes connections in, and ends once all of them are over.
    door: Option<JoinHandle<()>>,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

fn now() -> toe_base::Instant {
    toe_base::Instant::ZERO
}

fn shut(shared: &Mutex<Shared>) {
    for connection in lock(shared).connections.drain(..) {
        let _ = rustix::net::shutdown(&*connection, rustix::net::Shutdown::Both);
    }
}

/// Looks until `what` is there.
pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "what must come did not come");
        std::thread::yield_now();
    }
}

impl Engine {
    /// Starts one and points TOE_ENGINE at it; nothing has attached yet.
    pub fn start() -> Engine {
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Always the same: the library looks up once where its engine is.
        let path = std::env::temp_dir().join(format!("toe-fake-{}", std::process::id()));
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a socket");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("a short path"))
            .expect("a free path");
        rustix::net::listen(&listener, 8).expect("listening");
        // SAFETY: engines are made one at a time (the lock above), and nothing else in these programs reads or writes
        // the environment on another thread.
        unsafe { std::env::set_var("TOE_ENGINE", &path) };
        let anchors = path.with_extension("anchors");
        std::fs::create_dir(&anchors).expect("a directory");
        let shared = Arc::new(Mutex::new(Shared { anchors, ..Shared::default() }));
        let listener = Arc::new(listener);
        let (for_thread, at_door) = (Arc::clone(&shared), Arc::clone(&listener));
        let door = std::thread::spawn(move || {
            std::thread::scope(|serving| {
                while let Ok(connection) = rustix::net::accept_with(&*at_door, SocketFlags::CLOEXEC) {
                    let (shared, connection) = (&*for_thread, Arc::new(connection));
                    lock(shared).connections.push(Arc::clone(&connection));
                    serving.spawn(move || control::serve(&connection, shared));
                }
                // One that came while the engine was killed.
                shut(&for_thread);
            });
        });
        Engine { shared, listener, path, next_slot: AtomicU32::new(1), door: Some(door), _alone: alone }
    }

    /// The same, with this process attached.
    pub fn attached() -> Engine {
        let engine = Engine::start();
        Stack::attach(toe::stack::EngineIdx::FIRST).expect("the fake engine takes everybody");
        engine
    }

    /// Ends as if killed.
    pub fn kill(&self) {
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        let _ = std::fs::remove_file(&self.path);
        shut(&self.shared);
    }

    pub fn with<R>(&self, session: usize, f: impl FnOnce(&mut Session) -> R) -> R {
        let mut shared = lock(&self.shared);
        f(shared.sessions.get_mut(session).expect("an attached session"))
    }

    /// Until a thread waits for an interrupt of a queue set of session 0.
    pub fn until_armed(&self, queue_set: usize) {
        let at =
            LAYOUT.queue_set(queue_set as u32) + QueueSetLayout::HOST_REGISTERS + HostRegisters::IRQ_ARMED;
        until(|| self.with(0, |session| (session.region.read_u32(at) == Ok(1)).then_some(())));
    }

    /// From now on the engine says that it sleeps.
    pub fn sleep(&self) {
        self.with(0, |session| {
            let wanted = toe_abi::region::DOORBELL_FOR_ENTRIES;
            session.region.write_u32(toe_abi::region::DOORBELL_WANTED, wanted).expect("a word of the header");
        });
    }

    /// Whether the doorbell was rung since the last look; then the engine sleeps again.
    pub fn was_rung(&self) -> bool {
        let rung = self.with(0, |session| session.bell.drain().expect("an eventfd"));
        if rung {
            self.sleep();
        }
        rung
    }

    pub fn sessions(&self) -> usize {
        lock(&self.shared).sessions.len()
    }

    pub fn answer_claims_with(&self, replies: Vec<Reply>) {
        lock(&self.shared).claims = replies;
    }

    /// Of those answers.
    pub fn claims_left(&self) -> usize {
        lock(&self.shared).claims.len()
    }

    /// From now on nothing can be given back.
    pub fn refuse_relinquish_with(&self, errno: Errno) {
        lock(&self.shared).refuses_relinquish = Some(errno);
    }

    /// With the next claimed flow comes data that its last holder had not read.
    pub fn announce_at_claim(&self, bytes: &[u8]) {
        lock(&self.shared).unread = bytes.to_vec();
    }

    /// What was said of the bytes that were given back last.
    pub fn given_back(&self) -> Unread {
        *lock(&self.shared).given_back.last().expect("a flow was given up")
    }

    pub fn relinquished(&self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut lock(&self.shared).relinquished)
    }

    /// Makes a channel and offers it to queue set 0 of session 0; returns the other end of it.
    pub fn offer_channel(&self, id: ChannelId) -> ChannelEnd {
        let (memory, file) = ChannelMemory::create().expect("memory");
        let wake = self.with(0, |session| session.queue_sets[0].line().another().expect("a pipe's end"));
        lock(&self.shared).channels.insert(id.0, (file, memory.clone()));
        self.post(0, Completion::OfferChannel { channel: id });
        ChannelEnd::new(memory, Side::One, wake).expect("a channel's memory")
    }

    pub fn twins_shown(&self) -> u32 {
        lock(&self.shared).presented
    }

    pub fn new_flow(&self) -> FlowId {
        FlowId::new(self.next_slot.fetch_add(1, Ordering::Relaxed), 1)
    }

    /// The next command of session 0: its queue set and itself.
    pub fn command(&self) -> (usize, Command, [u8; 64]) {
        until(|| self.try_command(0))
    }

    pub fn try_command(&self, session: usize) -> Option<(usize, Command, [u8; 64])> {
        self.with(session, |session| {
            session.queue_sets.iter_mut().enumerate().find_map(|(at, queue)| {
                let (command, args) = queue.pop_command()?.expect("a valid command");
                queue.publish_heads();
                Some((at, command, args))
            })
        })
    }

    /// Everything in `snd` of session 0.
    pub fn sends(&self) -> Vec<Send> {
        self.with(0, |session| {
            let mut sends = Vec::new();
            for queue in &mut session.queue_sets {
                while let Some(send) = queue.pop_any_send() {
                    sends.push(send.expect("a valid entry"));
                }
                queue.publish_heads();
            }
            sends
        })
    }

    /// The bytes of everything in `snd`, in order.
    pub fn sent_bytes(&self) -> Vec<u8> {
        let sends = self.sends();
        let mut bytes = Vec::new();
        for send in sends {
            bytes.extend(self.read(send.data));
        }
        bytes
    }

    pub fn read(&self, range: MemRange) -> Vec<u8> {
        self.with(0, |session| {
            let mut bytes = vec![0; range.len as usize];
            session.region.read(range.offset, &mut bytes).expect("a range of the region");
            bytes
        })
    }

    /// Everything in `rcv` of session 0.
    pub fn credits(&self) -> Vec<ReceiveCredit> {
        self.with(0, |session| {
            let mut credits = Vec::new();
            for queue in &mut session.queue_sets {
                while let Some(credit) = queue.pop_credit() {
                    credits.push(credit.expect("a valid entry"));
                }
                queue.publish_heads();
            }
            credits
        })
    }

    pub fn post(&self, queue_set: usize, completion: Completion) {
        self.post_to(0, queue_set, completion);
    }

    pub fn post_to(&self, session: usize, queue_set: usize, completion: Completion) {
        self.with(session, |session| session.post(queue_set, completion));
    }

    /// Data arrives: right after the last, as the engine would place it.
    pub fn data(&self, queue_set: usize, flow: FlowId, bytes: &[u8]) {
        self.data_to(0, queue_set, flow, bytes);
    }

    pub fn data_to(&self, session: usize, queue_set: usize, flow: FlowId, bytes: &[u8]) {
        self.with(session, |session| session.data(queue_set, flow, bytes));
    }

    /// Writes down both addresses of a flow.
    pub fn write_info(&self, flow: FlowId, local: SocketAddr, remote: SocketAddr) {
        let info = FlowInfo {
            local: local.into(),
            remote: remote.into(),
            mss: 1448,
            state: 1,
            ..FlowInfo::default()
        };
        self.with(0, |session| {
            session.region.write_record(LAYOUT.flow_info(flow.slot()), &info).expect("a slot of the table");
        });
    }

    /// Writes down how a flow's TCP stands.
    pub fn write_detail(&self, flow: FlowId, detail: &FlowDetail) {
        let at = LAYOUT.flow_detail(flow.slot());
        self.with(0, |session| session.region.write_record(at, detail).expect("a slot of the table"));
    }

    /// Changes what the engine tells of a flow.
    pub fn change_info(&self, flow: FlowId, change: impl FnOnce(&mut FlowInfo)) {
        let at = LAYOUT.flow_info(flow.slot());
        self.with(0, |session| {
            let mut info = session.region.read_record(at).expect("a slot of the table");
            change(&mut info);
            session.region.write_record(at, &info).expect("the same");
        });
    }

    /// This process's descriptor of an anchor.
    pub fn opened(&self, anchor: AnchorHandle) -> Option<i32> {
        self.open_anchors().into_iter().find_map(|(handle, fd)| (handle == anchor).then_some(fd))
    }

    /// All anchors that this process has open, with the descriptors.
    pub fn open_anchors(&self) -> Vec<(AnchorHandle, i32)> {
        let anchors = lock(&self.shared).anchors.clone();
        let number = |name: Option<&std::ffi::OsStr>| name?.to_str()?.parse::<u32>().ok();
        let opened = |fd: std::fs::DirEntry| {
            let open = std::fs::read_link(fd.path()).ok()?;
            let handle = number(open.strip_prefix(&anchors).ok()?.file_name())?;
            Some((AnchorHandle(handle), number(Some(&fd.file_name()))? as i32))
        };
        std::fs::read_dir("/proc/self/fd").expect("a list").flatten().filter_map(opened).collect()
    }

    /// A process closes a copy of several: its engine counts one less, and nothing else is said.
    pub fn expect_copy_closed(&self) {
        let (_, command, _) = self.command();
        assert!(matches!(command, Command::CloseCopy { .. }), "{command:?}");
        self.expect_closed();
    }

    /// The last descriptor of the last connection was closed: its end goes out at once, whenever the engine hears of that.
    pub fn expect_ended(&self) {
        let (_, command, _) = self.command();
        assert!(matches!(command, Command::ShutdownSend { .. }), "{command:?}");
        self.expect_closed();
    }

    /// The last descriptor of the last connection was closed, and that is all that the engine is told of it.
    pub fn expect_closed(&self) {
        assert_eq!(self.open_anchors(), []);
        assert_eq!(self.try_command(0), None);
    }

    /// The last descriptor of the last connection was closed, and the anchor is kept for the next one.
    pub fn expect_close_kept(&self) {
        assert_eq!(self.open_anchors().len(), 1);
        let (_, command, _) = self.command();
        assert!(matches!(command, Command::CloseRetained { abort: false, .. }), "{command:?}");
    }

    /// Starts a connection up to the engine's answer to `Connect`.
    pub fn connecting(&self) -> Connection {
        self.connecting_by(FastOpen::No, 0)
    }

    /// The same, with bytes for the SYN, which has room for so many; 0: the engine has no cookie.
    pub fn connecting_by(&self, fast: FastOpen, syn_room: u16) -> Connection {
        self.connecting_to("10.0.0.2:80".parse().expect("an address"), fast, syn_room)
    }

    /// The same to another address.
    pub fn connecting_to(&self, remote: SocketAddr, fast: FastOpen, syn_room: u16) -> Connection {
        let anchor = Anchor::take(
            Stack::attached(toe::stack::EngineIdx::FIRST).expect("attached"),
            toe::AnchorUse::Connection,
        )
        .expect("an anchor");
        let flow = self.new_flow();
        self.write_info(flow, "10.0.0.1:40000".parse().expect("an address"), remote);
        if syn_room > 0 {
            self.change_info(flow, |info| {
                (info.flags, info.mss, info.state) = (FLOW_WAITS_FOR_DATA, syn_room, 2);
            });
        }
        let how = ConnectHow { fast, kernel_too: false };
        let (socket, queue_set) = std::thread::scope(|scope| {
            let engine = scope.spawn(|| {
                let (queue_set, command, args) = self.command();
                let Command::Connect { token } = command else { panic!("{command:?} is no Connect") };
                let args = ConnectArgs::read_from_bytes(&args).expect("64 bytes");
                assert_eq!(args.remote.to_socket_addr(), Some(remote));
                assert_eq!(args.flags, if fast == FastOpen::No { 0 } else { CONNECT_FAST_OPEN });
                let kind = command.kind();
                let result =
                    Completion::CommandResult { token, command: kind, errno: Errno::OK, id: flow.raw() };
                self.post(queue_set, result);
                queue_set
            });
            let socket = Socket::connect(&anchor, None, remote, 9, how).expect("the engine said yes");
            (socket, engine.join().expect("the engine's part"))
        });
        let fd = anchor.open(true, false).expect("a descriptor");
        anchor.opened();
        fd_table::install(fd, socket);
        socket.set_nonblocking(true);
        Connection { socket, fd, flow, queue_set }
    }

    /// An established connection, non-blocking.
    pub fn connected(&self) -> Connection {
        let connection = self.connecting();
        self.post(connection.queue_set, Completion::Connected { flow: connection.flow, errno: Errno::OK });
        assert_eq!(connection.socket.wait_connected(true), Err(Errno::EINPROGRESS), "the first answer");
        assert_eq!(connection.socket.wait_connected(true), Ok(()));
        connection
    }

    /// A listener, non-blocking, that has not asked for connections yet.
    pub fn listening(&self) -> (Connection, ListenerId) {
        let anchor = Anchor::take(
            Stack::attached(toe::stack::EngineIdx::FIRST).expect("attached"),
            toe::AnchorUse::Connection,
        )
        .expect("an anchor");
        let fd = rustix::io::dup(std::io::stdin()).expect("a descriptor").into_raw_fd();
        let id = ListenerId(self.new_flow());
        let local: SocketAddr = "10.0.0.1:80".parse().expect("an address");
        let (socket, queue_set) = std::thread::scope(|scope| {
            let engine = scope.spawn(|| {
                let (queue_set, command, args) = self.command();
                let Command::Listen { token } = command else { panic!("{command:?} is no Listen") };
                let args = ListenArgs::read_from_bytes(&args).expect("64 bytes");
                assert_eq!((args.local.to_socket_addr(), args.backlog), (Some(local), 10));
                let kind = command.kind();
                let result =
                    Completion::CommandResult { token, command: kind, errno: Errno::OK, id: id.0.raw() };
                self.post(queue_set, result);
                queue_set
            });
            let socket = Socket::listen(anchor, local, 10, None, fd);
            (socket.expect("the engine said yes"), engine.join().expect("the engine's part"))
        });
        fd_table::install(fd, socket);
        socket.set_nonblocking(true);
        (Connection { socket, fd, flow: id.0, queue_set }, id)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
        Stack::detach();
        // What its threads let go of has the names that the next one gives: the sockets of interrupts are removed by theirs.
        let _ = self.door.take().map(JoinHandle::join);
        let _ = std::fs::remove_dir_all(&lock(&self.shared).anchors);
    }
}

/// A socket under test, closed at the end.
pub struct Connection {
    pub socket: &'static Socket,
    pub fd: i32,
    pub flow: FlowId,
    pub queue_set: usize,
}

impl Connection {
    pub fn recv(&self, len: usize) -> Result<Vec<u8>, Errno> {
        self.recv_with(len, toe::socket::RecvFlags::default())
    }

    pub fn recv_with(&self, len: usize, flags: toe::socket::RecvFlags) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; len];
        let got = self.socket.recv(&mut [std::io::IoSliceMut::new(&mut bytes)], flags)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    pub fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.send_with(bytes, toe::socket::SendFlags::default())
    }

    pub fn send_with(&self, bytes: &[u8], flags: toe::socket::SendFlags) -> Result<usize, Errno> {
        self.socket.send(&[std::io::IoSlice::new(bytes)], flags)
    }

    /// The bits of poll that this interface and old programs know.
    pub fn ready(&self) -> u32 {
        let presented = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP;
        self.socket.ready() & presented as u32
    }

    pub fn close(self) {}
}

impl Drop for Connection {
    fn drop(&mut self) {
        fd_release::remove(self.fd);
        let _ = toe::sys::close(self.fd);
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Session {
    fn post(&mut self, queue_set: usize, completion: Completion) {
        let word = |flow: FlowId, says: Owned| {
            self.region.store_u64(LAYOUT.owner_word(flow.slot()), says.word(flow), Ordering::Release);
        };
        match completion {
            Completion::Accepted { flow, .. } => word(flow, Owned::Offered),
            Completion::Connected { flow, .. } => word(flow, Owned::Held),
            Completion::Moved { flow } => word(flow, Owned::Withdrawn),
            _ => {}
        }
        let queue = &mut self.queue_sets[queue_set];
        assert_eq!(queue.post(completion), Ok(true));
        queue.notify(now()).expect("valid interrupt registers");
    }

    fn data(&mut self, queue_set: usize, flow: FlowId, bytes: &[u8]) {
        let offset = LAYOUT.receive_offset() + self.receive_at;
        self.region.write(offset, bytes).expect("room in the region");
        self.receive_at += bytes.len() as u64;
        let data = MemRange { offset, len: bytes.len() as u32 };
        self.post(queue_set, Completion::Data { flow, data });
    }
}
