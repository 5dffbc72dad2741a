//! The thread that lets hosts in: it accepts, decides by the kernel's word who may attach, and hands each connection to
//! its user's thread. It reads nothing and closes nothing in which there may be a descriptor, so it never waits. Once a
//! second it looks at the kernel sockets that are watched.

use super::ask::{Answer, Matter, TwinGone};
use super::listening::Listening;
use super::next_look::NextLook;
use super::socket;
use super::user::{Desk, Errand, Shared, User};
use super::watch::{ListenersOf, TwinWatch, monotonic};
use crate::anchor_root::AnchorRoot;
use crate::connections::CONNECTIONS_MAX;
use crate::policy::{Credentials, Policy};
use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno as OsErrno;
use rustix::net::SocketFlags;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use toe_abi::INTERFACE_VERSION;
use toe_abi::attach::Reply;
use toe_abi::errno::Errno;
use toe_base::account::{ELSEWHERE, account_of};
use toe_base::{Cred, NetNs};
use toe_ring::EventFd;

/// Users with connections at once, and how many more may have a thread on which what they sent is closed.
pub(super) const USERS_MAX: usize = 128;
pub(super) const STRANGERS_MAX: usize = 16;
/// Connections that each user may have whatever others do.
const OWN: usize = 3;
/// Those beyond, of all users. One may have one more of them while he has less than so many times what is free: one alone
/// gets eight ninths, several share them (Choudhury and Hahne, 1998).
const COMMON: usize = CONNECTIONS_MAX - (USERS_MAX + STRANGERS_MAX) * OWN;
const SHARE: usize = 8;
/// Connections accepted before anything else gets its turn.
const ACCEPTS_PER_ROUND: usize = 32;
/// How long accepting rests when there are no descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Sockets that the engine's thread is told of at once.
const GONE_AT_ONCE: usize = 256;
/// Connections with descriptors in them that nobody may be made to close now. With more nobody is let in any more.
const HELD_MAX: usize = 64;

/// What the engine's thread wants of the door.
#[derive(Debug)]
pub(super) enum DoorErrand {
    Listen(OwnedFd),
    Serve(OwnedFd),
    /// Those that are not watched any more are gone.
    LookAtTwins(Vec<u64>),
    /// As [`Errand::Settle`].
    #[cfg(test)]
    Settle(std::sync::mpsc::Sender<()>),
}

/// A user with a thread.
#[derive(Debug)]
struct Regular {
    shared: Arc<Shared>,
    errands: SyncSender<Errand>,
    may_attach: bool,
}

/// Looks at kernel sockets that were shown.
#[derive(Debug, Default)]
struct TwinLooks {
    next: NextLook,
    /// What the kernel is asked through; made when it is first wanted.
    listening: Option<Listening>,
    /// Found gone, and not told yet.
    gone: Vec<TwinGone>,
    /// Where the answer comes about those that were told.
    asked: Option<Receiver<Answer>>,
}

/// All that the thread has.
#[derive(Debug)]
pub(super) struct Door {
    desk: Desk,
    policy: Arc<Policy>,
    errands: Receiver<DoorErrand>,
    listener: Option<OwnedFd>,
    accept_not_before: Option<Instant>,
    /// By account ([`account_of`]): root of a container holds up no root outside.
    users: HashMap<Cred, Regular>,
    /// Turned away, with something in them.
    held: Vec<(Credentials, OwnedFd)>,
    refused: Arc<AtomicU64>,
    twins: TwinLooks,
    /// Directories to be removed in the end, which may take as long as programs like. Who waits for that sees `done` go.
    roots: Vec<Arc<AnchorRoot>>,
    done: SyncSender<()>,
    #[cfg(test)]
    settling: Vec<std::sync::mpsc::Sender<()>>,
}

impl Door {
    pub(super) fn new(
        desk: Desk,
        policy: Arc<Policy>,
        errands: Receiver<DoorErrand>,
        refused: Arc<AtomicU64>,
        (roots, done): (Vec<Arc<AnchorRoot>>, SyncSender<()>),
    ) -> Door {
        Door {
            desk,
            policy,
            errands,
            listener: None,
            accept_not_before: None,
            users: HashMap::new(),
            held: Vec::new(),
            refused,
            twins: TwinLooks::default(),
            roots,
            done,
            #[cfg(test)]
            settling: Vec::new(),
        }
    }

