//! Control connections as the engine's thread has them: who is at the other end, and a copy of the descriptor to answer
//! through. What comes in by them is received by the [control server](crate::control_server), which also closes them.

use crate::control_server::ask::Newcomer;
use crate::control_server::pages::{PagesOut, Shared};
use crate::control_server::socket;
use crate::control_server::wake::Wake;
use crate::policy::Credentials;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use toe_abi::attach::Message;
use toe_base::SessionId;

/// Connections at once. How many of them are one user's, the control server says.
pub(crate) const CONNECTIONS_MAX: usize = 2048;

/// One control connection.
#[derive(Debug)]
pub struct Connection {
    socket: Arc<OwnedFd>,
    pub who: Credentials,
    pub program: String,
    /// Until a session has it.
    pub process: Option<OwnedFd>,
    pub session: Option<SessionId>,
    pub pages: PagesOut,
    /// It has ended for the engine, and waits for the control server to close it.
    ended: bool,
}

impl Connection {
    /// Sends an answer without waiting; an error means that the host does not read.
    pub fn send(&self, message: &Message, fds: Vec<OwnedFd>) -> std::io::Result<()> {
        let now = |fds: &Vec<OwnedFd>| {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            socket::send(&*self.socket, message, &fds)
        };
        let socket = || Arc::clone(&self.socket);
        let later = |fds| Wake::Answer { socket: socket(), message: Box::new(*message), fds };
        let Some((sent, fds)) = self.pages.wake(fds, now, later) else { return Ok(()) };
        if !fds.is_empty() {
            // The host may wait for them by now, and have closed what it was sent.
            self.pages.close(Shared::Sent(fds));
            let _ = self.pages.eventfd().signal();
        }
        sent
    }

    /// Whether the host is there still: what it has asked for and given up on is not done later.
    pub fn is_waiting(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    /// The host sees the end.
    fn hang_up(&self) {
        hang_up(&self.socket, &self.pages);
    }
}

/// The host at the other end of this sees the end, and so does the control server.
pub fn hang_up(socket: &Arc<OwnedFd>, user: &PagesOut) {
    user.wake((), |()| socket::hang_up(&**socket), |()| Wake::HangUp(Arc::clone(socket)));
}

/// All control connections, by index.
#[derive(Debug, Default)]
pub struct Connections {
    table: Vec<Option<Connection>>,
}

impl Connections {
    /// Serves a connection; returns its index. There is no room: it ends, which the control server's thread hears, and goes back.
    pub fn add(&mut self, newcomer: Newcomer) -> Result<u32, Arc<OwnedFd>> {
        let Newcomer { socket, who, process, program, pages } = newcomer;
        let socket = Arc::new(socket);
        let index = self.table.iter().position(Option::is_none).unwrap_or(self.table.len());
        if index >= CONNECTIONS_MAX {
            hang_up(&socket, &pages);
            return Err(socket);
        }
        let connection = Connection { socket, who, program, process, pages, session: None, ended: false };
        match self.table.get_mut(index) {
            Some(slot) => *slot = Some(connection),
            None => self.table.push(Some(connection)),
        }
        Ok(index as u32)
    }

    pub fn get(&self, index: u32) -> Option<&Connection> {
        self.table.get(index as usize)?.as_ref().filter(|connection| !connection.ended)
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut Connection> {
        self.table.get_mut(index as usize)?.as_mut().filter(|connection| !connection.ended)
    }

    /// Ends a connection: the host sees it, and so does the control server, which closes it. Its session, if it had one.
    pub fn end(&mut self, index: u32) -> Option<SessionId> {
        let connection = self.get_mut(index)?;
        connection.ended = true;
        connection.hang_up();
        connection.session
    }

    /// The descriptor of a connection that has ended, for the control server to close.
    pub fn take(&mut self, index: u32) -> Option<Arc<OwnedFd>> {
        let slot = self.table.get_mut(index as usize)?;
        slot.take_if(|connection| connection.ended).map(|connection| connection.socket)
    }

    /// The engine is gone, which its hosts see. Nothing is closed: that is for the end of the process, which waits for
    /// nobody.
    pub fn leave(self) {
        for connection in self.table.into_iter().flatten() {
            socket::hang_up(&*connection.socket);
            std::mem::forget(connection.socket);
        }
    }
}
