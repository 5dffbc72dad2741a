//! Whether the kernel sockets that a user's programs have shown are still what they were: one epoll instance a user, in
//! which they are registered and not held.
//!
//! A registration ends when the last copy of the socket is closed, in whatever process it was; until then the kernel lists
//! it in the epoll's fdinfo. A socket that listened and stops without being closed hangs up. Neither needs rights, nor
//! does it matter in which network namespace the socket is. The user's thread adds sockets, the control server's looks at them;
//! neither looking nor adding waits, because nothing but TCP sockets is added.

use super::ask::TwinGone;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno as OsErrno;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use toe_abi::errno::Errno;
use toe_base::{Endpoint, Instant, NetNs};

/// Sockets of one user that are watched.
const TWINS_MAX: usize = 4096;

/// The sockets of one user.
#[derive(Debug)]
pub(super) struct TwinWatch {
    epoll: OwnedFd,
    /// By identity.
    known: Mutex<HashMap<u64, WatchedTwin>>,
}

/// A socket, and when it was last seen to be what it was shown as: a list of an earlier moment says nothing of that.
#[derive(Debug)]
struct WatchedTwin {
    presented: Presented,
    listened_at: Instant,
    /// When it was last shown as anything.
    presented_at: Instant,
}

/// What a socket was when it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Presented {
    pub(super) local: Endpoint,
    pub(super) netns: NetNs,
    pub(super) listens: bool,
}

/// What listens in one network namespace.
#[derive(Debug)]
pub(super) struct ListenersOf {
    pub(super) netns: NetNs,
    /// Before the kernel was asked.
    pub(super) asked_at: Instant,
    /// By identity and address.
    pub(super) there: HashSet<(u64, Endpoint)>,
}

impl TwinWatch {
    pub(super) fn new() -> std::io::Result<TwinWatch> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(TwinWatch { epoll, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u64, WatchedTwin>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a TCP socket from here on; its descriptor may be closed.
    pub(super) fn add(&self, socket: impl AsFd, identity: u64, presented: Presented) -> Result<(), Errno> {
        let mut known = self.known();
        let now = monotonic();
        if let Some(WatchedTwin { presented: before, listened_at: last, presented_at }) =
            known.get_mut(&identity)
        {
            // What rests on it rests on what it was; once that was looked at it may be shown as what it is.
            if (before.local, before.netns) != (presented.local, presented.netns) {
                return Err(Errno::EINVAL);
            }
            // It is open, being shown, so its registration is there.
            *presented_at = now;
            if presented.listens {
                (before.listens, *last) = (true, now);
            }
            return Ok(());
        }
        if known.len() >= TWINS_MAX {
            return Err(Errno::EMFILE);
        }
        // Hang-up is always reported; nothing else is wanted. A registration that is there already was of a socket that
        // stopped listening and is shown again.
        match epoll::add(&self.epoll, socket, EventData::new_u64(identity), EventFlags::empty()) {
            Ok(()) | Err(OsErrno::EXIST) => {}
            Err(_) => return Err(Errno::EMFILE),
        }
        known.insert(identity, WatchedTwin { presented, listened_at: now, presented_at: now });
        Ok(())
    }

    /// Whether it is watched, and was there at the last look.
    pub(super) fn knows(&self, identity: u64) -> bool {
        self.known().contains_key(&identity)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known().is_empty()
    }

    /// Whether there is one that listened in this namespace when it was shown.
    pub(super) fn has_listeners_in(&self, netns: NetNs) -> bool {
        self.known()
            .values()
            .any(|WatchedTwin { presented, .. }| presented.listens && presented.netns == netns)
    }

    /// Those that are gone, or listen no more where they did, since the last look, each with when it was so. Of other namespaces than that of which the
    /// list is known only that they are open and have not hung up, and so it is of one that was shown since the kernel was asked.
    pub(super) fn look(&self, listeners: Option<&ListenersOf>) -> std::io::Result<Vec<TwinGone>> {
        // Nothing is added meanwhile, or it would be missing from what is open.
        let mut known = self.known();
        let now = monotonic();
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.epoll.as_raw_fd()))?;
        let open: HashSet<u64> = info.lines().filter_map(identity_in).collect();
        let mut events = Vec::with_capacity(open.len().max(1));
        let hung = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&rustix::time::Timespec::default()),
        );
        if hung.is_err() {
            events.clear();
        }
        let hung: HashSet<u64> = events.iter().map(|event: &epoll::Event| event.data.u64()).collect();
        let elsewhere_at = |identity: u64, WatchedTwin { presented, listened_at, .. }: &WatchedTwin| {
            let of_here = listeners.filter(|of| of.netns == presented.netns && *listened_at < of.asked_at);
            of_here.filter(|of| !of.there.contains(&(identity, presented.local))).map(|of| of.asked_at)
        };
        let gone_at = |identity: u64, watched: &WatchedTwin| {
            let listens = watched.presented.listens;
            if !open.contains(&identity) || listens && hung.contains(&identity) {
                return Some(now);
            }
            elsewhere_at(identity, watched).filter(|_| listens)
        };
        let gone: Vec<TwinGone> = known
            .iter()
            .filter_map(|(&identity, watched)| {
                Some(TwinGone { identity, looked_at: gone_at(identity, watched)? })
            })
            .collect();
        for twin in &gone {
            match known.get_mut(&twin.identity) {
                // What it was shown as since, without listening, rests on it.
                Some(watched) if watched.presented_at > twin.looked_at => watched.presented.listens = false,
                _ => _ = known.remove(&twin.identity),
            }
        }
        Ok(gone)
    }
}

