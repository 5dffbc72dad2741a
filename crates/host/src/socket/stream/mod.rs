//! The state of one connection as its program sees it, and what each completion does to it.
//!
//! Owned by [`crate::queue`], behind the queue set's lock. Plain state: nothing here waits. What the calls return and
//! what `poll` shows follows Linux (`tcp_recvmsg`, `tcp_sendmsg` and `tcp_poll` of its TCP, as observed):
//!
//! | | recv | send | poll |
//! |---|---|---|---|
//! | connecting | would block | would block | nothing |
//! | the same, the SYN waits for bytes | would block | goes out, with the SYN | OUT |
//! | peer's FIN, data left | data | goes out | IN RDHUP (OUT) |
//! | peer's FIN, no data left | 0 | goes out | IN RDHUP (OUT) |
//! | both directions closed | 0 | EPIPE | IN OUT HUP RDHUP |
//! | reset, data left | data | errno once, then EPIPE | IN OUT ERR HUP RDHUP |
//! | reset, no data left | errno once, then 0 | errno once, then EPIPE | the same; no ERR once the errno was told |

mod calls;
mod credit;
mod custody;
mod direct;
mod disconnect;
mod endpoints;
pub(crate) mod fast_open;
mod half_close;
mod link;
mod records;
mod recv;
mod recv_half;
mod send;
mod send_half;
mod so_error;
mod soft_error;
mod ulp;
mod unsent;

pub use link::{HowClosed, Link};
pub use recv_half::RecvHalf;
pub use send_half::SendHalf;

use crate::send_memory::Blocks;
use crate::socket::direct::Direct;
use crate::socket::received::{Received, Source};
use crate::socket::urgent::Plan;
use crate::socket::{Shutdown, Socket};
use custody::Custody;
use endpoints::Endpoints;
use half_close::HalfClose;
use so_error::SoError;
use std::sync::atomic::Ordering;
use toe_abi::command::{FLOW_RECEIVE_SHUT, FlowInfo};
use toe_abi::entry::MemRange;
use toe_abi::errno::Errno;
use toe_base::FlowId;
use ulp::Ulp;

pub const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
pub const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
pub const ERR: u32 = libc::EPOLLERR as u32;
/// Urgent data that can be read.
pub const PRI: u32 = libc::EPOLLPRI as u32;
pub const HUP: u32 = libc::EPOLLHUP as u32;
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Everything: what a socket whose connection is gone wakes its watchers with.
pub const ALL: u32 = IN | OUT | ERR | HUP | RDHUP;
/// Not an event of poll: all that was sent has been acknowledged. Wakes threads, not epoll sets.
pub const DRAINED: u32 = 1 << 24;

/// Which answer of `connect` the program has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectAnswer {
    Nothing,
    InProgress,
    Result,
}

/// What one attempt at an operation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Done(usize),
    /// Nothing now; wait and try again.
    Wait,
}

/// The part of a stream that goes along when it is claimed.
#[derive(Clone, Copy, Debug)]
pub struct SocketState {
    connect_answer: ConnectAnswer,
    shut: Option<Shutdown>,
    low_water: usize,
    so_error: SoError,
}

/// A connection.
#[derive(Debug)]
pub struct Stream {
    pub flow: FlowId,
    pub custody: Custody<&'static Socket>,
    pub link: Link,
    pub half_close: HalfClose,
    pub connect_answer: ConnectAnswer,
    pub so_error: SoError,
    pub recv: RecvHalf,
    pub send: SendHalf,
    /// The stream's use of a channel.
    pub direct: Option<Box<Direct>>,
    pub ulp: Ulp,
    pub endpoints: Endpoints,
}

impl Stream {
    fn new(flow: FlowId, link: Link, custody: Custody<&'static Socket>) -> Stream {
        Stream {
            flow,
            custody,
            link,
            half_close: HalfClose::default(),
            connect_answer: ConnectAnswer::Nothing,
            so_error: SoError::NONE,
            recv: RecvHalf::new(),
            send: SendHalf::default(),
            direct: None,
            ulp: Ulp::default(),
            endpoints: Endpoints::default(),
        }
    }

    pub fn connecting(flow: FlowId, socket: &'static Socket) -> Stream {
        Stream::new(flow, Link::CONNECTING, Custody::of(socket))
    }

    /// A connection that came in and that nobody has taken yet.
    pub fn accepted(flow: FlowId) -> Stream {
        let mut stream = Stream::new(flow, Link::Open, Custody::untaken());
        stream.connect_answer = ConnectAnswer::Result;
        stream
    }

