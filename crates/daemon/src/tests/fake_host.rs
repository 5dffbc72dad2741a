//! A host that speaks the interface by hand, so that tests can also say what no host library would.

use super::{settle, until};
use crate::daemon::Daemon;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toe_abi::attach::{ANCHORS_AT_ONCE, DESCRIPTORS_MAX, Message, Reply, Request};
use toe_abi::command::{ConnectArgs, ListenArgs};
use toe_abi::entry::{Command, Completion, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno as ToeErrno;
use toe_abi::region::RegionLayout;
use toe_base::{AnchorHandle, FlowId, ListenerId};
use toe_ring::{HostDoorbell, HostQueueSet, Region};
use zerocopy::IntoBytes;

/// A control connection, without a session yet.
pub(crate) struct Control {
    pub(crate) socket: OwnedFd,
}

impl Control {
    pub(crate) fn new(daemon: &mut Daemon) -> Control {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair");
        daemon.hosts.serve(theirs).expect("a connection");
        Control { socket: ours }
    }

    /// The same of another user. Only root can be one.
    pub(crate) fn of_user(daemon: &mut Daemon, uid: u32) -> Control {
        let pair = move || {
            let user = rustix::process::Uid::from_raw(uid);
            // The kernel's call changes the calling thread alone, and the kernel notes whose thread makes the pair.
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        };
        let (ours, theirs) = std::thread::spawn(pair).join().expect("a thread").expect("a pair");
        daemon.hosts.serve(theirs).expect("a connection");
        Control { socket: ours }
    }

    /// The same of the calling user in a network namespace that is nobody else's. Only root can make one.
    pub(crate) fn of_new_namespace(daemon: &mut Daemon) -> Control {
        let pair = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("root may");
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        };
        let (ours, theirs) = std::thread::spawn(pair).join().expect("a thread").expect("a pair");
        daemon.hosts.serve(theirs).expect("a connection");
        Control { socket: ours }
    }

    pub(crate) fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(packet)], &mut control, flags)
    }

    /// The next packet, if there is one; an empty one when the engine closed the connection.
    pub(crate) fn receive(&self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = [0; 128];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let len = match got {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN) => return None,
            Err(Errno::CONNRESET) => 0,
            Err(errno) => panic!("{errno}"),
        };
        let fds = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        });
        Some((bytes[..len].to_vec(), fds.collect()))
    }

    pub(crate) fn is_closed(&self) -> bool {
        loop {
            match self.receive() {
                Some((packet, _)) if packet.is_empty() => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    pub(crate) fn ask_with(
        &self,
        daemon: &mut Daemon,
        request: Request,
        fds: &[BorrowedFd<'_>],
    ) -> (Reply, Vec<OwnedFd>) {
        self.send(request.encode().as_bytes(), fds).expect("sent");
        // Who has just come by the socket may not be anybody's yet, so that all seem to be at rest.
        let (reply, fds) = self.answer_meanwhile(daemon);
        settle(daemon);
        assert!(self.receive().is_none(), "exactly one answer");
        (reply, fds)
    }

    pub(crate) fn ask(&self, daemon: &mut Daemon, request: Request) -> (Reply, Vec<OwnedFd>) {
        self.ask_with(daemon, request, &[])
    }

    /// Asks while somebody else's thread may stand still, so that nothing comes to rest.
    pub(crate) fn ask_meanwhile(&self, daemon: &mut Daemon, request: Request) -> (Reply, Vec<OwnedFd>) {
        self.send(request.encode().as_bytes(), &[]).expect("sent");
        self.answer_meanwhile(daemon)
    }

    pub(crate) fn answer_meanwhile(&self, daemon: &mut Daemon) -> (Reply, Vec<OwnedFd>) {
        let mut answer = None;
        until(daemon, "an answer", || {
            answer = self.receive();
            answer.is_some()
        });
        let (packet, fds) = answer.expect("an answer");
        (Message::parse(&packet).and_then(|m| Reply::decode(&m)).expect("a reply"), fds)
    }

    /// The error that a request is refused with.
    pub(crate) fn refusal(&self, daemon: &mut Daemon, request: Request) -> ToeErrno {
        match self.ask(daemon, request).0 {
            Reply::Refused { errno, .. } => ToeErrno(errno),
            reply => panic!("{request:?} was answered by {reply:?}"),
        }
    }
}

/// A host with a session and one queue set.
pub(crate) struct FakeHost {
    pub(crate) control: Control,
    pub(crate) region: Region,
    /// The region's file, and that of its receive part.
    pub(crate) memory: OwnedFd,
    pub(crate) to_read: OwnedFd,
    pub(crate) layout: RegionLayout,
    pub(crate) doorbell: HostDoorbell,
    pub(crate) queue: HostQueueSet,
    pub(crate) completions: VecDeque<Completion>,
    /// The directory of its anchors.
    session_dir: OwnedFd,
    pool: VecDeque<AnchorHandle>,
    send_at: u64,
    token: u32,
    /// Kernel sockets that hold its ports.
    twins: Vec<OwnedFd>,
}

impl FakeHost {
    pub(crate) fn attach(daemon: &mut Daemon) -> FakeHost {
        let control = Control::new(daemon);
        FakeHost::attach_by(daemon, control)
    }

    pub(crate) fn attach_by(daemon: &mut Daemon, control: Control) -> FakeHost {
        let (reply, fds) = control.ask_meanwhile(daemon, Request::Hello { room: 0 });
        let Reply::Welcome { layout, .. } = reply else { panic!("{reply:?}") };
        let [memory, to_read, eventfd, _, session_dir] =
            <[OwnedFd; 5]>::try_from(fds).expect("five descriptors");
        let region = Region::map_for(&layout, [&memory, &to_read]).expect("mapped");
        let (reply, mut fds) = control.ask_meanwhile(daemon, Request::AddQueueSet);
        assert_eq!(reply, Reply::QueueSet { index: 0 });
        let irq = fds.pop().expect("an interrupt");
        FakeHost {
            queue: HostQueueSet::new(&region, &layout, 0, irq).expect("a queue set"),
            doorbell: HostDoorbell::new(region.clone(), eventfd),
            send_at: layout.send_offset(),
            control,
            region,
            memory,
            to_read,
            layout,
            completions: VecDeque::new(),
            session_dir,
            pool: VecDeque::new(),
            token: 0,
            twins: Vec::new(),
        }
    }

    pub(crate) fn take_anchor(&mut self, daemon: &mut Daemon) -> (AnchorHandle, OwnedFd) {
        if self.pool.is_empty() {
            let (reply, _) = self.control.ask(daemon, Request::TakeAnchors { count: ANCHORS_AT_ONCE });
            let Reply::Anchors { first, count } = reply else { panic!("{reply:?}") };
            self.pool.extend((first..first + count).map(AnchorHandle));
        }
        let anchor = self.pool.pop_front().expect("an anchor");
        (anchor, self.open_anchor(anchor))
    }

    pub(crate) fn open_anchor(&self, anchor: AnchorHandle) -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.session_dir, anchor.to_string(), flags, Mode::empty())
            .expect("its own anchor")
    }

    /// Takes what the engine posted.
    pub(crate) fn drain(&mut self) {
        while let Some(completion) = self.queue.pop_completion() {
            let completion = completion.expect("a completion");
            if let Completion::AnchorFree { anchor } = completion {
                self.pool.push_back(anchor);
            }
            self.completions.push_back(completion);
        }
        if self.queue.publish_head() {
            self.doorbell.ring_for_head().expect("rung");
        }
    }

    /// What was taken and not asked for yet.
    pub(crate) fn completions(&self) -> impl Iterator<Item = &Completion> {
        self.completions.iter()
    }

    /// The first completion that `pick` wants, out of order if need be.
    pub(crate) fn find<T>(&mut self, pick: impl Fn(&Completion) -> Option<T>) -> Option<T> {
        self.drain();
        let at = self.completions.iter().position(|c| pick(c).is_some())?;
        self.completions.remove(at).and_then(|c| pick(&c))
    }

    pub(crate) fn expect<T>(
        &mut self,
        daemon: &mut Daemon,
        what: &str,
        pick: impl Fn(&Completion) -> Option<T>,
    ) -> T {
        settle(daemon);
        let found = self.find(pick);
        found.unwrap_or_else(|| panic!("no {what} among {:?}", self.completions))
    }

    pub(crate) fn command_result(&mut self, daemon: &mut Daemon, token: u32) -> Result<FlowId, ToeErrno> {
        self.expect(daemon, "command result", |c| match *c {
            Completion::CommandResult { token: t, errno, id, .. } if t == token => {
                Some(if errno.is_ok() { Ok(FlowId::from_raw(id)) } else { Err(errno) })
            }
            _ => None,
        })
    }

    pub(crate) fn listen(&mut self, daemon: &mut Daemon, local: SocketAddr) -> (ListenerId, OwnedFd) {
        let twin = kernel_listener(local);
        let (reply, _) = self.control.ask_with(daemon, Request::ShowTwin, &[twin.as_fd()]);
        let Reply::Handle { handle } = reply else { panic!("{reply:?}") };
        self.twins.push(twin);
        self.listen_with(daemon, local, handle)
    }

    /// The same with the handle of a kernel socket.
    pub(crate) fn listen_with(
        &mut self,
        daemon: &mut Daemon,
        local: SocketAddr,
        twin: u32,
    ) -> (ListenerId, OwnedFd) {
        let (anchor, end) = self.take_anchor(daemon);
        self.token += 1;
        let args = ListenArgs {
            local: local.into(),
            backlog: 16,
            anchor: anchor.0,
            twin,
            fd: 5,
            ..Default::default()
        };
        self.queue.push_listen(self.token, &args).expect("room");
        self.doorbell.ring_if_wanted().expect("rung");
        let listener = ListenerId(self.command_result(daemon, self.token).expect("listening"));
        self.push(Command::AcceptCredit { listener, count: 16 });
        (listener, end)
    }

    pub(crate) fn connect(&mut self, daemon: &mut Daemon, remote: SocketAddr) -> (FlowId, OwnedFd) {
        let (flow, end) = self.begin_connect(daemon, remote);
        let errno = self.expect(daemon, "connection", |c| match *c {
            Completion::Connected { flow: f, errno } if f == flow => Some(errno),
            _ => None,
        });
        assert!(errno.is_ok(), "{errno:?}");
        (flow, end)
    }

    pub(crate) fn begin_connect(&mut self, daemon: &mut Daemon, remote: SocketAddr) -> (FlowId, OwnedFd) {
        let (anchor, end) = self.take_anchor(daemon);
        self.token += 1;
        let args = ConnectArgs { remote: remote.into(), anchor: anchor.0, fd: 6, ..Default::default() };
        self.queue.push_connect(self.token, &args).expect("room");
        self.doorbell.ring_if_wanted().expect("rung");
        let flow = self.command_result(daemon, self.token).expect("a route");
        (flow, end)
    }

    /// Takes the connection that came in.
    pub(crate) fn accept(&mut self, daemon: &mut Daemon, listener: ListenerId) -> (FlowId, OwnedFd) {
        let flow = self.expect(daemon, "connection", |c| match *c {
            Completion::Accepted { listener: l, flow } if l == listener => Some(flow),
            _ => None,
        });
        let (anchor, end) = self.take_anchor(daemon);
        self.push(Command::Accept { flow, anchor, fd: 7 });
        (flow, end)
    }

    pub(crate) fn push(&mut self, command: Command) {
        self.queue.push_command(command).expect("room");
        self.doorbell.ring_if_wanted().expect("rung");
    }

    /// Publishes bytes to send. The send part is used once around, which is enough for a test.
    pub(crate) fn send(&mut self, flow: FlowId, bytes: &[u8]) {
        let data = self.put_into_send_part(bytes);
        self.queue.push_send(Send::new(flow, data)).expect("room");
        self.doorbell.ring_if_wanted().expect("rung");
    }

    pub(crate) fn put_into_send_part(&mut self, bytes: &[u8]) -> MemRange {
        let end = self.layout.send_offset() + self.layout.send_len;
        if self.send_at + bytes.len() as u64 > end {
            self.send_at = self.layout.send_offset();
        }
        self.region.write(self.send_at, bytes).expect("in the region");
        let data = MemRange { offset: self.send_at, len: bytes.len() as u32 };
        self.send_at += bytes.len() as u64;
        data
    }

    /// What has arrived on a flow, given back to the engine.
    pub(crate) fn receive(&mut self, flow: FlowId) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(data) = self.find(|c| match *c {
            Completion::Data { flow: f, data } if f == flow => Some(data),
            _ => None,
        }) {
            let at = out.len();
            out.resize(at + data.len as usize, 0);
            self.region.read(data.offset, &mut out[at..]).expect("in the region");
            self.queue.push_credit(ReceiveCredit { flow, len: data.len }).expect("room");
        }
        self.doorbell.ring_if_wanted().expect("rung");
        out
    }

    pub(crate) fn control_fd(&self) -> BorrowedFd<'_> {
        self.control.socket.as_fd()
    }
}

/// A kernel socket that listens there, beside those of other tests.
fn kernel_listener(local: SocketAddr) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    sockopt::set_socket_reuseport(&socket, true).expect("shared");
    rustix::net::bind(&socket, &local).expect("bound");
    rustix::net::listen(&socket, 1).expect("listens");
    socket
}