/// One clock for all users' threads, and whoever looks after them.
pub(super) fn monotonic() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}

/// The identity in a line of an epoll's fdinfo: `tfd: N events: M data: IDENTITY …`, in hexadecimal.
fn identity_in(line: &str) -> Option<u64> {
    let mut words = line.strip_prefix("tfd:")?.split_whitespace();
    words.find(|word| *word == "data:")?;
    u64::from_str_radix(words.next()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{Shutdown, sockopt};
    use std::net::TcpListener;

    const NONE: [u64; 0] = [];

    fn presented(socket: &TcpListener, listens: bool) -> Presented {
        Presented { local: socket.local_addr().expect("bound").into(), netns: NetNs(1), listens }
    }

    fn gone(twins: &TwinWatch, listeners: Option<&ListenersOf>) -> Vec<u64> {
        twins.look(listeners).expect("a look").iter().map(|twin| twin.identity).collect()
    }

    /// By when it was so the engine knows what was shown since.
    #[test]
    fn what_is_gone_was_so_when_it_was_looked_at() {
        let twins = TwinWatch::new().expect("an epoll");
        let ((closed, first), (elsewhere, second)) = (listening(), listening());
        watch(&twins, &closed, first);
        watch(&twins, &elsewhere, second);
        drop(closed);
        let listed = listed(NetNs(1), &[]);
        let before = monotonic();
        let mut gone = twins.look(Some(&listed)).expect("a look");
        gone.sort_by_key(|twin| twin.identity != first);
        assert_eq!(gone[1], TwinGone { identity: second, looked_at: listed.asked_at });
        assert!(gone[0].identity == first && (before..=monotonic()).contains(&gone[0].looked_at), "{gone:?}");
    }

    /// A socket that was shut down and connected to itself does not hang up, and one that is bound to a device is still open.
    #[test]
    fn one_that_listens_elsewhere_is_gone_although_it_is_open() {
        let twins = TwinWatch::new().expect("an epoll");
        let (socket, identity) = listening();
        watch(&twins, &socket, identity);
        let at_its_place = listed(NetNs(1), &[(identity, presented(&socket, true).local)]);
        assert_eq!(gone(&twins, Some(&at_its_place)), NONE);
        let moved = [(identity, Endpoint::new([127, 0, 0, 1], 1))];
        let of_another = listed(NetNs(2), &moved);
        assert_eq!(gone(&twins, Some(&of_another)), NONE, "a list of another namespace");
        let other = Presented { local: Endpoint::new([127, 0, 0, 1], 1), ..presented(&socket, true) };
        assert_eq!(twins.add(&socket, identity, other), Err(Errno::EINVAL), "before it was looked at");
        assert_eq!(gone(&twins, Some(&listed(NetNs(1), &moved))), [identity]);
        assert_eq!(twins.add(&socket, identity, other), Ok(()));
    }

    /// The listener was closed, with a reset for whoever had just connected to it.
    #[test]
    fn one_that_is_new_while_the_kernel_lists_is_not_missing() {
        let twins = TwinWatch::new().expect("an epoll");
        let (socket, identity) = listening();
        let before = listed(NetNs(1), &[]);
        watch(&twins, &socket, identity);
        assert_eq!(gone(&twins, Some(&before)), NONE, "as a new one");
        let again = listed(NetNs(1), &[]);
        watch(&twins, &socket, identity);
        assert_eq!(gone(&twins, Some(&again)), NONE, "as one that it knew");
        let last = listed(NetNs(1), &[]);
        twins.add(&socket, identity, presented(&socket, false)).expect("watched");
        assert_eq!(gone(&twins, Some(&last)), [identity], "nobody has seen it listen since");
        assert!(twins.knows(identity), "what it was shown as since rests on it");
        assert_eq!(gone(&twins, Some(&listed(NetNs(1), &[]))), NONE, "it need not listen");
        drop(socket);
        assert_eq!(gone(&twins, None), [identity]);
    }

    /// A time that the clock had not said before.
    fn next_moment() -> Instant {
        let before = monotonic();
        std::iter::repeat_with(monotonic).find(|now| *now > before).expect("time passes")
    }

    /// The kernel's answer to a question of now: later than what was before, and earlier than what is next.
    fn listed(netns: NetNs, there: &[(u64, Endpoint)]) -> ListenersOf {
        let asked_at = next_moment();
        next_moment();
        ListenersOf { netns, asked_at, there: there.iter().copied().collect() }
    }

    fn listening() -> (TcpListener, u64) {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let identity = sockopt::socket_cookie(&socket).expect("a cookie");
        (socket, identity)
    }

    /// Watches through a copy that is closed at once, as the control server does.
    fn watch(watch: &TwinWatch, socket: &TcpListener, identity: u64) {
        let copy = socket.try_clone().expect("a copy");
        watch.add(&copy, identity, presented(socket, true)).expect("watched");
    }

    #[test]
    fn a_socket_is_gone_with_its_last_copy() {
        let twins = TwinWatch::new().expect("an epoll");
        let ((one, first), (two, second)) = (listening(), listening());
        watch(&twins, &one, first);
        watch(&twins, &one, first);
        watch(&twins, &two, second);
        assert_eq!(gone(&twins, None), NONE);
        let copy = one.try_clone().expect("a copy");
        drop(one);
        assert_eq!(gone(&twins, None), NONE, "a copy is open");
        drop(copy);
        assert_eq!(gone(&twins, None), [first]);
        assert_eq!(gone(&twins, None), NONE, "told once");
        drop(two);
        assert_eq!(gone(&twins, None), [second]);
        assert!(twins.is_empty());
    }

    #[test]
    fn one_that_stops_listening_is_gone_although_it_is_open() {
        let twins = TwinWatch::new().expect("an epoll");
        let (socket, identity) = listening();
        watch(&twins, &socket, identity);
        rustix::net::shutdown(&socket, Shutdown::Both).expect("shut down");
        assert_eq!(gone(&twins, None), [identity]);
        assert_eq!(gone(&twins, None), NONE);
    }

    #[test]
    fn one_that_never_listened_need_not() {
        let twins = TwinWatch::new().expect("an epoll");
        let family = rustix::net::AddressFamily::INET;
        let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).expect("a socket");
        let at: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
        rustix::net::bind(&socket, &at).expect("bound");
        twins
            .add(&socket, 7, Presented { local: Endpoint::from(at), netns: NetNs(1), listens: false })
            .expect("watched");
        assert_eq!(gone(&twins, None), NONE);
        drop(socket);
        assert_eq!(gone(&twins, None), [7]);
    }

    #[test]
    fn nobody_has_more_watched_than_his_share() {
        let twins = TwinWatch::new().expect("an epoll");
        let (socket, _) = listening();
        for identity in 0..TWINS_MAX as u64 {
            let now = monotonic();
            let presented = presented(&socket, true);
            let watched = WatchedTwin { presented, listened_at: now, presented_at: now };
            twins.known().insert(identity, watched);
        }
        assert_eq!(twins.add(&socket, u64::MAX, presented(&socket, true)), Err(Errno::EMFILE));
        assert_eq!(twins.add(&socket, 5, presented(&socket, true)), Ok(()), "it is known");
    }

    #[test]
    fn the_kernel_writes_identities_in_hexadecimal() {
        let line = "tfd:        7 events:       18 data:               1f  pos:0 ino:9e7e sdev:8";
        assert_eq!(identity_in(line), Some(31));
        assert_eq!(identity_in("pos:\t0"), None);
    }
}