    /// A connection that another process, or this one before, has had, with the counts of [`Reply::ClaimedFlow`].
    pub fn claimed(
        flow: FlowId,
        socket: &'static Socket,
        info: &FlowInfo,
        (read, written): (i64, u64),
    ) -> Stream {
        let mut stream = Stream::new(flow, Link::Open, Custody::of(socket));
        (stream.recv.from_engine, stream.send.to_engine) = (read, written);
        stream.connect_answer = ConnectAnswer::Result;
        // Numbers of Linux: the states in which our FIN has been seen. Of the peer's the engine tells again, behind the
        // bytes that came before it.
        if matches!(info.state, 4 | 5 | 6 | 7 | 9 | 11) {
            stream.half_close.shut(Shutdown::Write);
        }
        if info.flags & FLOW_RECEIVE_SHUT != 0 {
            stream.half_close.shut(Shutdown::Read);
        }
        if info.state == 2 {
            stream.link = Link::CONNECTING;
            stream.link.read_syn_room(info);
        }
        stream.read_addrs(info);
        stream
    }

    /// Whether the engine can have it back, for whoever shows the descriptor next: one that is over, too, while there are bytes
    /// of it that only this process can reach.
    pub fn can_be_given_back(&self) -> bool {
        let has_it = match self.link {
            Link::Open => true,
            Link::Closed(_) => self.recv.received.private() > 0,
            Link::Connecting { .. } | Link::Moved { .. } => false,
        };
        has_it && !self.custody.has_let_go()
    }

    /// The EPOLL bits that hold now.
    pub fn ready(&self) -> u32 {
        let mut bits = if self.so_error.waits() || self.send.zerocopy.has_untold() { ERR } else { 0 };
        if let Link::Connecting { .. } | Link::Moved { was: None } = self.link {
            // As Linux has it: for the program to send what the SYN waits for.
            return bits | if self.link.waits_for_bytes() { OUT } else { 0 };
        }
        if self.link.is_disconnected() {
            let room = if self.send.unsent.counts_gap() { 0 } else { OUT };
            return bits | HUP | room | if self.half_close.is_read_shut() { IN | RDHUP } else { 0 };
        }
        let closed = self.link.was_over();
        let read_over = closed || self.half_close.is_read_over();
        let write_over = closed || self.half_close.is_write_shut();
        if read_over && write_over {
            bits |= HUP;
        }
        if read_over {
            bits |= IN | RDHUP;
        }
        // Of an urgent byte that is next, only what comes after it can be read.
        let unread = self.recv.unread();
        let skips = self.recv.urgent.plan(self.recv.received.read(), unread) == Plan::Skip;
        if self.ulp.is_readable(unread, self.recv.low_water + usize::from(skips)) {
            bits |= IN;
        }
        if self.recv.urgent.is_here(self.recv.received.read(), unread) {
            bits |= PRI;
        }
        if write_over || self.send.has_room(self.direct.as_deref()) {
            bits |= OUT;
        }
        bits
    }

    /// Tells the socket what holds now; `key`: what has just happened.
    pub fn publish(&self, key: u32) {
        if let Some(socket) = self.custody.socket() {
            socket.publish(self.ready(), key);
        }
    }

    /// SO_ERROR: tells the error and forgets it.
    pub fn take_error(&mut self) -> Errno {
        let error = self.so_error.take();
        if !error.is_ok() {
            self.publish(0);
        }
        error
    }

    /// Both addresses, and how far away the peer is, once the engine has written them down.
    pub fn read_addrs(&mut self, info: &FlowInfo) {
        self.send.memory.set_round_trip(info.srtt_us);
        self.endpoints.read(info);
    }

    /// It connects, and the engine has not said anything of it yet.
    pub fn is_unanswered(&self) -> bool {
        self.link.is_connecting() && self.endpoints.lacks_local()
    }

    /// The engine may have given it a port.
    pub fn read_name(&mut self, info: &FlowInfo) {
        if self.is_unanswered() && info.local.port != 0 {
            self.read_addrs(info);
        }
    }

    /// What `connect` returns now, `None` while it is under way.
    pub fn connect_result(&mut self) -> Option<Result<(), Errno>> {
        if self.link == Link::CONNECTING {
            return None;
        }
        let connect_answer = std::mem::replace(&mut self.connect_answer, ConnectAnswer::Result);
        if connect_answer == ConnectAnswer::Result {
            return Some(Err(Errno::EISCONN));
        }
        // Who has it next is to hear that, too.
        let is_new = connect_answer == ConnectAnswer::InProgress;
        self.custody
            .socket()
            .inspect(|socket| _ = socket.has_new_options.fetch_or(is_new, Ordering::Release));
        if self.link.is_closed() {
            let error = self.take_error();
            return Some(Err(if error.is_ok() { Errno::ECONNABORTED } else { error }));
        }
        Some(Ok(()))
    }