    /// Until the engine is gone.
    pub(super) fn run(mut self) {
        while self.run_errands() {
            self.dismiss_idle();
            self.close_held();
            self.accept();
            self.look_if_due();
            #[cfg(test)]
            self.settling.clear();
            self.wait();
        }
        // Every user's thread sees that there is no control server any more.
        for (_, regular) in self.users.drain() {
            drop(regular.errands);
            let _ = regular.shared.eventfd.signal();
        }
        drop(self.roots);
        drop(self.done);
    }

    fn wait(&self) {
        let now = Instant::now();
        let is_open = self.is_accepting(now);
        let again = self.accept_not_before.filter(|_| self.listener.is_some() && !is_open);
        let retry = (!self.held.is_empty() || !self.twins.gone.is_empty()).then(|| now + ACCEPT_AGAIN_AFTER);
        let next = [self.twins.next.at(), again, retry].into_iter().flatten().min();
        let limit = next.map(|at| at.saturating_duration_since(now));
        // Rounded up, or it would look many times in the last part of a millisecond.
        let limit = limit.and_then(|limit| Timespec::try_from(limit + Duration::from_micros(1)).ok());
        let mut fds = vec![PollFd::new(&*self.desk.control_server, PollFlags::IN)];
        fds.extend(self.listener.as_ref().filter(|_| is_open).map(|fd| PollFd::new(fd, PollFlags::IN)));
        // An interrupted wait is a short one.
        let _ = rustix::event::poll(&mut fds, limit.as_ref());
        drop(fds);
        let _ = self.desk.control_server.drain();
    }

