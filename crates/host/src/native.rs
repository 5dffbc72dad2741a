//! TCP connections for a library that is written for the engine, in Rust's words: begun, taken, sent to and received from without waiting. Called by
//! `toe-via`, whose messages to other hosts go in them. Who waits does so by [`crate::poll`], with their descriptors.

use crate::socket::slices::{Source, Target};
use crate::socket::{AcceptError, AcceptHow, RecvFlags, SendFlags, Shutdown, Socket};
use crate::stack::{EngineIdx, Stack};
use crate::{fd_table, sys};
use rustix::fd::RawFd;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use toe_abi::errno::Errno;

pub use crate::socket::slices::{Bytes, Room};

/// Bytes that are made where they are sent from.
pub trait Maker {
    /// Bytes that are left.
    fn left(&self) -> usize;

    /// Makes the next ones: `max`, or all that are left, if these are fewer. Returns how many.
    fn make(&mut self, room: Room<'_>, max: usize) -> usize;
}

/// Who takes received bytes from where they lie.
pub trait Taker {
    /// Bytes that it takes now.
    fn left(&self) -> usize;

    /// Takes the next `len` ones, which are no more than are left.
    fn take(&mut self, bytes: Bytes<'_>, len: usize);
}

struct Made<'a>(&'a mut dyn Maker);

impl Source for Made<'_> {
    fn left(&self) -> usize {
        self.0.left()
    }

    fn check_next(&self, _len: usize) -> Result<bool, Errno> {
        Ok(true)
    }

    fn put(&mut self, room: Room<'_>, max: usize) -> Result<usize, Errno> {
        Ok(self.0.make(room, max))
    }

    // What is certain is put once.
    fn take_back(&mut self, _: usize) {}
}

struct Taken<'a>(&'a mut dyn Taker);

impl Target for Taken<'_> {
    fn left(&self) -> usize {
        self.0.left()
    }

    fn take(&mut self, bytes: Bytes<'_>, max: usize) -> Result<usize, Errno> {
        let len = max.min(self.0.left());
        self.0.take(bytes, len);
        Ok(len)
    }
}

/// A descriptor of a socket, closed when this is dropped.
#[derive(Debug)]
struct Own {
    fd: RawFd,
    socket: &'static Socket,
}

impl Own {
    fn new() -> Result<Own, Errno> {
        let stack = Stack::attach(EngineIdx::FIRST)?;
        let fd = stack.session.anchors().placeholder(true)?;
        let socket = Socket::allocate();
        socket.set_nonblocking(true);
        fd_table::install(fd, socket);
        Ok(Own { fd, socket })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        crate::fd_release::close(self.fd);
        let _ = sys::close(self.fd);
    }
}

/// A connection. Any thread may call it, several at a time. Nothing here waits.
#[derive(Debug)]
pub struct Connection(Own);

impl Connection {
    /// Begins to connect. [`Connection::is_connected`] says what becomes of it.
    pub fn connect(remote: SocketAddr) -> Result<Connection, Errno> {
        let own = Own::new()?;
        own.socket.connect_native(remote, own.fd)?;
        Ok(Connection(own))
    }

    /// `false`: the peer has not answered yet; an error: it has refused, or cannot be reached.
    pub fn is_connected(&self) -> Result<bool, Errno> {
        match self.0.socket.wait_connected(true) {
            Ok(()) => Ok(true),
            Err(Errno::EINPROGRESS | Errno::EALREADY) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// The peer's address.
    pub fn peer(&self) -> Result<SocketAddr, Errno> {
        self.0.socket.peer_addr()
    }

    /// Sends as much as fits. EAGAIN: nothing does now.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let how = SendFlags { dont_wait: true, ..SendFlags::default() };
        self.0.socket.send(&[IoSlice::new(bytes)], how)
    }

    /// [`Connection::send`] of what is made for it.
    pub fn send_made(&self, from: &mut dyn Maker) -> Result<usize, Errno> {
        let how = SendFlags { dont_wait: true, ..SendFlags::default() };
        self.0.socket.send_from(&mut Made(from), how)
    }

    /// [`Connection::recv`] by who takes what is there.
    pub fn recv_to(&self, into: &mut dyn Taker) -> Result<usize, Errno> {
        let how = RecvFlags { dont_wait: true, ..RecvFlags::default() };
        self.0.socket.settle()?;
        self.0.socket.recv_to(&mut Taken(into), how)
    }

    /// Receives what is there; 0: the peer has ended its direction. EAGAIN: nothing is there now.
    pub fn recv(&self, into: &mut [u8]) -> Result<usize, Errno> {
        let how = RecvFlags { dont_wait: true, ..RecvFlags::default() };
        self.0.socket.recv(&mut [IoSliceMut::new(into)], how)
    }

    /// Ends this direction, behind what was sent.
    pub fn finish(&self) {
        let _ = self.0.socket.shutdown(Shutdown::Write);
    }

    /// Bytes that were sent and that the peer's host has not said to have.
    pub fn unacknowledged(&self) -> usize {
        self.0.socket.unsent()
    }

    /// Whether the engine that has it lives.
    pub fn has_engine(&self) -> bool {
        self.0
            .socket
            .owner_queue()
            .is_some_and(|owner_queue| !owner_queue.is_dead() && owner_queue.session.alive())
    }

    /// As setsockopt.
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.0.socket.set_native_option(level, name, value)
    }

    /// For [`crate::poll::poll`].
    pub fn fd(&self) -> RawFd {
        self.0.fd
    }
}

/// A listener.
#[derive(Debug)]
pub struct Listener(Own);

impl Listener {
    /// Listens at an address of the engine's. EADDRINUSE: somebody else does.
    pub fn bind(local: SocketAddr, backlog: u32) -> Result<Listener, Errno> {
        let own = Own::new()?;
        own.socket.set_local(local);
        own.socket.listen_native(backlog, own.fd)?;
        Ok(Listener(own))
    }

    /// Takes a connection that has come. EAGAIN: none has.
    pub fn accept(&self) -> Result<Connection, Errno> {
        let how = AcceptHow { dont_wait: true, cloexec: true, nonblocking: true, with_twin: false };
        let accepted = self.0.socket.accept(how).map_err(|error| match error {
            AcceptError::Errno(errno) => errno,
            // Only a listener with a twin of the program's says so.
            AcceptError::OfKernel => Errno::EAGAIN,
        })?;
        let socket = fd_table::get(accepted.fd).ok_or(Errno::ECONNRESET)?;
        Ok(Connection(Own { fd: accepted.fd, socket }))
    }

    /// For [`crate::poll::poll`].
    pub fn fd(&self) -> RawFd {
        self.0.fd
    }
}