    /// Puts back an error that was taken too early.
    pub fn put_error(&mut self, errno: Errno) {
        if !self.ulp.tells_again(errno) {
            self.so_error.set(errno);
            self.publish(0);
        }
    }

    /// Whether the stream takes data at all. `Ok(false)`: it does not, but the call has already sent some
    /// (`partly`), so that the error is for the next call.
    pub fn send_error(&mut self, partly: bool) -> Result<bool, Errno> {
        let over = self.half_close.is_write_shut() || self.link.is_closed();
        if !self.so_error.waits() && !over {
            return Ok(true);
        }
        if partly {
            return Ok(false);
        }
        let error = self.take_error();
        Err(if error.is_ok() { Errno::EPIPE } else { error })
    }

    pub fn on_connected(&mut self, errno: Errno) {
        if !self.link.is_connecting() {
            return;
        }
        if errno.is_ok() {
            self.link = Link::Open;
            self.publish(OUT);
        } else {
            self.link = Link::Closed(HowClosed::Lost);
            self.so_error.set(errno);
            self.publish(ALL);
        }
    }

    pub fn on_data(&mut self, data: MemRange) {
        // What comes for a stream that has moved is announced again to whoever has it next.
        if data.len == 0 || self.custody.has_let_go() || self.link.is_moved() {
            return;
        }
        // One range may hold bytes from before the channel's and from after them.
        let before =
            self.direct.as_ref().and_then(|direct| direct.recv.split(self.recv.from_engine, data.len));
        if let Some(before) = before {
            self.take_engine_data(MemRange { offset: data.offset, len: before });
            let (offset, len) = (data.offset + u64::from(before), data.len - before);
            self.take_engine_data(MemRange { offset, len });
        } else {
            self.take_engine_data(data);
        }
        self.publish(if self.recv.unread() >= self.recv.low_water { IN } else { 0 });
    }

    fn take_engine_data(&mut self, data: MemRange) {
        self.recv.from_engine += i64::from(data.len);
        self.recv.received.append(Source::Engine, data);
        while let Some(data) = self.direct.as_mut().and_then(|d| d.recv.next_in_order(self.recv.from_engine))
        {
            if data.len == 0 {
                self.on_peer_closed();
            } else {
                self.recv.received.append(Source::Channel, data);
            }
        }
    }

    pub fn on_sent(&mut self, blocks: &mut Blocks, len: u32) {
        let had_room = self.send.has_room(self.direct.as_deref());
        if !self.send.has_memory(self.direct.as_deref()) {
            self.send.memory.grow();
        }
        self.send.memory.release(blocks, len);
        self.send.shortage.draining = false;
        let mut key = if !had_room && self.send.has_room(self.direct.as_deref()) { OUT } else { 0 };
        if self.send.memory.outstanding() == 0 {
            key |= DRAINED;
        }
        self.publish(key);
    }

    pub fn on_peer_closed(&mut self) {
        if self.link.is_disconnected() || !self.half_close.on_peer_closed() {
            return;
        }
        self.publish(IN | RDHUP | if self.half_close.is_write_shut() { HUP | OUT } else { 0 });
    }

    /// The connection is gone. What was received before can still be read. `blocks`: the engine has said so, and needs what was to
    /// be sent no more.
    pub fn on_reset(&mut self, blocks: Option<&mut Blocks>, errno: Errno) {
        if let Some(blocks) = blocks {
            self.send.memory.release_all(blocks);
        }
        if !self.link.lose() {
            return;
        }
        // Linux: a reset in CLOSE_WAIT can only concern what we sent.
        let close_wait = self.half_close.has_peer_closed() && !self.half_close.is_write_shut();
        self.so_error.on_end(if errno == Errno::ECONNRESET && close_wait { Errno::EPIPE } else { errno });
        self.publish(ALL | DRAINED);
    }

    pub fn on_moved(&mut self) {
        self.link.moves();
        if let Some(socket) = self.custody.socket() {
            socket.set_moved();
        }
        self.recv.received = Received::default();
        self.recv.credit.pending = 0;
        self.publish(DRAINED);
    }

    /// What the program has done to the connection that the engine does not know.
    pub fn socket_state(&self) -> SocketState {
        SocketState {
            connect_answer: self.connect_answer,
            shut: self.half_close.shut_by_program(),
            low_water: self.recv.low_water,
            so_error: self.so_error.claimed(),
        }
    }

    pub fn set_socket_state(&mut self, state: SocketState) {
        self.connect_answer = state.connect_answer;
        state.shut.into_iter().for_each(|how| self.half_close.shut(how));
        self.recv.low_water = state.low_water;
        self.so_error = state.so_error;
    }
}