    /// `false`: the engine is gone.
    fn run_errands(&mut self) -> bool {
        loop {
            match self.errands.try_recv() {
                Ok(DoorErrand::Listen(socket)) => {
                    // Into a connection that is not accepted yet nobody sends descriptors, where the kernel can say so.
                    sys::let_descriptors_in(&socket, false);
                    self.listener = Some(socket);
                }
                Ok(DoorErrand::Serve(socket)) => self.admit(socket),
                Ok(DoorErrand::LookAtTwins(twins)) => self.look_for(&twins),
                #[cfg(test)]
                Ok(DoorErrand::Settle(settled)) => {
                    for regular in self.users.values() {
                        regular.errands.try_send(Errand::Settle(settled.clone())).expect("room");
                        let _ = regular.shared.eventfd.signal();
                    }
                    // Now, whatever was before.
                    self.twins.next = NextLook::default();
                    self.settling.push(settled);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn is_accepting(&self, now: Instant) -> bool {
        self.held.len() < HELD_MAX && self.accept_not_before.is_none_or(|at| at <= now)
    }

    fn accept(&mut self) {
        if !self.is_accepting(Instant::now()) {
            return;
        }
        self.accept_not_before = None;
        for _ in 0..ACCEPTS_PER_ROUND {
            let Some(listener) = &self.listener else { return };
            match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket),
                Err(OsErrno::CONNABORTED | OsErrno::INTR) => {}
                Err(OsErrno::AGAIN) => return,
                Err(errno) => {
                    // The listener would report without end what cannot be taken.
                    self.accept_not_before = Some(Instant::now() + ACCEPT_AGAIN_AFTER);
                    return self.count_refusal(&errno.to_string());
                }
            }
        }
    }

    /// Gives a new connection to its user's thread, if it is of somebody who may attach and there is room.
    fn admit(&mut self, socket: OwnedFd) {
        let Ok(who) = Credentials::of(&socket) else {
            let nobody = Credentials { uid: u32::MAX, netns: ELSEWHERE, ..Credentials::default() };
            return self.reject(nobody, socket);
        };
        if !self.policy.may_attach(&who, || sys::peer_groups(&socket)) {
            let refusal = Reply::Refused { errno: Errno::EACCES.0, version: INTERFACE_VERSION };
            // Who asks is told why; nobody has to.
            let _ = socket::send(&socket, &refusal.encode(), &[]);
            self.count_refusal(&Policy::remedy(who.uid));
            return self.reject(who, socket);
        }
        sys::let_descriptors_in(&socket, true);
        if let Err((socket, why)) = self.hand_over(&who, true, socket, Errand::Admit) {
            self.count_refusal(why);
            self.reject(who, socket);
        }
    }

    /// Closes a connection: here, if there is surely nothing in it, else on a thread of its user's.
    fn reject(&mut self, who: Credentials, socket: OwnedFd) {
        if let Err(socket) = socket::close_unread(socket)
            && let Err((socket, _)) = self.hand_over(&who, false, socket, Errand::Close)
        {
            self.held.push((who, socket));
        }
    }

    fn close_held(&mut self) {
        for (who, socket) in std::mem::take(&mut self.held) {
            self.reject(who, socket);
        }
    }

    fn hand_over(
        &mut self,
        who: &Credentials,
        may_attach: bool,
        socket: OwnedFd,
        errand: fn(OwnedFd) -> Errand,
    ) -> Result<(), (OwnedFd, &'static str)> {
        let cred = match self.let_in(who, may_attach) {
            Ok(cred) => cred,
            Err(why) => return Err((socket, why)),
        };
        let Some(regular) = self.users.get(&cred) else { return Err((socket, "no thread for its user")) };
        let has = |regular: &Regular| regular.shared.connections.load(Ordering::Acquire);
        let common = self.users.values().map(|regular| has(regular).saturating_sub(OWN)).sum();
        if !may_have_more(has(regular), common) {
            return Err((socket, "its user has too many"));
        }
        regular.shared.connections.fetch_add(1, Ordering::AcqRel);
        if let Err(error) = regular.errands.try_send(errand(socket)) {
            regular.shared.connections.fetch_sub(1, Ordering::AcqRel);
            let (std::sync::mpsc::TrySendError::Full(errand)
            | std::sync::mpsc::TrySendError::Disconnected(errand)) = error;
            return match errand {
                Errand::Admit(socket) | Errand::Close(socket) => Err((socket, "its user's thread is busy")),
                #[cfg(test)]
                Errand::Settle(_) => unreachable!("no socket"),
            };
        }
        let _ = regular.shared.eventfd.signal();
        Ok(())
    }

    /// Makes sure that a user has a thread where he is; returns whose it is.
    fn let_in(&mut self, who: &Credentials, may_attach: bool) -> Result<Cred, &'static str> {
        let of_kind = self.users.values().filter(|regular| regular.may_attach == may_attach).count();
        let limit = if may_attach { USERS_MAX } else { STRANGERS_MAX };
        let cred = account_of(who.cred(), self.policy.netns, self.users.keys(), of_kind < limit / 2);
        if let Some(regular) = self.users.get_mut(&cred) {
            regular.may_attach |= may_attach;
            return Ok(cred);
        }
        // Who may stop the engine comes in however many there are.
        if of_kind >= limit && !(may_attach && self.policy.may_control(who)) {
            return Err("too many users");
        }
        let started = self.start_user(cred).map_err(|_| "no thread for its user")?;
        self.users.insert(cred, Regular { may_attach, ..started });
        Ok(cred)
    }

    fn start_user(&self, who: Cred) -> std::io::Result<Regular> {
        let (errands, receiver) = sync_channel(CONNECTIONS_MAX + 1);
        let shared = Arc::new(Shared {
            connections: AtomicUsize::new(0),
            watch: TwinWatch::new()?,
            session_dirs: Arc::default(),
            eventfd: Arc::new(EventFd::new()?),
        });
        let user = User::new(self.desk.clone(), who, Arc::clone(&shared), receiver)?;
        crate::cores::spawn("toe-user", move || user.run())?;
        Ok(Regular { shared, errands, may_attach: false })
    }

    /// Ends the threads of users who have nothing here any more: no connection, no kernel socket on which a name may
    /// rest that went to somebody else, and no directory that is still to be removed. Nobody but this thread gives them
    /// anything.
    fn dismiss_idle(&mut self) {
        self.users.retain(|_, regular| {
            // Connections first: session directories are made for those.
            let stays = regular.shared.connections.load(Ordering::Acquire) > 0
                || regular.shared.session_dirs.load(Ordering::Acquire) > 0
                || !regular.shared.watch.is_empty();
            if !stays {
                // The thread sees it once the sender is dropped, or at the next look.
                let (nobody, _) = sync_channel(1);
                regular.errands = nobody;
                let _ = regular.shared.eventfd.signal();
            }
            stays
        });
    }

    /// Looks for these now, and for all that are watched.
    fn look_for(&mut self, twins: &[u64]) {
        self.twins.next.ask(Instant::now());
        let is_known = |twin: &u64| self.users.values().any(|regular| regular.shared.watch.knows(*twin));
        let is_queued = |twin: &u64| self.twins.gone.iter().any(|gone| gone.identity == *twin);
        let looked_at = monotonic();
        let gone = twins.iter().copied().filter(|twin| !is_known(twin) && !is_queued(twin));
        let gone: Vec<_> = gone.map(|identity| TwinGone { identity, looked_at }).collect();
        self.twins.gone.extend(gone);
    }

    fn look_if_due(&mut self) {
        if self.twins.asked.as_ref().is_some_and(|answers| answers.try_recv().is_ok()) {
            self.twins.asked = None;
        }
        let is_watching = |regular: &Regular| !regular.shared.watch.is_empty();
        if !self.users.values().any(is_watching) {
            self.twins.next.none();
        } else if self.twins.next.is_due(Instant::now()) {
            let began = Instant::now();
            let listeners = self.listeners_of(self.policy.netns);
            for regular in self.users.values() {
                match regular.shared.watch.look(listeners.as_ref()) {
                    Ok(gone) => self.twins.gone.extend(gone),
                    Err(error) => tracing::debug!(%error, "the kernel does not say which sockets are open"),
                }
            }
            self.twins.next.looked(began, Instant::now());
        }
        if !self.twins.gone.is_empty() && self.twins.asked.is_none() {
            let gone = self.twins.gone.split_off(self.twins.gone.len().saturating_sub(GONE_AT_ONCE));
            self.twins.asked = self.desk.ask(Matter::TwinsGone(gone));
        }
    }

    /// What listens in the engine's own namespace, if sockets that were shown say that they do. `None`: nothing does, or the
    /// kernel does not tell (its list changed while it came): then it is asked a second later.
    fn listeners_of(&mut self, own: NetNs) -> Option<ListenersOf> {
        if !self.users.values().any(|regular| regular.shared.watch.has_listeners_in(own)) {
            return None;
        }
        if self.twins.listening.is_none() {
            self.twins.listening = Listening::open().ok();
        }
        let asked_at = monotonic();
        let listed = self.twins.listening.as_mut()?.list();
        if let Err(error) = &listed {
            tracing::debug!(%error, "the kernel does not say which sockets listen");
            self.twins.listening = None;
        }
        listed.ok().map(|there| ListenersOf { netns: own, asked_at, there })
    }

    fn count_refusal(&self, why: &str) {
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if refused.is_power_of_two() {
            tracing::warn!(why, refused, "control connection turned away");
        }
    }
}

/// Whether a user who has `of_user` connections may have one more, while all have `common` beyond their own.
fn may_have_more(of_user: usize, common: usize) -> bool {
    of_user < OWN || of_user - OWN < SHARE * COMMON.saturating_sub(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_keeps_a_newcomer_out() {
        let common = |users: &[usize]| users.iter().map(|n| n.saturating_sub(OWN)).sum();
        let mut users = [0; USERS_MAX + STRANGERS_MAX];
        // One after the other takes all that he gets.
        for index in 0..users.len() {
            while may_have_more(users[index], common(&users)) {
                users[index] += 1;
            }
        }
        assert!(users[0] > COMMON * 7 / 8 && users[1] > OWN, "{users:?}");
        assert!(users.iter().all(|n| *n >= OWN), "{users:?}");
        assert!(users.iter().sum::<usize>() <= CONNECTIONS_MAX);
    }
}
