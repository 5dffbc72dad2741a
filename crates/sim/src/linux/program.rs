//! The programs at Linux's end: plain non-blocking sockets that do what their plans say.

use super::LINUX;
use super::choice::Choice;
use super::far::Far;
use crate::checkers::Checker;
use crate::frame::Way;
use crate::node::address_of;
use crate::pattern::StreamId;
use crate::program::plain;
use crate::program::plan::{Due, Plan, Progress};
use crate::tally::Tally;
use crate::trace::About;
use crate::world::World;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as SysErrno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::Duration;
use toe_abi::errno::Errno;
use toe_script::linux::MSG_FASTOPEN;
use toe_script::stack::StackError;

/// Where they listen.
pub(super) const PORT: u16 = 7100;
/// Bytes read at one call, at most.
const READ_MAX: usize = 65_536;

/// All sockets.
pub(super) struct Programs {
    listener: OwnedFd,
    sockets: Vec<Socket>,
    congestion: &'static str,
    /// Linux connects by Fast Open.
    opens_fast: bool,
}

struct Socket {
    /// `None`: it is closed.
    fd: Option<OwnedFd>,
    sends: StreamId,
    open: bool,
    handed: u64,
    consumed: u64,
    eof: bool,
    shut: bool,
    next_read_us: u64,
    /// It has no room to send.
    full: bool,
}

type Result<T> = core::result::Result<T, StackError>;

fn failed(doing: &str) -> impl Fn(SysErrno) -> StackError + '_ {
    move |error| StackError::new(doing, error)
}

impl Programs {
    pub(super) fn new(choice: &Choice) -> Result<Programs> {
        let congestion = if choice.linux.reno { "reno" } else { "cubic" };
        let listener = new_socket(congestion)?;
        let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT);
        rustix::net::bind(&listener, &at).map_err(failed("binding"))?;
        rustix::net::listen(&listener, 1024).map_err(failed("listening"))?;
        let opens_fast = choice.linux.fast_open.client();
        Ok(Programs { listener, sockets: Vec::new(), congestion, opens_fast })
    }

    /// Waits until a frame or a socket has something, or so long.
    pub(super) fn wait(&self, far: &Far, limit: Duration) -> Result<()> {
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(far.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        for socket in &self.sockets {
            let Some(fd) = &socket.fd else { continue };
            // Who reads slowly, or has read all, is looked at by the clock.
            let reads = !socket.eof && socket.next_read_us == 0;
            let mut flags = if reads { PollFlags::IN } else { PollFlags::empty() };
            if !socket.open || socket.full {
                flags |= PollFlags::OUT;
            }
            fds.push(PollFd::new(fd, flags));
        }
        let limit = limit.try_into().map_err(|error| StackError::new("waiting", error))?;
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(SysErrno::INTR) => Ok(()),
            Err(error) => Err(StackError::new("waiting", error)),
        }
    }

    /// Everything that can be done now.
    pub(super) fn step(&mut self, world: &mut World) -> Result<()> {
        for conn in std::mem::take(&mut world.outside.connects) {
            self.connect(world, conn)?;
        }
        self.accept(world)?;
        for socket in &mut self.sockets {
            socket.step(world)?;
        }
        Ok(())
    }

    /// The processes end.
    pub(super) fn close_all(&mut self) {
        self.sockets.clear();
    }

    fn connect(&mut self, world: &mut World, conn: u32) -> Result<()> {
        let fd = new_socket(self.congestion)?;
        let sends = StreamId { conn, side: 0 };
        let server = world.conns.list[conn as usize].server;
        rustix::net::bind(&fd, &SocketAddrV4::new(address_of(LINUX), 0)).map_err(failed("binding"))?;
        let own = rustix::net::getsockname(&fd).map_err(failed("asking for the own address"))?;
        let own = SocketAddr::try_from(own).map_err(failed("reading the own address"))?;
        let to = SocketAddr::from((address_of(server.0), server.1));
        let way = Way { from: plain(own), to: plain(to) };
        world.sequences.know(way, sends);
        world.conns.by_way.insert((server.0, way), conn);
        event(world, Some(conn), "connect", format_args!("{to} from {own}"));
        let mut socket = Socket::new(fd, sends);
        socket.set_options(world)?;
        socket.begin(world, &to, self.opens_fast)?;
        self.sockets.push(socket);
        Ok(())
    }

    fn accept(&mut self, world: &mut World) -> Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            let (fd, peer) = match rustix::net::acceptfrom_with(&self.listener, flags) {
                Ok((fd, Some(peer))) => (fd, peer),
                Ok((_, None)) | Err(SysErrno::CONNABORTED) => continue,
                Err(SysErrno::AGAIN) => return Ok(()),
                Err(error) => return Err(failed("accepting")(error)),
            };
            let peer = SocketAddr::try_from(peer).map_err(failed("reading the peer's address"))?;
            let own = SocketAddr::from((address_of(LINUX), PORT));
            let way = Way { from: plain(peer), to: plain(own) };
            let Some(conn) = world.conns.by_way.get(&(LINUX, way)).copied() else {
                world.tallies.add(Tally::Strangers);
                continue;
            };
            let times = world.conns.list[conn as usize].accepts;
            world.conns.list[conn as usize].accepts += 1;
            if times > 0 {
                // Nothing comes of a SYN that came again.
                if world.sequences.may_come_again(way, times).is_none() {
                    let what = format!("connection {conn} was accepted again");
                    world.verdict.fail(Checker::Streams, what);
                }
                continue;
            }
            event(world, Some(conn), "accept", format_args!("{peer}"));
            let mut socket = Socket::new(fd, StreamId { conn, side: 1 });
            socket.open = true;
            world.conns.list[conn as usize].opened[1] = true;
            world.streams.progress += 1;
            socket.set_options(world)?;
            self.sockets.push(socket);
        }
    }
}

