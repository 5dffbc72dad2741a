//! What a call has returned for, everybody can see: how a look knows that the engine has finished what was handed to it.
//!
//! A program's commands are seen by others once the engine has taken them. What goes past the engine (the bytes of a channel), and a look
//! that finds nothing, can be faster. So:
//!
//! - *Who puts bytes into a channel* while something of his process may still be before the engine puts in how far the engine must
//!   be ([`Settling::debt`]); who takes them out waits until it is ([`Settling::wait_for`]).
//! - *Who is about to say "nothing"* waits until the engine is through with what this process handed to it; then he looks again
//!   ([`Settling::settle`]).
//! - *Who waits for several and has both ends of a connection* waits so before the first look: of what he did on two of them he would see
//!   one and not the other ([`Settling::settle_first`]). Who closes one end waits so, too: what lies unread there makes the close a
//!   reset, which the next call on the other end finds.
//!
//! No wait causes anything at the engine: it is awake, or has been rung. While it sleeps and nothing was handed to it nobody waits.
//! A wait has an end ([`Patience`]), and the next one then only comes when the engine has moved: one that is stopped holds nobody.

use crate::lock::Lock;
use crate::silence::{ANSWER_WITHIN, Silence};
use crate::spin;
use crate::sys;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use toe_ring::HostLooks;

/// How long an engine may take for two looks at a stranger's word, which may be false: longer than another thread has its core.
const FOR_A_WORD: Duration = Duration::from_millis(5);
/// So often a wait looks before it gives the processor away.
const LOOKS_AT_ONCE: u32 = 64;
/// An engine that has a processor is there within so long a time. One that has none may need this one: it waits behind others elsewhere,
/// and comes here only when this one is idle, which sched_yield does not make it.
const AT_ONCE: Duration = Duration::from_micros(20);

/// A wait at a peer's word that is in vain is paid for with so much time, in ms: it may cost a part of the time, not all of it.
const TIMED_OUT_COST: u64 = 100;
/// So much may be unpaid: eight of them in a row.
const UNPAID_MAX: u64 = 7 * TIMED_OUT_COST;

/// This process listens, or has.
const LISTENS: u8 = 1;
/// It has connected to where it may listen itself: both ends of a connection may be its own. A proxy has not.
const MAY_MEET_ITSELF: u8 = 2;
/// It has connected to a listener of its own.
const MEETS_ITSELF: u8 = 4;
/// So many names of its listeners a process remembers; a connect to one beyond them is not known to be to itself.
const NAMES_MAX: usize = 64;

/// Nothing of this process is before the engine.
const NONE: u64 = 0;
/// Something was handed over, and how far the engine was then has not been looked at since. With [`RUNG`] in it that, too.
const UNKNOWN: u64 = u64::MAX << COUNT_SHIFT;
/// The engine slept and was rung: that it is in that sleep says nothing.
const RUNG: u64 = 1;
/// Above [`RUNG`] lies the number of that sleep, above that the count.
const COUNT_SHIFT: u32 = 16;
const SLEEP_MASK: u64 = (1 << COUNT_SHIFT) - 1 - RUNG;

/// How far the engine must be, as [`toe_abi::channel::ChannelEntry::After`] says it.
pub(crate) type Debt = u64;

const fn debt_after(looks: u64, rung_in: Option<u32>) -> Debt {
    let rung = match rung_in {
        Some(sleep) => (sleep as u64) << 1 & SLEEP_MASK | RUNG,
        None => 0,
    };
    (looks + 2) << COUNT_SHIFT | rung
}

/// What came of a wait for the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waited {
    /// It has come so far.
    Enough,
    /// It has not, within the time that there was.
    TimedOut,
    /// It has not moved since somebody waited in vain: that cost nothing.
    NoMore,
}

/// How long the engine is waited for.
#[derive(Debug)]
struct Patience {
    limit: Duration,
    /// How far the engine was when a wait was given up.
    given_up: AtomicU64,
}

