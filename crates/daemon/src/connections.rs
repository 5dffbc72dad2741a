//! Control connections as the engine's thread has them: who is at the other end, and a copy of the descriptor to answer
//! through. What comes in by them is received by the [porter](crate::porter), which also closes them.

use crate::policy::Credentials;
use crate::porter::ask::Newcomer;
use crate::porter::pages::PagesOut;
use crate::porter::socket;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use toe_abi::attach::Message;
use toe_base::SessionId;

/// Connections at once. How many of them are one user's, the porter says.
pub(crate) const CONNECTIONS_MAX: usize = 2048;

/// One control connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    pub who: Credentials,
    pub program: String,
    /// Until a session has it.
    pub process: Option<OwnedFd>,
    pub session: Option<SessionId>,
    pub pages: PagesOut,
    /// It has ended for the engine, and waits for the porter to close it.
    ended: bool,
}

impl Connection {
    /// Sends an answer without waiting; an error means that the host does not read.
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        socket::send(&self.socket, message, fds)
    }

    /// Whether the host is there still: what it has asked for and given up on is not done later.
    pub fn is_waiting(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    /// The host sees the end. What it has sent stays where it is.
    fn hang_up(&self) {
        // An error means that the host has done so.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// All control connections, by place.
#[derive(Debug, Default)]
pub struct Connections {
    table: Vec<Option<Connection>>,
}

impl Connections {
    /// Serves a connection; returns its place. There is no room: it goes back.
    pub fn add(&mut self, newcomer: Newcomer) -> Result<u32, OwnedFd> {
        let place = self.table.iter().position(Option::is_none).unwrap_or(self.table.len());
        if place >= CONNECTIONS_MAX {
            return Err(newcomer.socket);
        }
        let Newcomer { socket, who, process, program, pages } = newcomer;
        let connection = Connection { socket, who, program, process, pages, session: None, ended: false };
        match self.table.get_mut(place) {
            Some(slot) => *slot = Some(connection),
            None => self.table.push(Some(connection)),
        }
        Ok(place as u32)
    }

    pub fn get(&self, place: u32) -> Option<&Connection> {
        self.table.get(place as usize)?.as_ref().filter(|connection| !connection.ended)
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut Connection> {
        self.table.get_mut(place as usize)?.as_mut().filter(|connection| !connection.ended)
    }

    /// Ends a connection: the host sees it, and so does the porter, which closes it. Its session, if it had one.
    pub fn end(&mut self, place: u32) -> Option<SessionId> {
        let connection = self.get_mut(place)?;
        connection.ended = true;
        connection.hang_up();
        connection.session
    }

    /// The descriptor of a connection that has ended, for the porter to close.
    pub fn take(&mut self, place: u32) -> Option<OwnedFd> {
        let slot = self.table.get_mut(place as usize)?;
        slot.take_if(|connection| connection.ended).map(|connection| connection.socket)
    }

    /// The engine is gone, which its hosts see. Nothing is closed: that is for the end of the process, which waits for
    /// nobody.
    pub fn leave(self) {
        for connection in self.table.into_iter().flatten() {
            connection.hang_up();
            std::mem::forget(connection.socket);
        }
    }
}
