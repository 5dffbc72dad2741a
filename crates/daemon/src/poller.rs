//! What the engine sleeps on: one epoll, with a [`Token`] for each thing in it. Owned by the run loop.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use toe_base::SessionId;

/// Events taken at once; the rest comes with the next look.
const EVENTS_MAX: usize = 256;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A thread of the control server asks for something.
    ControlServer,
    /// SIGTERM or SIGINT.
    Signal,
    /// The pipe of a private engine's owner.
    Owner,
    /// A session's process ended.
    Process(SessionId),
    /// A session's host published entries while the engine slept.
    Doorbell(SessionId),
    /// Anchors may have been closed, says this inotify instance.
    Anchors(u32),
    /// Frames wait at a port, by its place in the table.
    Port(u8),
    /// The kernel tells of a change of its links, addresses, routes or neighbours.
    Kernel,
}

const CONTROL_SERVER: u64 = 1;
const SIGNAL: u64 = 2;
const OWNER: u64 = 3;
const PROCESS: u64 = 4;
const DOORBELL: u64 = 5;
const ANCHORS: u64 = 6;
const PORT: u64 = 7;
const KERNEL: u64 = 8;

impl Token {
    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Token::ControlServer => (CONTROL_SERVER, 0),
            Token::Signal => (SIGNAL, 0),
            Token::Owner => (OWNER, 0),
            Token::Process(id) => (PROCESS, u32::from(id.0)),
            Token::Doorbell(id) => (DOORBELL, u32::from(id.0)),
            Token::Anchors(n) => (ANCHORS, n),
            Token::Port(n) => (PORT, u32::from(n)),
            Token::Kernel => (KERNEL, 0),
        };
        kind << 32 | u64::from(number)
    }

    /// What is to be reported. A doorbell is its host's as well and is never read ([`toe_ring::EngineDoorbell`]).
    fn flags(self, is_quiet: bool) -> EventFlags {
        let edge = if matches!(self, Token::Doorbell(_)) { EventFlags::ET } else { EventFlags::empty() };
        if is_quiet { edge } else { edge | EventFlags::IN }
    }

    fn decode(raw: u64) -> Option<Token> {
        let number = raw as u32;
        Some(match raw >> 32 {
            CONTROL_SERVER => Token::ControlServer,
            SIGNAL => Token::Signal,
            OWNER => Token::Owner,
            PROCESS => Token::Process(SessionId(number as u16)),
            DOORBELL => Token::Doorbell(SessionId(number as u16)),
            ANCHORS => Token::Anchors(number),
            PORT => Token::Port(number as u8),
            KERNEL => Token::Kernel,
            _ => return None,
        })
    }
}

/// The epoll.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new() -> std::io::Result<Poller> {
        Ok(Poller { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Reports `fd` under `token` while it is readable or hung up, or each time that it is rung. Closing the last copy of it is enough to
    /// forget it.
    pub fn add(&self, fd: impl AsFd, token: Token) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.encode()), token.flags(false))?)
    }

    /// Reports `fd` under `token` when its other end is gone, and not before: what is written to it does not matter.
    pub fn add_for_hangup(&self, fd: impl AsFd, token: Token) -> std::io::Result<()> {
        // Hang-up and error are always reported; no flag asks for them.
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.encode()), EventFlags::empty())?)
    }

    /// While it is quiet `fd`, which is reported, is so only when it fails. One that is to be reported again is so at once if it was ever
    /// rung.
    ///
    /// Nothing takes a doorbell out of this epoll but its end: for that the kernel takes a lock which its host's rings hold while they
    /// go through all who wait for it. This takes none of them.
    pub fn set_quiet(&self, fd: impl AsFd, token: Token, is_quiet: bool) {
        // It may not be there; then there is nothing to change.
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(token.encode()), token.flags(is_quiet));
    }

    /// Forgets `fd`, which the engine alone has, while it stays open.
    pub fn remove(&self, fd: impl AsFd) {
        // It may not be there; then there is nothing to forget.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Fills `tokens` with what there is to see, waiting up to `timeout` for something; `None` waits for ever.
    pub fn wait(&self, timeout: Option<Duration>, tokens: &mut Vec<Token>) -> std::io::Result<()> {
        tokens.clear();
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                tokens.extend(events.iter().filter_map(|event| Token::decode(event.data.u64())));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    #[test]
    fn every_token_comes_back() {
        for token in [
            Token::ControlServer,
            Token::Signal,
            Token::Owner,
            Token::Process(SessionId(255)),
            Token::Doorbell(SessionId(1)),
            Token::Anchors(77),
            Token::Port(3),
            Token::Kernel,
        ] {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
    }

    #[test]
    fn a_hangup_is_seen_and_bytes_are_not() {
        let poller = Poller::new().expect("epoll");
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .expect("pair");
        poller.add_for_hangup(&ours, Token::Owner).expect("add");
        let mut tokens = Vec::new();
        rustix::io::write(&theirs, b"stray bytes").expect("write");
        poller.wait(Some(Duration::ZERO), &mut tokens).expect("wait");
        assert_eq!(tokens, []);
        let copy = theirs.try_clone().expect("dup");
        drop(theirs);
        poller.wait(Some(Duration::ZERO), &mut tokens).expect("wait");
        assert_eq!(tokens, [], "a copy is still open");
        drop(copy);
        poller.wait(Some(Duration::ZERO), &mut tokens).expect("wait");
        assert_eq!(tokens, [Token::Owner]);
    }
}