impl Patience {
    fn new(limit: Duration) -> Patience {
        Patience { limit, given_up: AtomicU64::new(u64::MAX) }
    }
}

#[derive(Debug)]
pub(crate) struct Settling {
    looks: HostLooks,
    debt: AtomicU64,
    /// In which sleep the engine was rung last.
    rung_in: AtomicU32,
    /// For what this process has handed over, that is as long as for any answer: who gives up says what is not so. Many programs beside an
    /// engine that has just slept may keep it off all processors for some 10 ms.
    own: Patience,
    /// For what a peer of another user says that comes first.
    word: Patience,
    /// Whose process this is.
    user: u32,
    /// [`LISTENS`], [`MAY_MEET_ITSELF`], [`MEETS_ITSELF`].
    roles: AtomicU8,
    /// Where it listens, or has; `None`: nobody knows where.
    names: Lock<Vec<Option<SocketAddr>>>,
    /// Users for whose word it has waited in vain, and until when, by [`sys::coarse_ms`], that is unpaid. Not by program: a user
    /// has as many as he likes.
    unpaid: Lock<Vec<(u32, u64)>>,
}

impl Settling {
    pub fn new(looks: HostLooks) -> Settling {
        Settling {
            looks,
            debt: AtomicU64::new(NONE),
            rung_in: AtomicU32::new(0),
            own: Patience::new(ANSWER_WITHIN),
            word: Patience::new(FOR_A_WORD),
            user: rustix::process::geteuid().as_raw(),
            roles: AtomicU8::new(0),
            names: Lock::new(Vec::new()),
            unpaid: Lock::new(Vec::new()),
        }
    }

    /// The engine is to be rung.
    pub fn note_sleep(&self) {
        self.rung_in.store(self.looks.sleep_to_end(), Ordering::Relaxed);
    }

    /// Entries were published; `was_rung`: that has woken the engine.
    pub fn handed_over(&self, was_rung: bool) {
        let owes = UNKNOWN | if was_rung { RUNG } else { 0 };
        // Most have been followed by others before anybody asks; the line is every thread's.
        if self.debt.load(Ordering::Relaxed) & owes != owes {
            self.debt.fetch_or(owes, Ordering::Release);
        }
    }

    /// What the engine must have come to before everybody can see what this process has done; `None`: it has.
    #[inline]
    pub fn debt(&self) -> Option<Debt> {
        if self.debt.load(Ordering::Relaxed) == NONE { None } else { self.debt_now() }
    }

    #[cold]
    fn debt_now(&self) -> Option<Debt> {
        let mut debt = self.debt.load(Ordering::Acquire);
        if debt & UNKNOWN == UNKNOWN {
            let rung_in = (debt & RUNG != 0).then(|| self.rung_in.load(Ordering::Relaxed));
            let known = debt_after(self.looks.count_after_entries(), rung_in);
            // Another thread may have handed over more meanwhile: then it is still unknown, and this is too little for that one only.
            let _ = self.debt.compare_exchange(debt, known, Ordering::AcqRel, Ordering::Relaxed);
            debt = known;
        }
        if !self.is_reached(debt) {
            return Some(debt);
        }
        let _ = self.debt.compare_exchange(debt, NONE, Ordering::AcqRel, Ordering::Relaxed);
        None
    }

    fn is_reached(&self, debt: Debt) -> bool {
        let ends = |sleep: u32| debt & RUNG != 0 && (u64::from(sleep) << 1 & SLEEP_MASK) == debt & SLEEP_MASK;
        self.looks.count() >= debt >> COUNT_SHIFT || self.looks.asleep().is_some_and(|sleep| !ends(sleep))
    }

