//! What programs send that is made to make somebody wait, and who waits then.

use super::fake_host::{Control, FakeHost};
use super::fuse;
use super::{TempDir, daemon_with, settle, until};
use crate::anchors::identity_of;
use crate::daemon::Daemon;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::IoSlice;
use rustix::net::sockopt::{self, set_socket_linger};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use toe_abi::attach::{Reply, ReportKind, Request};
use toe_abi::errno::Errno;
use zerocopy::IntoBytes;

const USER: u32 = 4242;
const HELLO: Request = Request::Hello { room: 0 };
const STATUS: Request = Request::Report { what: ReportKind::Status };

/// How long a close waits: longer than any test.
const LINGER: Duration = Duration::from_secs(240);

/// A connection whose close waits, until its other end is gone.
pub(super) struct Lingering {
    socket: Option<OwnedFd>,
    local: SocketAddr,
    listener: Option<TcpListener>,
}

impl Lingering {
    fn new() -> Lingering {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let mut socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        // Nobody reads: all that the kernel takes stays unsent at last.
        socket.set_nonblocking(true).expect("a flag");
        while socket.write(&[0; 65536]).is_ok() {}
        set_socket_linger(&socket, Some(LINGER)).expect("an option");
        let local = socket.local_addr().expect("bound");
        Lingering { socket: Some(socket.into()), local, listener: Some(listener) }
    }

    /// Whether the last copy is being closed: FIN_WAIT1, as bytes are left that come before the FIN.
    fn is_closing(&self) -> bool {
        let SocketAddr::V4(local) = self.local else { panic!("IPv4") };
        let at = format!(" {:08X}:{:04X} ", u32::from_ne_bytes(local.ip().octets()), local.port());
        let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
        table.lines().any(|line| line.split_once(&at).is_some_and(|(_, rest)| rest.contains(" 04 ")))
    }

    /// Its other end is reset, and with it the wait ends.
    pub(super) fn release(&mut self) {
        self.listener = None;
    }
}

/// Has a user's thread stand still.
pub(super) fn hold_up(daemon: &mut Daemon, control: &Control) -> Lingering {
    let mut lingering = Lingering::new();
    let socket = lingering.socket.take().expect("not closed yet");
    // His thread takes nothing more before this is answered: so the copy here is surely not the last.
    control.send(STATUS.encode().as_bytes(), &[]).expect("sent");
    control.send(Request::ShowTwin.encode().as_bytes(), &[socket.as_fd()]).expect("sent");
    drop(socket);
    until(daemon, "the last copy is being closed", || lingering.is_closing());
    assert!(control.receive().is_some(), "the first answer");
    lingering
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not tried: only root can be several users");
    }
    is_root
}

/// These tests come as several users.
fn open_to_all() -> Daemon {
    daemon_with("toed --allow-all --receive-memory-mib 16 --send-memory-mib 16")
}

