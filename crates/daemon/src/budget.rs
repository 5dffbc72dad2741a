//! Whose turn it is on the engine's thread, by start-time fair queueing (Goyal, Vin and Cheng, 1996): who has used less of its
//! time goes first.
//!
//! What the engine does because of an account's processes (their entries, their requests, doorbells rung for nothing) is
//! measured, and moves the account's *tag* on by as much. Each round serves accounts with work in the order of their tags, each
//! for [`QUANTUM_NS`], until [`ROUND_NS`] are over; who is not reached waits for the next round, and frames, timers and
//! completions come between. So a round is short however many want all they can get, and who asks for little waits for
//! nobody: his tag is behind theirs. It is not behind by more than [`LEAD_NS`], so that nobody saves up a long turn, and not
//! ahead by more than [`DEBT_MAX_NS`], so that one request that took long does not shut its user out for seconds.
//!
//! An account is a user in a network namespace ([`toe_base::account`]). One alone is never made to wait, and then nothing is
//! measured either. Plain values: the run loop reads the clock.

use std::collections::HashMap;
use toe_base::{Cred, Instant, SessionId};

/// A quantum: a few requests, or some hundreds of entries. It ends with the step in which that is over.
pub const QUANTUM_NS: u64 = 20_000;
/// The quanta of one round.
pub const ROUND_NS: u64 = QUANTUM_NS;
/// Who did not want anything for a while comes before the others for as long.
const LEAD_NS: u64 = 2 * QUANTUM_NS;
const DEBT_MAX_NS: u64 = 5_000_000;
/// Sessions of an account that a round looks at in vain.
pub const LOOKS_A_ROUND: usize = 64;

/// Doorbells of an account's that are rung for nothing within so long a time, after which they are not heard for a while.
const SPURIOUS_RINGS_MAX: u32 = 64;
const SPURIOUS_RINGS_US: u64 = 10_000;

/// What one account has of the engine's time.
#[derive(Debug)]
struct Account {
    cred: Cred,
    /// How many sessions it has, and those of them that do not sleep.
    sessions: usize,
    awake: Vec<SessionId>,
    /// Of those the one that goes first.
    first: usize,
    /// The virtual time at which its next quantum begins.
    tag_ns: u64,
    /// What it has used in all, as far as it was measured.
    used_ns: u64,
    /// Rings for nothing, and since when they are counted.
    spurious_rings: (u32, Instant),
}

/// An account's index, which another one may have in another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountIndex(usize);

/// See the module.
#[derive(Debug, Default)]
pub struct Budget {
    accounts: Vec<Account>,
    indices: HashMap<Cred, usize>,
    /// Virtual time: the tag of whoever is served.
    now_ns: u64,
}

/// Who there is.
impl Budget {
    /// A new session, which is awake.
    pub fn add(&mut self, cred: Cred, session: SessionId) {
        let index = self.index_of(cred);
        self.accounts[index].sessions += 1;
        self.accounts[index].awake.push(session);
    }

    pub fn remove(&mut self, cred: Cred, session: SessionId) {
        if let Some(&index) = self.indices.get(&cred) {
            let account = &mut self.accounts[index];
            account.sessions -= 1;
            account.awake.retain(|other| *other != session);
        }
    }

    /// A session sleeps no more.
    pub fn wake(&mut self, cred: Cred, session: SessionId) {
        if let Some(&index) = self.indices.get(&cred) {
            self.accounts[index].awake.push(session);
        }
    }

    /// Sessions that are awake.
    pub fn awake(&self) -> impl Iterator<Item = SessionId> {
        self.accounts.iter().flat_map(|account| account.awake.iter().copied())
    }

    /// Those of them stay so for which `stays` says yes.
    pub fn retain_awake(&mut self, mut stays: impl FnMut(SessionId) -> bool) {
        self.accounts.iter_mut().for_each(|account| account.awake.retain(|id| stays(*id)));
    }