    /// Waits for what a program of `user` says that its bytes come after. A number that no engine can have asked for is not waited
    /// for, nor a user whose programs have cost too much: waits in vain are paid for in time.
    pub fn wait_for(&self, debt: Debt, user: u32) {
        let is_possible = debt >> COUNT_SHIFT <= self.looks.count() + 2;
        if is_possible
            && !self.is_reached(debt)
            && self.unpaid_ms(user) <= UNPAID_MAX
            && self.wait(self.patience_at_word(user), || self.is_reached(debt)) == Waited::TimedOut
        {
            self.charge(user);
        }
    }

    /// Root, and whoever else is this process's user, could hold it up in any case.
    fn patience_at_word(&self, user: u32) -> &Patience {
        if user == 0 || user == self.user { &self.own } else { &self.word }
    }

    fn unpaid_ms(&self, user: u32) -> u64 {
        let now = sys::coarse_ms();
        let unpaid = self.unpaid.lock();
        unpaid.iter().find(|(who, _)| *who == user).map_or(0, |(_, paid_at)| paid_at.saturating_sub(now))
    }

    fn charge(&self, user: u32) {
        let now = sys::coarse_ms();
        let mut unpaid = self.unpaid.lock();
        // Each entry has cost a wait: there are no more than waits in the time that one is kept.
        unpaid.retain(|(_, paid_at)| *paid_at > now);
        match unpaid.iter_mut().find(|(who, _)| *who == user) {
            Some((_, paid_at)) => *paid_at += TIMED_OUT_COST,
            None => unpaid.push((user, now + TIMED_OUT_COST)),
        }
    }

    /// This process listens, at a name that is known or not.
    pub fn note_listens(&self, local: Option<SocketAddr>) {
        self.roles.fetch_or(LISTENS, Ordering::Relaxed);
        let mut names = self.names.lock();
        let local = local.filter(|_| names.len() < NAMES_MAX);
        if !names.contains(&local) {
            names.push(local);
        }
    }

    /// It connects. To a listener at any address it does so by loopback for sure: a proxy often goes on to the same port of another host.
    pub fn note_connects(&self, remote: SocketAddr) {
        if self.roles.load(Ordering::Relaxed) & (LISTENS | MEETS_ITSELF) != LISTENS {
            return;
        }
        let ip = remote.ip().to_canonical();
        let meets = |local: &Option<SocketAddr>| match local {
            None => MAY_MEET_ITSELF,
            Some(local) if local.port() != remote.port() => 0,
            Some(local) if local.ip().to_canonical() == ip => MAY_MEET_ITSELF | MEETS_ITSELF,
            Some(local) if !local.ip().is_unspecified() => 0,
            Some(_) if ip.is_loopback() => MAY_MEET_ITSELF | MEETS_ITSELF,
            Some(_) => MAY_MEET_ITSELF,
        };
        let roles = self.names.lock().iter().fold(0, |roles, local| roles | meets(local));
        if roles != 0 {
            self.roles.fetch_or(roles, Ordering::Relaxed);
        }
    }

    /// Before "nothing" is said: waits until the engine has finished what this process handed to it, if that may be what is looked for:
    /// who has connected to others only has no connection to itself. Whether it was worth another look.
    pub fn settle(&self) -> bool {
        self.roles.load(Ordering::Relaxed) & MAY_MEET_ITSELF != 0 && self.finish()
    }

    /// Before the first look at several, and at a close: the same, if this process has both ends of some connection.
    pub fn settle_first(&self) {
        if self.roles.load(Ordering::Relaxed) & MEETS_ITSELF != 0 {
            self.finish();
        }
    }

    /// Waits until the engine has finished what this process handed to it. `false`: nothing was outstanding at the last look either; what
    /// is finished by now may not have been then.
    pub fn finish(&self) -> bool {
        if self.debt.load(Ordering::Relaxed) == NONE {
            return false;
        }
        if let Some(debt) = self.debt_now() {
            self.wait(&self.own, || self.is_reached(debt));
        }
        true
    }

    /// How far it is when all is seen that was handed to it by anybody, unless it sleeps.
    pub fn now(&self) -> Debt {
        debt_after(self.looks.count(), None)
    }