fn gone() -> StackError {
    StackError("a closed socket is used".to_owned())
}

fn new_socket(congestion: &str) -> Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .map_err(failed("making a socket"))?;
    // Urgent bytes stay in the stream, where their place is checked.
    sockopt::set_socket_oobinline(&fd, true).map_err(failed("setting SO_OOBINLINE"))?;
    sockopt::set_tcp_congestion(&fd, congestion).map_err(failed("setting TCP_CONGESTION"))?;
    Ok(fd)
}

fn event(world: &mut World, conn: Option<u32>, event: &str, detail: std::fmt::Arguments<'_>) {
    let about = About { node: Some(LINUX), session: None, conn };
    world.trace.event(world.now_us, about, event, detail);
}

impl Socket {
    fn new(fd: OwnedFd, sends: StreamId) -> Socket {
        Socket {
            fd: Some(fd),
            sends,
            open: false,
            handed: 0,
            consumed: 0,
            eof: false,
            shut: false,
            next_read_us: 0,
            full: false,
        }
    }

    fn plan(&self, world: &World) -> Plan {
        world.conns.list[self.sends.conn as usize].plans[usize::from(self.sends.side)]
    }

    fn set_options(&self, world: &World) -> Result<()> {
        let (fd, plan) = (self.fd.as_ref().ok_or_else(gone)?, self.plan(world));
        let set = failed("setting an option");
        sockopt::set_tcp_nodelay(fd, plan.no_delay).map_err(&set)?;
        sockopt::set_tcp_cork(fd, plan.cork).map_err(&set)?;
        if plan.keepalive {
            sockopt::set_tcp_keepidle(fd, Duration::from_secs(3)).map_err(&set)?;
            sockopt::set_tcp_keepintvl(fd, Duration::from_secs(1)).map_err(&set)?;
            sockopt::set_socket_keepalive(fd, true).map_err(&set)?;
        }
        if let Some(window) = plan.window_max {
            sockopt::set_socket_recv_buffer_size(fd, window as usize).map_err(&set)?;
        }
        Ok(())
    }