    fn index_of(&mut self, cred: Cred) -> usize {
        let (accounts, tag_ns) = (&mut self.accounts, self.now_ns);
        *self.indices.entry(cred).or_insert_with(|| {
            accounts.push(Account {
                cred,
                sessions: 0,
                awake: Vec::new(),
                first: 0,
                tag_ns,
                used_ns: 0,
                spurious_rings: (0, Instant::ZERO),
            });
            accounts.len() - 1
        })
    }

    /// Forgets accounts without sessions that owe nothing.
    fn forget_idle(&mut self) {
        for index in (0..self.accounts.len()).rev() {
            let account = &self.accounts[index];
            if account.sessions == 0 && account.tag_ns <= self.now_ns {
                self.indices.remove(&account.cred);
                self.accounts.swap_remove(index);
                if let Some(moved) = self.accounts.get(index) {
                    self.indices.insert(moved.cred, index);
                }
            }
        }
    }

    /// Whether there is anybody to share with. If not, nothing need be measured.
    pub fn is_shared(&self) -> bool {
        self.accounts.len() > 1
    }

    /// Whether there is anybody beside this account.
    pub fn is_shared_with_others(&self, cred: Cred) -> bool {
        self.accounts.len() > usize::from(self.indices.contains_key(&cred))
    }

    /// The account's doorbell woke the engine, and there was nothing. Whether that happens so often that it is better not to
    /// listen for a while.
    pub fn rings_too_often(&mut self, cred: Cred, now: Instant) -> bool {
        let index = self.index_of(cred);
        let (rings, since) = &mut self.accounts[index].spurious_rings;
        if now.since_us(*since) > SPURIOUS_RINGS_US {
            (*rings, *since) = (0, now);
        }
        *rings += 1;
        *rings > SPURIOUS_RINGS_MAX
    }
}

/// Whose turn it is.
impl Budget {
    /// A round begins: puts the accounts of which a session has work into `quanta`, in the order in which they are served.
    pub fn begin_round(
        &mut self,
        quanta: &mut Vec<AccountIndex>,
        mut has_work: impl FnMut(SessionId) -> bool,
    ) {
        self.forget_idle();
        quanta.clear();
        let accounts = self.accounts.iter_mut().enumerate();
        quanta.extend(accounts.filter_map(|(at, a)| a.find_work(&mut has_work).then_some(AccountIndex(at))));
        quanta.sort_unstable_by_key(|index| self.accounts[index.0].tag_ns);
        match quanta.first() {
            Some(first) => self.now_ns = self.now_ns.max(self.accounts[first.0].tag_ns),
            // Nobody wants anything: there is nobody to whom anything is owed.
            None => self.now_ns = self.now_ns.saturating_add(ROUND_NS),
        }
    }

    /// Whether something may be done for the account now that is not of its turn: it is not ahead of the others, or there are
    /// no others who want something.
    pub fn may_go(&self, cred: Cred) -> bool {
        self.indices.get(&cred).is_none_or(|index| self.accounts[*index].tag_ns <= self.now_ns + QUANTUM_NS)
    }

    /// Something was done for the account that took so long.
    pub fn charge(&mut self, cred: Cred, ns: u64) {
        let index = self.index_of(cred);
        let account = &mut self.accounts[index];
        account.used_ns = account.used_ns.saturating_add(ns);
        let began = account.tag_ns.max(self.now_ns.saturating_sub(LEAD_NS));
        account.tag_ns = began.saturating_add(ns).min(self.now_ns.saturating_add(DEBT_MAX_NS));
    }

    /// What was measured of an account's use.
    pub fn used_ns(&self, cred: Cred) -> u64 {
        self.indices.get(&cred).map_or(0, |index| self.accounts[*index].used_ns)
    }

    pub fn cred(&self, AccountIndex(index): AccountIndex) -> Cred {
        self.accounts[index].cred
    }

    /// The only account, if there is one; where there are several, [`Budget::begin_round`] says who they are.
    pub fn alone(&self) -> Option<AccountIndex> {
        (self.accounts.len() == 1).then_some(AccountIndex(0))
    }

