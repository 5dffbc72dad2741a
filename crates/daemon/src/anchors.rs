//! Anchors: the descriptor pairs whose program end *is* a socket of the engine, as far as the program's kernel knows.
//!
//! The engine end stays here and in the poller; when every copy of the program end is closed, wherever copies went,
//! the engine end hangs up. A program end that is shown again (after fork, exec or SCM_RIGHTS) is recognised by the
//! identity that the kernel gave it. Called by `attach` and the run loop.

use crate::poller::{Poller, Token};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use toe_base::limits::{SESSION_FLOWS_MAX, SESSION_LISTENERS_MAX};
use toe_base::{AnchorHandle, SessionId};

/// Anchors that one session may have made and not yet closed. It needs one a flow and one a listener, and some in
/// hand.
const SESSION_ANCHORS_MAX: u32 = (SESSION_FLOWS_MAX + SESSION_LISTENERS_MAX) as u32 + 64;

/// What the kernel calls a descriptor's object: device and inode number. Both, because a file of another file system
/// can be made with any inode number.
type Identity = (u64, u64);

#[derive(Debug)]
struct Anchor {
    /// Kept open; in the poller.
    engine_end: OwnedFd,
    program_end: Identity,
    /// Who asked for it, as long as that session lives.
    session: SessionId,
}

/// All anchors of the engine.
#[derive(Debug, Default)]
pub struct Anchors {
    by_handle: HashMap<AnchorHandle, Anchor>,
    by_identity: HashMap<Identity, AnchorHandle>,
    per_session: HashMap<SessionId, u32>,
}

/// A new pair that has no handle yet.
#[derive(Debug)]
pub struct Pair {
    engine_end: OwnedFd,
    program_end: OwnedFd,
    identity: Identity,
}

impl Pair {
    pub fn new() -> std::io::Result<Pair> {
        let (engine_end, program_end) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Nobody reads here. Octets that a call which the switch does not see writes into the program end must not
        // vanish: with this, it gets EPIPE.
        rustix::net::shutdown(&engine_end, Shutdown::Read)?;
        let identity = identity_of(&program_end)?;
        Ok(Pair { engine_end, program_end, identity })
    }
}

fn identity_of(fd: impl AsFd) -> std::io::Result<Identity> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Anchors {
    /// Whether `session` may make another one.
    pub fn may_add(&self, session: SessionId) -> bool {
        self.per_session.get(&session).is_none_or(|&count| count < SESSION_ANCHORS_MAX)
    }

    /// Keeps the engine end of `pair` under `handle`; returns the program end.
    pub fn add(
        &mut self,
        session: SessionId,
        handle: AnchorHandle,
        pair: Pair,
        poller: &Poller,
    ) -> std::io::Result<OwnedFd> {
        poller.add_for_hangup(&pair.engine_end, Token::Anchor(handle))?;
        let anchor = Anchor { engine_end: pair.engine_end, program_end: pair.identity, session };
        self.by_handle.insert(handle, anchor);
        self.by_identity.insert(pair.identity, handle);
        *self.per_session.entry(session).or_default() += 1;
        Ok(pair.program_end)
    }

    /// The anchor whose program end `fd` is, if it is one.
    pub fn recognise(&self, fd: impl AsFd) -> Option<AnchorHandle> {
        self.by_identity.get(&identity_of(fd).ok()?).copied()
    }

    /// Whether some process has a copy of the program end open.
    pub fn is_held(&self, handle: AnchorHandle) -> bool {
        let Some(anchor) = self.by_handle.get(&handle) else { return false };
        let mut end = [PollFd::new(&anchor.engine_end, PollFlags::empty())];
        let looked = rustix::event::poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        looked.is_ok() && !end[0].revents().contains(PollFlags::HUP)
    }

    /// Closes the engine end. The program end, if somebody still has it, hangs up. `false` when it was gone already.
    pub fn remove(&mut self, handle: AnchorHandle) -> bool {
        let Some(anchor) = self.by_handle.remove(&handle) else { return false };
        self.by_identity.remove(&anchor.program_end);
        if let Some(count) = self.per_session.get_mut(&anchor.session) {
            *count = count.saturating_sub(1);
        }
        true
    }

    /// The session is gone and its number will be given again. Its anchors live on with whoever holds them.
    pub fn forget_session(&mut self, session: SessionId) {
        self.per_session.remove(&session);
        // Session 0 is the engine itself, for which nothing is counted.
        for anchor in self.by_handle.values_mut().filter(|a| a.session == session) {
            anchor.session = SessionId(0);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_handle.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SESSION: SessionId = SessionId(3);

    fn add(anchors: &mut Anchors, poller: &Poller, handle: u32) -> OwnedFd {
        anchors.add(SESSION, AnchorHandle(handle), Pair::new().expect("pair"), poller).expect("added")
    }

    #[test]
    fn any_copy_of_a_program_end_is_recognised_and_nothing_else_is() {
        let (mut anchors, poller) = (Anchors::default(), Poller::new().expect("epoll"));
        let a = add(&mut anchors, &poller, 1);
        let b = add(&mut anchors, &poller, 2);
        assert_eq!(anchors.recognise(&a), Some(AnchorHandle(1)));
        assert_eq!(anchors.recognise(b.try_clone().expect("dup")), Some(AnchorHandle(2)));
        assert_eq!(anchors.recognise(std::io::stdin()), None);
        assert_eq!(anchors.recognise(Pair::new().expect("pair").program_end), None);
        assert!(anchors.remove(AnchorHandle(1)) && !anchors.remove(AnchorHandle(1)));
        assert_eq!(anchors.recognise(&a), None, "a removed anchor is forgotten");
    }

    #[test]
    fn the_last_close_is_reported() {
        let (mut anchors, poller) = (Anchors::default(), Poller::new().expect("epoll"));
        let end = add(&mut anchors, &poller, 7);
        drop(end);
        let mut tokens = Vec::new();
        poller.wait(Some(Duration::ZERO), &mut tokens).expect("wait");
        assert_eq!(tokens, [Token::Anchor(AnchorHandle(7))]);
    }

    #[test]
    fn a_session_is_charged_until_it_goes() {
        let (mut anchors, poller) = (Anchors::default(), Poller::new().expect("epoll"));
        let _end = add(&mut anchors, &poller, 1);
        assert_eq!(anchors.per_session[&SESSION], 1);
        anchors.forget_session(SESSION);
        assert!(anchors.remove(AnchorHandle(1)));
        assert!(
            anchors.per_session.get(&SESSION).is_none_or(|&n| n == 0),
            "the next session starts from zero"
        );
    }

    #[test]
    fn a_write_past_the_switch_fails_and_the_last_close_still_hangs_up() {
        let poller = Poller::new().expect("epoll");
        let mut anchors = Anchors::default();
        let handle = AnchorHandle(3);
        let pair = Pair::new().expect("socket pair");
        let program_end = anchors.add(SessionId(1), handle, pair, &poller).expect("added");
        let sent = rustix::net::send(&program_end, b"lost?", rustix::net::SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(rustix::io::Errno::PIPE));
        assert!(anchors.is_held(handle));
        let mut tokens = Vec::new();
        poller.wait(Some(Duration::ZERO), &mut tokens).expect("polled");
        assert!(tokens.is_empty(), "held by the program: {tokens:?}");
        drop(program_end);
        assert!(!anchors.is_held(handle));
        poller.wait(None, &mut tokens).expect("polled");
        assert_eq!(tokens, [Token::Anchor(handle)]);
    }
}