    /// Connects, with the first bytes in the SYN if that is wanted and Linux knows the server.
    fn begin(&mut self, world: &mut World, to: &SocketAddr, opens_fast: bool) -> Result<()> {
        let plan = self.plan(world);
        let fd = self.fd.as_ref().ok_or_else(gone)?;
        let len = plan.may_send(self.progress()).min(u64::from(plan.chunk_max)) as usize;
        let is_fast = opens_fast && len > 0 && world.conns.list[self.sends.conn as usize].fast;
        let result = if is_fast {
            let mut bytes = vec![0; len];
            self.sends.fill(0, &mut bytes);
            let flags = SendFlags::from_bits_retain(MSG_FASTOPEN) | SendFlags::NOSIGNAL;
            rustix::net::sendto(fd, &bytes, flags, to)
        } else {
            rustix::net::connect(fd, to).map(|()| 0)
        };
        match result {
            Ok(0) | Err(SysErrno::INPROGRESS) => {}
            Ok(taken) => {
                self.handed = taken as u64;
                world.streams.handed(self.sends, taken as u32);
                world.tallies.add(Tally::FastOpens);
                event(world, Some(self.sends.conn), "send", format_args!("{taken} before the handshake"));
            }
            Err(error) => self.breaks(world, error),
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        Progress { handed: self.handed, consumed: self.consumed, all_read: self.eof, shut: self.shut }
    }

    fn step(&mut self, world: &mut World) -> Result<()> {
        if !self.open {
            self.finish_connect(world)?;
        }
        if !self.open || self.fd.is_none() {
            return Ok(());
        }
        let plan = self.plan(world);
        self.read(world, &plan);
        self.send(world, &plan);
        self.go_on(world, &plan)
    }

    fn finish_connect(&mut self, world: &mut World) -> Result<()> {
        let Some(fd) = &self.fd else { return Ok(()) };
        match sockopt::socket_error(fd).map_err(failed("asking for SO_ERROR"))? {
            Err(error) => self.breaks(world, error),
            Ok(()) if rustix::net::getpeername(fd).is_ok() => {
                self.open = true;
                world.conns.list[self.sends.conn as usize].opened[0] = true;
                world.streams.progress += 1;
                event(world, Some(self.sends.conn), "connected", format_args!(""));
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// An error tells that the connection is no more: somebody must have broken it.
    fn breaks(&mut self, world: &mut World, error: SysErrno) {
        let errno = match error {
            // What was sent after the reset was told of.
            SysErrno::PIPE => Errno::ECONNRESET,
            error => Errno(error.raw_os_error() as u16),
        };
        event(world, Some(self.sends.conn), "broken", format_args!("{errno:?}"));
        let excuses = world.conns.excuses;
        let conn = &mut world.conns.list[self.sends.conn as usize];
        if !conn.is_explained(!self.open, errno, &excuses) {
            let what = format!("{:?} broke at Linux, {errno:?}, but nobody has ended it so", self.sends);
            world.verdict.fail(Checker::Streams, what);
        }
        conn.excuse.get_or_insert("it broke at Linux");
        self.close(world, false);
    }

    fn read(&mut self, world: &mut World, plan: &Plan) {
        let comes = StreamId { side: 1 - self.sends.side, ..self.sends };
        let mut bytes = vec![0; READ_MAX.min(plan.read_max as usize)];
        while !self.eof && world.now_us >= self.next_read_us {
            let Some(fd) = &self.fd else { return };
            match rustix::net::recv(fd, &mut bytes[..], RecvFlags::empty()) {
                Ok((0, _)) => {
                    self.eof = true;
                    event(world, Some(comes.conn), "finished", format_args!("behind {}", self.consumed));
                    let found = world.streams.eof(comes, self.consumed);
                    world.verdict.check(Checker::Streams, found);
                }
                Ok((got, _)) => {
                    self.consumed += got as u64;
                    event(world, Some(comes.conn), "read", format_args!("{got}"));
                    let found = world.streams.read(comes, &bytes[..got]);
                    world.verdict.check(Checker::Streams, found);
                    world.tallies.add_many(Tally::BytesRead, got as u64);
                    if plan.read_pause_us > 0 {
                        self.next_read_us = world.now_us + u64::from(plan.read_pause_us);
                    }
                }
                Err(SysErrno::AGAIN) => return,
                Err(error) => return self.breaks(world, error),
            }
        }
    }

    fn send(&mut self, world: &mut World, plan: &Plan) {
        self.full = false;
        while !self.shut {
            let Some(fd) = &self.fd else { return };
            let len = plan.may_send(self.progress()).min(u64::from(plan.chunk_max)) as usize;
            if len == 0 {
                return;
            }
            let mut bytes = vec![0; len];
            self.sends.fill(self.handed, &mut bytes);
            let mut flags = SendFlags::NOSIGNAL;
            if world.drivers.ppm(plan.more_ppm) {
                flags |= SendFlags::MORE;
            }
            if world.drivers.ppm(plan.urgent_ppm) {
                flags |= SendFlags::OOB;
                world.tallies.add(Tally::Urgent);
            }
            match rustix::net::send(fd, &bytes, flags) {
                Ok(sent) => {
                    self.handed += sent as u64;
                    world.streams.handed(self.sends, sent as u32);
                    event(world, Some(self.sends.conn), "send", format_args!("{sent} {flags:?}"));
                }
                Err(SysErrno::AGAIN) => {
                    self.full = true;
                    return;
                }
                Err(error) => return self.breaks(world, error),
            }
        }
    }

    fn go_on(&mut self, world: &mut World, plan: &Plan) -> Result<()> {
        let Some(fd) = &self.fd else { return Ok(()) };
        let conn = &mut world.conns.list[self.sends.conn as usize];
        let peer_bytes = conn.plans[1 - usize::from(self.sends.side)].bytes;
        match plan.due(self.progress(), peer_bytes) {
            Due::Nothing => {}
            Due::Shutdown => {
                self.shut = true;
                world.streams.ended(self.sends);
                match rustix::net::shutdown(fd, Shutdown::Write) {
                    Ok(()) => event(world, Some(self.sends.conn), "shutdown", format_args!("")),
                    // It was reset, and the next read says why.
                    Err(SysErrno::NOTCONN) => {}
                    Err(error) => return Err(failed("shutting down")(error)),
                }
            }
            Due::Close => self.close(world, false),
            Due::Abort => {
                conn.excuse.get_or_insert("a program aborted it");
                sockopt::set_socket_linger(fd, Some(Duration::ZERO)).map_err(failed("setting SO_LINGER"))?;
                self.close(world, true);
            }
        }
        Ok(())
    }

    fn close(&mut self, world: &mut World, abort: bool) {
        event(world, Some(self.sends.conn), "close", format_args!("abort {abort}"));
        world.streams.ended(self.sends);
        world.streams.progress += 1;
        world.conns.list[self.sends.conn as usize].done[usize::from(self.sends.side)] = true;
        self.fd = None;
    }
}