    /// Of an account's sessions that are awake the one at this index, counted from the one that goes first.
    pub fn session_at(&self, AccountIndex(index): AccountIndex, at: usize) -> Option<SessionId> {
        let account = &self.accounts[index];
        let n = account.awake.len();
        (at < n).then(|| account.awake[(account.first + at) % n])
    }

    /// The next time this account's quantum begins behind so many sessions of its.
    pub fn pass(&mut self, AccountIndex(index): AccountIndex, served: usize) {
        let account = &mut self.accounts[index];
        account.first = (account.first + served) % account.awake.len().max(1);
    }
}

impl Account {
    /// Lets the next session with work be the first. Of many, only some are looked at, and the next ones next time.
    fn find_work(&mut self, has_work: &mut impl FnMut(SessionId) -> bool) -> bool {
        let n = self.awake.len();
        for step in 0..n.min(LOOKS_A_ROUND) {
            let at = (self.first + step) % n;
            if has_work(self.awake[at]) {
                self.first = at;
                return true;
            }
        }
        self.first = (self.first + n.min(LOOKS_A_ROUND)) % n.max(1);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: [SessionId; 4] = [SessionId(1), SessionId(2), SessionId(3), SessionId(4)];

    fn who(uid: u32) -> Cred {
        Cred::of_user(uid)
    }

    /// One round in which each account with work does steps that take as long as `step` says of it, until its quantum is over. In
    /// which order they came, and how long the round took.
    fn round(budget: &mut Budget, has_work: &[SessionId], step: impl Fn(u32) -> u64) -> (Vec<u32>, u64) {
        let (mut quanta, mut order, mut spent) = (Vec::new(), Vec::new(), 0);
        budget.begin_round(&mut quanta, |id| has_work.contains(&id));
        for index in quanta {
            if spent >= ROUND_NS {
                break;
            }
            let cred = budget.cred(index);
            let ns = step(cred.uid).max(QUANTUM_NS.next_multiple_of(step(cred.uid)));
            budget.charge(cred, ns);
            order.push(cred.uid);
            spent += ns;
        }
        (order, spent)
    }

    #[test]
    fn who_does_large_things_gets_no_more_time_than_who_does_small_ones() {
        let mut budget = Budget::default();
        (1..=3).for_each(|uid| budget.add(who(uid), S[uid as usize]));
        for _ in 0..10_000 {
            round(&mut budget, &S, |uid| [0, 400_000, 700, 20_000][uid as usize]);
        }
        let used = [1, 2, 3].map(|uid| budget.used_ns(who(uid)));
        assert!(used.iter().all(|ns| ns.abs_diff(used[1]) < used[1] / 100), "{used:?}");
    }

    #[test]
    fn sessions_do_not_multiply_a_share_nor_do_many_who_want_everything_lengthen_a_round() {
        let mut budget = Budget::default();
        (10..160).for_each(|session| budget.add(who(1), SessionId(session)));
        (2..50).for_each(|uid| budget.add(who(uid), SessionId(1000 + uid as u16)));
        let all: Vec<SessionId> = budget.awake().collect();
        let longest = (0..1000).map(|_| round(&mut budget, &all, |_| 5_000).1).max();
        assert!(longest < Some(2 * ROUND_NS), "{longest:?}");
        let used: Vec<u64> = (1..50).map(|uid| budget.used_ns(who(uid))).collect();
        let (least, most) = (used.iter().min().copied(), used.iter().max().copied());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 2 * QUANTUM_NS), "{used:?}");
    }

    #[test]
    fn who_asks_for_little_waits_for_nobody() {
        let mut budget = Budget::default();
        (1..=3).for_each(|uid| budget.add(who(uid), S[uid as usize - 1]));
        for n in 0..1000 {
            // The third wants 2 µs now and then, the others all there is.
            let wants = n % 5 == 4;
            let (order, _) =
                round(
                    &mut budget,
                    if wants { &S } else { &S[..2] },
                    |uid| {
                        if uid == 3 { 20_000 } else { 50_000 }
                    },
                );
            assert_eq!(order[0] == 3, wants, "round {n}: {order:?}");
        }
    }

    #[test]
    fn nobody_saves_turns_and_no_debt_shuts_out_for_long() {
        let mut budget = Budget::default();
        (1..=2).for_each(|uid| budget.add(who(uid), S[uid as usize - 1]));
        (0..1000).for_each(|_| drop(round(&mut budget, &S[..1], |_| 20_000)));
        // The second comes late, and is first for a moment only.
        let first = (0..100).take_while(|_| round(&mut budget, &S, |_| 20_000).0[0] == 2).count();
        assert!((1..5).contains(&first), "{first}");
        budget.charge(who(1), u64::MAX);
        assert!(!budget.may_go(who(1)) && budget.may_go(who(2)));
        let waits = (0..10_000).take_while(|_| round(&mut budget, &S, |_| 20_000).0[0] == 2).count();
        assert!((100..300).contains(&waits), "{waits} rounds for 5 ms");
        assert!(budget.may_go(who(1)));
    }

    #[test]
    fn those_who_wait_and_nobody_else_go_at_once() {
        let mut budget = Budget::default();
        (1..=2).for_each(|uid| budget.add(who(uid), S[uid as usize - 1]));
        budget.charge(who(1), 1_000_000);
        assert_eq!(round(&mut budget, &S[..1], |_| 1).0, [1]);
        assert!(budget.may_go(who(1)), "nobody else wants anything");
    }

    #[test]
    fn alone_there_is_nobody_to_share_with_and_a_debt_outlives_a_session() {
        let mut budget = Budget::default();
        budget.add(who(1), S[0]);
        budget.add(who(1), S[1]);
        assert!(!budget.is_shared() && budget.is_shared_with_others(who(2)));
        budget.add(who(2), S[2]);
        assert!(budget.is_shared());
        budget.charge(who(2), u64::MAX);
        budget.remove(who(2), S[2]);
        round(&mut budget, &S, |_| 1);
        budget.add(who(2), S[3]);
        assert!(!budget.may_go(who(2)));
        budget.remove(who(2), S[3]);
        (0..300).for_each(|_| drop(round(&mut budget, &[], |_| 1)));
        assert!(budget.may_go(who(2)) && !budget.is_shared(), "paid, and forgotten");
        assert_eq!(budget.alone().map(|index| budget.cred(index)), Some(who(1)));
    }

    #[test]
    fn sessions_take_turns_at_being_first_and_of_many_some_are_looked_at() {
        let mut budget = Budget::default();
        S.iter().for_each(|session| budget.add(who(1), *session));
        let mut quanta = Vec::new();
        budget.begin_round(&mut quanta, |id| id == S[2]);
        let index = quanta[0];
        assert_eq!([0, 1, 4].map(|at| budget.session_at(index, at)), [Some(S[2]), Some(S[3]), None]);
        budget.pass(index, 1);
        assert_eq!(budget.session_at(index, 0), Some(S[3]));
        budget.retain_awake(|id| id != S[3]);
        assert_eq!(budget.awake().count(), 3);
        budget.wake(who(1), S[3]);
        (100..1000).for_each(|session| budget.add(who(1), SessionId(session)));
        let mut looks = 0;
        let rounds = (0..100).take_while(|_| {
            budget.begin_round(&mut quanta, |id| {
                looks += 1;
                id == SessionId(777)
            });
            quanta.is_empty()
        });
        let rounds = rounds.count();
        assert!(looks <= (rounds + 1) * LOOKS_A_ROUND && rounds < 20, "{looks} looks in {rounds} rounds");
    }

    #[test]
    fn doorbells_of_all_sessions_count_together() {
        let mut budget = Budget::default();
        budget.add(who(1), S[0]);
        let at = Instant::from_micros;
        assert!((0..64).all(|n| !budget.rings_too_often(who(1), at(20_000 + n))));
        assert!(budget.rings_too_often(who(1), at(21_000)) && !budget.rings_too_often(who(2), at(21_000)));
        assert!(!budget.rings_too_often(who(1), at(31_000)));
    }
}