#[test]
fn a_socket_that_lingers_holds_up_its_user_alone() {
    if !is_root() {
        return;
    }
    let mut daemon = open_to_all();
    let hostile = Control::of_user(&mut daemon, USER);
    assert!(matches!(hostile.ask(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    let neighbour = Control::of_user(&mut daemon, USER + 1);
    let mut lingering = hold_up(&mut daemon, &hostile);
    // He waits himself, on every connection of his.
    hostile.send(STATUS.encode().as_bytes(), &[]).expect("sent");
    let second = Control::of_user(&mut daemon, USER);
    second.send(STATUS.encode().as_bytes(), &[]).expect("sent");
    // Others come, and are served.
    assert!(matches!(neighbour.ask_meanwhile(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    for _ in 0..100 {
        let (reply, _) = neighbour.ask_meanwhile(&mut daemon, Request::TakeAnchors { count: 1 });
        assert!(matches!(reply, Reply::Anchors { count: 1, .. }), "{reply:?}");
    }
    let newcomer = Control::of_user(&mut daemon, USER + 2);
    assert!(matches!(newcomer.ask_meanwhile(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    assert!(lingering.is_closing() && hostile.receive().is_none() && second.receive().is_none());
    lingering.release();
    settle(&mut daemon);
    let (packet, _) = hostile.receive().expect("an answer");
    assert!(!packet.is_empty());
    assert!(second.receive().is_some());
    assert_eq!(daemon.whole_status().sessions.len(), 3);
}

#[test]
fn root_of_a_container_does_not_hold_up_root_outside() {
    if !is_root() {
        return;
    }
    let mut daemon = open_to_all();
    let contained = Control::of_new_namespace(&mut daemon);
    assert!(matches!(contained.ask(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    let mut lingering = hold_up(&mut daemon, &contained);
    // Nor root of other containers, of which there are enough for some to share a thread.
    for _ in 0..6 {
        let other = Control::of_new_namespace(&mut daemon);
        assert!(matches!(other.ask_meanwhile(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    }
    let outside = Control::new(&mut daemon);
    assert_eq!(outside.ask_meanwhile(&mut daemon, Request::Stop).0, Reply::Done);
    assert!(lingering.is_closing());
    lingering.release();
    settle(&mut daemon);
}

#[test]
fn an_engine_ends_although_a_user_stands_still() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let mut daemon = open_to_all();
    let mut name = crate::runtime::EngineName::take(dir.path(), "a", false).expect("a name");
    let socket = name.listen(&daemon.hosts.policy).expect("a socket");
    daemon.hosts.listen(socket).expect("it listens");
    let hostile = Control::of_user(&mut daemon, USER);
    assert!(matches!(hostile.ask(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    let lingering = hold_up(&mut daemon, &hostile);
    let waiting = connect(dir.path());
    assert_eq!(waiting.ask_meanwhile(&mut daemon, Request::Stop).0, Reply::Done);
    daemon.run().expect("it ends");
    let connections = daemon.end();
    drop(name);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0, "the name is free");
    connections.leave();
    assert!(waiting.is_closed() && hostile.is_closed() && lingering.is_closing());
}

fn connect(dir: &std::path::Path) -> Control {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
    rustix::net::connect(&socket, &SocketAddrUnix::new(dir.join("a.sock")).expect("short")).expect("there");
    Control { socket }
}

#[test]
fn who_comes_by_the_socket_is_served_by_a_thread_of_his() {
    let dir = TempDir::new();
    let mut daemon = open_to_all();
    let mut name = crate::runtime::EngineName::take(dir.path(), "a", false).expect("a name");
    let socket = name.listen(&daemon.hosts.policy).expect("a socket");
    daemon.hosts.listen(socket).expect("it listens");
    let clients: Vec<Control> = (0..40).map(|_| connect(dir.path())).collect();
    for client in &clients {
        assert!(matches!(client.ask(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    }
    let uid = rustix::process::geteuid().as_raw();
    assert!(daemon.whole_status().sessions.iter().all(|session| session.uid == uid));
    drop(clients);
    settle(&mut daemon);
    assert!(daemon.is_unused());
    assert!(matches!(connect(dir.path()).ask(&mut daemon, HELLO).0, Reply::Welcome { .. }), "he comes again");
}

#[test]
fn a_file_that_a_program_serves_holds_up_its_user_alone() {
    if !is_root() {
        return;
    }
    let Some(mut served) = fuse::serve() else {
        println!("not tried: no FUSE here");
        return;
    };
    let mut daemon = open_to_all();
    let hostile = Control::of_user(&mut daemon, USER);
    let neighbour = Control::of_user(&mut daemon, USER + 1);
    assert!(matches!(hostile.ask(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    let file = served.file.take().expect("not closed yet");
    let claim = Request::Claim { queue_set: 0, fd: 3 };
    hostile.send(claim.encode().as_bytes(), &[file.as_fd()]).expect("sent");
    until(&mut daemon, "somebody closes it", || served.flushing.try_recv().is_ok());
    assert!(matches!(neighbour.ask_meanwhile(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    assert!(hostile.receive().is_none());
    served.let_go = None;
    let (reply, _) = hostile.answer_meanwhile(&mut daemon);
    assert!(matches!(reply, Reply::Refused { .. }), "{reply:?}");
    // This thread's own close has nobody to wait for any more.
    drop(file);
}

/// More descriptors than the fake host sends otherwise.
fn send_many(control: &Control, request: Request, fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(fds)));
    let message = request.encode();
    let packet = [IoSlice::new(message.as_bytes())];
    rustix::net::sendmsg(&control.socket, &packet, &mut beside, SendFlags::NOSIGNAL).expect("sent");
}

#[test]
fn of_many_descriptors_none_is_kept() {
    let mut daemon = open_to_all();
    let control = Control::new(&mut daemon);
    let (end, other) = std::io::pipe().expect("a pipe");
    let before = std::fs::read_dir("/proc/self/fd").expect("a list").count();
    for request in [HELLO, Request::ShowTwin, Request::Recognise, Request::AddQueueSet] {
        send_many(&control, request, &[other.as_fd(); 253]);
        settle(&mut daemon);
        assert!(control.receive().is_some(), "{request:?}");
    }
    drop(other);
    // Had anybody kept a copy, this would wait for ever.
    assert_eq!(std::io::read_to_string(end).expect("the end"), "");
    let after = std::fs::read_dir("/proc/self/fd").expect("a list").count();
    // Other tests run beside this one.
    assert!(after < before + 200, "{before} descriptors became {after}");
}

#[test]
fn a_stranger_is_told_so_and_nothing_of_his_is_taken() {
    if !is_root() {
        return;
    }
    let mut daemon = daemon_with("toed --allow-uid 7");
    let stranger = Control::of_user(&mut daemon, USER);
    settle(&mut daemon);
    let (packet, _) = stranger.receive().expect("an answer");
    let reply = toe_abi::attach::Message::parse(&packet).and_then(|m| Reply::decode(&m)).expect("a reply");
    assert!(matches!(reply, Reply::Refused { errno, .. } if errno == Errno::EACCES.0), "{reply:?}");
    assert!(stranger.is_closed());
    assert_eq!(daemon.hosts.server.dealings(), 0, "the engine has heard of nothing");
    assert_eq!(daemon.hosts.server.refused(), 1);
    let allowed = Control::of_user(&mut daemon, 7);
    assert!(matches!(allowed.ask(&mut daemon, HELLO).0, Reply::Welcome { .. }));
}

/// What a stranger has sent before he is turned away ends with his connection, which is no quick end.
#[test]
fn a_stranger_with_something_in_hand_holds_up_nobody() {
    if !is_root() {
        return;
    }
    let mut daemon = daemon_with("toed --allow-uid 7");
    let pair =
        || rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let of_stranger = move || {
        let user = rustix::process::Uid::from_raw(USER);
        rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
        pair().expect("a pair")
    };
    let (ours, theirs) = std::thread::spawn(of_stranger).join().expect("a thread");
    let stranger = Control { socket: ours };
    let mut lingering = Lingering::new();
    let socket = lingering.socket.take().expect("not closed yet");
    for _ in 0..4 {
        stranger.send(HELLO.encode().as_bytes(), &[]).expect("sent");
        stranger.send(&[], &[]).expect("sent");
    }
    stranger.send(HELLO.encode().as_bytes(), &[socket.as_fd()]).expect("sent");
    drop(socket);
    daemon.hosts.serve(theirs).expect("a connection");
    until(&mut daemon, "the last copy is being closed", || lingering.is_closing());
    let allowed = Control::of_user(&mut daemon, 7);
    assert!(matches!(allowed.ask_meanwhile(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    let another = Control::of_user(&mut daemon, USER);
    until(&mut daemon, "he is turned away again", || another.is_closed());
    assert!(lingering.is_closing());
    lingering.release();
    settle(&mut daemon);
}

#[test]
fn descriptors_that_mean_nothing_are_refused() {
    let mut daemon = open_to_all();
    let host = FakeHost::attach(&mut daemon);
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    let path = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("a path");
    let (unix, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
    // One with its own other end in flight to it.
    let carrier = Control { socket: other };
    carrier.send(b"take this", &[carrier.socket.as_fd()]).expect("sent");
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("an epoll");
    for presented in [&pipe, &path, &unix, &epoll] {
        let cases = [
            (Request::ShowTwin, Errno::EINVAL),
            (Request::Claim { queue_set: 0, fd: 3 }, Errno::ENOENT),
            (Request::Recognise, Errno::ENOENT),
            (Request::Capture { snaplen: 9, interface: None, filter_len: 3 }, Errno::EINVAL),
        ];
        for (request, wanted) in cases {
            let (reply, _) = host.control.ask_with(&mut daemon, request, &[presented.as_fd()]);
            assert!(
                matches!(reply, Reply::Refused { errno, .. } if errno == wanted.0),
                "{request:?}: {reply:?}"
            );
        }
    }
}

#[test]
fn memory_that_could_still_grow_is_not_looked_at() {
    let mut daemon = open_to_all();
    let host = FakeHost::attach(&mut daemon);
    let request = Request::Capture { snaplen: 9, interface: None, filter_len: 3 };
    let refusal = |daemon: &mut Daemon, memory: &OwnedFd| match host
        .control
        .ask_with(daemon, request, &[memory.as_fd()])
        .0
    {
        Reply::Refused { errno, .. } => Errno(errno),
        reply => panic!("{reply:?}"),
    };
    let memory = |flags, len| {
        let memory = rustix::fs::memfd_create("unread", flags | MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&memory, len).expect("long");
        memory
    };
    let cannot_be_settled = memory(MemfdFlags::empty(), 3);
    assert_eq!(refusal(&mut daemon, &cannot_be_settled), Errno::EINVAL);
    for len in [2, 1 << 30] {
        let (daemon, memory) = (&mut daemon, memory(MemfdFlags::ALLOW_SEALING, len));
        assert_eq!(refusal(daemon, &memory), Errno::EINVAL, "{len} bytes");
    }
    let good = memory(MemfdFlags::ALLOW_SEALING, 3);
    assert_eq!(refusal(&mut daemon, &good), Errno::EINVAL, "no filter");
    assert!(rustix::fs::ftruncate(&good, 1 << 30).is_err(), "its length is settled");
}

fn tcp(family: AddressFamily) -> OwnedFd {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket")
}

fn bound(at: &str) -> OwnedFd {
    let at: SocketAddr = at.parse().expect("an address");
    let socket = tcp(if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 });
    rustix::net::bind(&socket, &at).expect("free");
    socket
}

#[test]
fn a_twin_holds_its_port_for_all_devices_and_nothing_else() {
    let mut daemon = open_to_all();
    let host = FakeHost::attach(&mut daemon);
    let mut show =
        |presented: BorrowedFd<'_>| host.control.ask_with(&mut daemon, Request::ShowTwin, &[presented]).0;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let at = listener.local_addr().expect("bound");
    let client = TcpStream::connect(at).expect("connected");
    let (accepted, _) = listener.accept().expect("a connection");
    assert!(matches!(show(listener.as_fd()), Reply::Handle { .. }), "it listens");
    assert!(matches!(show(bound("127.0.0.1:0").as_fd()), Reply::Handle { .. }), "it is bound");
    let mut is_refused = |presented: BorrowedFd<'_>, what: &str| {
        let reply = show(presented);
        assert!(
            matches!(reply, Reply::Refused { errno, .. } if errno == Errno::EINVAL.0),
            "{what}: {reply:?}"
        );
    };
    is_refused(tcp(AddressFamily::INET).as_fd(), "bound to nothing");
    is_refused(client.as_fd(), "connected");
    is_refused(accepted.as_fd(), "accepted");
    // Both ends reset: it names the port of the listener still, and does not have it.
    set_socket_linger(&client, Some(Duration::ZERO)).expect("an option");
    drop(client);
    let waits = rustix::event::PollFlags::HUP;
    rustix::event::poll(&mut [rustix::event::PollFd::new(&accepted, waits)], None).expect("its end");
    assert_eq!(accepted.local_addr().expect("a name").port(), at.port());
    is_refused(accepted.as_fd(), "a connection that was");
    let device = bound("127.0.0.1:0");
    let name = std::ffi::OsString::from("lo");
    if nix::sys::socket::setsockopt(&device, nix::sys::socket::sockopt::BindToDevice, &name).is_ok() {
        is_refused(device.as_fd(), "of one device");
    }
    let family = AddressFamily::INET;
    let multipath = rustix::net::ipproto::MPTCP;
    if let Ok(socket) = rustix::net::socket(family, SocketType::STREAM, Some(multipath)) {
        rustix::net::bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().expect("an address")).expect("free");
        is_refused(socket.as_fd(), "of another protocol");
    }
}

#[test]
fn a_twin_is_gone_for_the_engine_although_its_users_thread_stands_still() {
    if !is_root() {
        return;
    }
    let mut daemon = open_to_all();
    let hostile = Control::of_user(&mut daemon, USER);
    assert!(matches!(hostile.ask(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    let twin = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let identity = sockopt::socket_cookie(&twin).expect("a cookie");
    let (reply, _) = hostile.ask_with(&mut daemon, Request::ShowTwin, &[twin.as_fd()]);
    assert!(matches!(reply, Reply::Handle { .. }), "{reply:?}");
    let mut lingering = hold_up(&mut daemon, &hostile);
    let before = daemon.hosts.server.dealings();
    drop(twin);
    let now = std::time::Instant::now();
    daemon.hosts.server.look_at_twins(vec![identity]);
    // The errand is one dealing, and what comes of it another.
    while daemon.hosts.server.dealings() < before + 2 {
        super::come_to_rest(&mut daemon);
        assert!(now.elapsed() < Duration::from_secs(60), "nobody looks");
    }
    assert!(lingering.is_closing());
    lingering.release();
    settle(&mut daemon);
}

/// What one asks of the kernel for a descriptor is the same as for a name.
#[test]
fn an_object_is_recognised_by_what_the_kernel_calls_it() {
    let dir = TempDir::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir.path(), flags, Mode::empty()).expect("a directory");
    let found = rustix::fs::fstat(&opened).expect("a directory");
    assert_eq!(identity_of(&opened).expect("an object"), (found.st_dev, found.st_ino));
}