    #[cold]
    fn wait(&self, patience: &Patience, is_over: impl Fn() -> bool) -> Waited {
        for _ in 0..LOOKS_AT_ONCE {
            if is_over() {
                return Waited::Enough;
            }
            std::hint::spin_loop();
        }
        if patience.given_up.load(Ordering::Relaxed) == self.looks.count() {
            return Waited::NoMore;
        }
        let began = sys::now();
        let silence = Silence::within(patience.limit);
        while !is_over() {
            if silence.look().is_zero() {
                patience.given_up.store(self.looks.count(), Ordering::Relaxed);
                return Waited::TimedOut;
            }
            if sys::now().saturating_sub(began) < AT_ONCE {
                spin::let_others_run()
            } else {
                spin::leave_the_processor()
            }
        }
        Waited::Enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_ring::EngineLooks;

    /// Nobody who runs this.
    const USER: u32 = u32::MAX - 1;

    #[derive(Debug, PartialEq, Eq)]
    enum Meets {
        No,
        Perhaps,
        Yes,
    }

    fn alone() -> (EngineLooks, Settling) {
        let engine = EngineLooks::new().expect("memory");
        let settling = Settling::new(HostLooks::map(&engine).expect("the same memory"));
        engine.wake();
        (engine, settling)
    }

    /// With a process that may meet itself.
    fn pair() -> (EngineLooks, Settling) {
        let (engine, settling) = alone();
        settling.note_listens(None);
        settling.note_connects(name(1));
        (engine, settling)
    }

    impl Settling {
        fn unpaid_until(&self, user: u32) -> u64 {
            self.unpaid.lock().iter().find(|(who, _)| *who == user).map_or(0, |(_, paid_at)| *paid_at)
        }
    }

    fn name(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn who_connects_to_a_name_of_his_own_meets_himself() {
        let meets = |local: Option<SocketAddr>, remote: SocketAddr| {
            let (_engine, settling) = alone();
            settling.note_listens(local);
            settling.note_connects(remote);
            match settling.roles.load(Ordering::Relaxed) {
                roles if roles & MEETS_ITSELF != 0 => Meets::Yes,
                roles if roles & MAY_MEET_ITSELF != 0 => Meets::Perhaps,
                _ => Meets::No,
            }
        };
        let any = SocketAddr::from(([0, 0, 0, 0], 80));
        assert_eq!((meets(Some(name(80)), name(80)), meets(Some(any), name(80))), (Meets::Yes, Meets::Yes));
        let elsewhere = SocketAddr::from(([10, 0, 0, 5], 80));
        assert_eq!(meets(Some(any), elsewhere), Meets::Perhaps, "another host's, or its own");
        let mapped = "[::ffff:127.0.0.1]:80".parse().expect("an address");
        assert_eq!((meets(Some(any), mapped), meets(Some(name(80)), mapped)), (Meets::Yes, Meets::Yes));
        assert_eq!((meets(Some(name(80)), name(81)), meets(Some(any), name(81))), (Meets::No, Meets::No));
        assert_eq!(meets(None, name(80)), Meets::Perhaps);
        assert_eq!(meets(Some(SocketAddr::from(([127, 0, 0, 2], 80))), name(80)), Meets::No, "another's");
    }

    #[test]
    fn a_connect_where_too_many_listen_may_be_to_oneself() {
        let (_engine, settling) = alone();
        (0..=NAMES_MAX as u16).for_each(|n| settling.note_listens(Some(name(100 + n))));
        settling.note_connects(name(1));
        assert_eq!(settling.roles.load(Ordering::Relaxed), LISTENS | MAY_MEET_ITSELF);
        assert_eq!(settling.names.lock().len(), NAMES_MAX + 1, "one that stands for all others");
    }

    #[test]
    fn a_proxy_does_not_wait_to_say_nothing() {
        let (_engine, settling) = alone();
        settling.note_listens(Some(name(80)));
        settling.note_connects(name(9000));
        settling.handed_over(false);
        assert!(!settling.settle(), "at once");
    }

    #[test]
    fn what_was_handed_over_is_seen_after_two_looks() {
        let (mut engine, settling) = pair();
        assert_eq!(settling.debt(), None);
        settling.handed_over(false);
        let debt = settling.debt().expect("the engine has not looked since");
        engine.done();
        assert_eq!(settling.debt(), Some(debt), "that look may have begun before");
        engine.done();
        settling.wait_for(debt, USER);
        assert_eq!((settling.debt(), settling.unpaid_ms(USER)), (None, 0));
    }

    #[test]
    fn an_engine_asleep_is_through_with_all_but_what_it_was_rung_for() {
        let (mut engine, settling) = pair();
        settling.handed_over(false);
        assert!(settling.debt().is_some());
        engine.begin_sleep();
        engine.sleep();
        assert_eq!(settling.debt(), None);
        assert!(!settling.settle(), "nothing to wait for");
        settling.note_sleep();
        settling.handed_over(true);
        settling.handed_over(false);
        let debt = settling.debt();
        assert!(debt.is_some());
        engine.wake();
        engine.done();
        assert_eq!(settling.debt(), debt);
        engine.begin_sleep();
        assert_eq!(settling.debt(), debt, "it has not looked since it said that it will sleep");
        engine.sleep();
        assert_eq!(settling.debt(), None);
    }

    #[test]
    fn who_says_nothing_waits_for_an_engine_awake() {
        let (mut engine, settling) = pair();
        assert!(!settling.settle(), "nothing was handed over");
        settling.handed_over(false);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| settling.settle());
            while !looks.is_finished() {
                engine.done();
                std::thread::yield_now();
            }
            assert!(looks.join().expect("no panic"));
        });
    }

    #[test]
    fn what_is_finished_behind_a_look_is_looked_for_again() {
        let (mut engine, settling) = pair();
        settling.handed_over(false);
        engine.begin_sleep();
        engine.sleep();
        assert!(settling.settle(), "it may have been the engine's at the look");
        assert!(!settling.settle(), "not at this one");
    }

    #[test]
    fn an_engine_that_stands_still_holds_nobody_twice() {
        let (_engine, settling) = pair();
        settling.note_sleep();
        settling.handed_over(true);
        let debt = settling.debt().expect("it does not look");
        settling.wait_for(debt, USER);
        let one = settling.unpaid_until(USER);
        assert!(one > 0);
        let given_up = settling.word.given_up.load(Ordering::Relaxed);
        assert_eq!(given_up, 0, "so far it was");
        (0..20).for_each(|_| settling.wait_for(debt, USER));
        settling.wait_for(u64::MAX, USER);
        assert_eq!(settling.unpaid_until(USER), one, "at once, and nobody can owe that");
    }

    #[test]
    fn a_user_whose_word_is_in_vain_is_not_heard_for_a_while() {
        let (mut engine, settling) = pair();
        let mut wait = |user: u32| {
            // It moves, and not so far.
            engine.done();
            let before = settling.unpaid_until(user);
            settling.wait_for(settling.now(), user);
            settling.unpaid_until(user) > before
        };
        let in_vain = (0..100).filter(|_| wait(USER)).count();
        assert!((1..100).contains(&in_vain), "{in_vain} waits");
        assert!(wait(USER + 1), "another one is");
        settling.unpaid.lock().iter_mut().for_each(|(_, paid_at)| *paid_at = 0);
        assert!(wait(USER), "it is paid for");
    }

    /// 5 ms were too few on a busy machine: what was done first on a new connection was met behind what came by a channel.
    #[test]
    fn the_word_of_who_is_no_stranger_is_waited_for_as_long_as_an_answer() {
        let (_engine, settling) = alone();
        let limit = |user| settling.patience_at_word(user).limit;
        assert_eq!([limit(0), limit(settling.user)], [ANSWER_WITHIN; 2]);
        assert_eq!(limit(USER), FOR_A_WORD);
    }
}
