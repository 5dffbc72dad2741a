//! Whose turn it is on the engine's thread: its time goes round among users, by deficit round robin (Shreedhar and Varghese,
//! 1995). Each round gives every user [`QUANTUM_NS`]; what the engine does because of his processes (their entries, their
//! requests) is taken off that, by the clock. Who has used up his turn waits for the next round while others go, and who has
//! overdrawn it waits for as many as that takes.
//!
//! A user alone is never made to wait, and then nothing is measured either. Plain values: the run loop reads the clock.

use std::collections::HashMap;
use toe_base::SessionId;

/// A user's turn in one round.
pub const QUANTUM_NS: i64 = 50_000;
/// Nobody owes more: one request that took long must not shut its user out for seconds.
const DEBT_MAX_NS: i64 = 100 * QUANTUM_NS;

/// What one user has of the engine's time.
#[derive(Debug, Default)]
struct Account {
    sessions: Vec<SessionId>,
    /// Of his sessions the one that goes first.
    first: usize,
    /// What he may still use; below 0 he waits.
    credit_ns: i64,
    /// What he has used in all, as far as it was measured.
    used_ns: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Budget {
    accounts: HashMap<u32, Account>,
    /// Users with sessions, whose turn it is first first.
    order: Vec<u32>,
}

impl Budget {
    pub fn add(&mut self, uid: u32, session: SessionId) {
        let account = self.account(uid);
        account.sessions.push(session);
        if account.sessions.len() == 1 {
            self.order.push(uid);
        }
    }

    pub fn remove(&mut self, uid: u32, session: SessionId) {
        let Some(account) = self.accounts.get_mut(&uid) else { return };
        account.sessions.retain(|other| *other != session);
        if account.sessions.is_empty() {
            self.order.retain(|other| *other != uid);
            // What he owes he still owes when he comes back at once.
            if account.credit_ns >= 0 {
                self.accounts.remove(&uid);
            }
        }
    }

    fn account(&mut self, uid: u32) -> &mut Account {
        self.accounts.entry(uid).or_insert_with(|| Account { credit_ns: QUANTUM_NS, ..Account::default() })
    }

    /// Whether there is anybody to share with. If not, nothing need be measured.
    pub fn is_shared(&self) -> bool {
        self.accounts.len() > 1
    }

    /// Whether there is anybody beside this user.
    pub fn is_shared_beside(&self, uid: u32) -> bool {
        self.accounts.len() > usize::from(self.accounts.contains_key(&uid))
    }

    /// A round begins: everybody has his quantum, and nobody saves more than one.
    pub fn begin_round(&mut self) {
        self.accounts.retain(|_, account| {
            account.credit_ns = (account.credit_ns + QUANTUM_NS).min(QUANTUM_NS);
            !account.sessions.is_empty() || account.credit_ns < QUANTUM_NS
        });
        if !self.order.is_empty() {
            self.order.rotate_left(1);
        }
    }

    /// Nobody had anything to do but those who wait: the rounds until the first of them may go are left out.
    pub fn skip_rounds(&mut self, waiting: &[u32]) {
        let of = |uid: &u32| self.accounts.get(uid).map(|account| account.credit_ns);
        let Some(best) = waiting.iter().filter_map(of).max().filter(|best| *best <= 0) else { return };
        let rounds = -best / QUANTUM_NS + 1;
        for account in self.accounts.values_mut() {
            account.credit_ns = (account.credit_ns + rounds * QUANTUM_NS).min(QUANTUM_NS);
        }
    }

    /// Whether something may be done for the user now.
    pub fn may_go(&self, uid: u32) -> bool {
        self.accounts.get(&uid).is_none_or(|account| account.credit_ns > 0)
    }

    /// Something was done for the user that took so long. Whether he may go on.
    pub fn charge(&mut self, uid: u32, ns: u64) -> bool {
        let account = self.account(uid);
        account.used_ns = account.used_ns.saturating_add(ns);
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        account.credit_ns = account.credit_ns.saturating_sub(ns).max(-DEBT_MAX_NS);
        account.credit_ns > 0
    }

    /// What was measured of a user's use.
    pub fn used_ns(&self, uid: u32) -> u64 {
        self.accounts.get(&uid).map_or(0, |account| account.used_ns)
    }

    /// The user in a place of the order in which they have their turns.
    pub fn user(&self, place: usize) -> Option<u32> {
        self.order.get(place).copied()
    }

    /// Of a user's sessions the one in this place, counted from the one that goes first.
    pub fn session(&self, uid: u32, place: usize) -> Option<SessionId> {
        let account = self.accounts.get(&uid)?;
        let n = account.sessions.len();
        (place < n).then(|| account.sessions[(account.first + place) % n])
    }

    /// The next time this user's turn begins behind so many sessions of his.
    pub fn pass(&mut self, uid: u32, served: usize) {
        if let Some(account) = self.accounts.get_mut(&uid) {
            account.first = (account.first + served) % account.sessions.len().max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: [SessionId; 4] = [SessionId(1), SessionId(2), SessionId(3), SessionId(4)];

    /// Rounds in which each user does things that take so long, as long as he may. What each has had in all.
    fn run(budget: &mut Budget, rounds: usize, costs: &[(u32, u64)]) -> Vec<u64> {
        let mut had = vec![0; costs.len()];
        for _ in 0..rounds {
            budget.begin_round();
            let mut waiting = Vec::new();
            for (at, (uid, ns)) in costs.iter().enumerate() {
                if !budget.may_go(*uid) {
                    waiting.push(*uid);
                    continue;
                }
                had[at] += ns;
                while budget.charge(*uid, *ns) {
                    had[at] += ns;
                }
            }
            if waiting.len() == costs.len() {
                budget.skip_rounds(&waiting);
            }
        }
        had
    }

    #[test]
    fn who_does_large_things_gets_no_more_time_than_who_does_small_ones() {
        let mut budget = Budget::default();
        budget.add(1, S[0]);
        budget.add(2, S[1]);
        let had = run(&mut budget, 10_000, &[(1, 400_000), (2, 700)]);
        assert!(had[0].abs_diff(had[1]) < had[1] / 10, "{had:?}");
    }

    #[test]
    fn sessions_do_not_multiply_a_users_share() {
        let mut budget = Budget::default();
        (10..160).for_each(|session| budget.add(1, SessionId(session)));
        budget.add(2, S[1]);
        let had = run(&mut budget, 1000, &[(1, 10_000), (2, 10_000)]);
        assert_eq!(had[0], had[1]);
    }

    #[test]
    fn those_who_wait_and_nobody_else_go_at_once() {
        let mut budget = Budget::default();
        budget.add(1, S[0]);
        budget.add(2, S[1]);
        budget.begin_round();
        assert!(!budget.charge(1, 20 * QUANTUM_NS as u64) && !budget.charge(2, 3 * QUANTUM_NS as u64));
        budget.skip_rounds(&[1, 2]);
        assert!(budget.may_go(2) && !budget.may_go(1), "the order stays as it was");
        budget.skip_rounds(&[1]);
        assert!(budget.may_go(1));
    }

    #[test]
    fn alone_there_is_nobody_to_share_with_and_a_debt_outlives_a_session() {
        let mut budget = Budget::default();
        budget.add(1, S[0]);
        budget.add(1, S[1]);
        assert!(!budget.is_shared());
        budget.add(2, S[2]);
        assert!(budget.is_shared());
        budget.begin_round();
        assert!(!budget.charge(2, u64::MAX));
        budget.remove(2, S[2]);
        budget.add(2, S[3]);
        assert!(!budget.may_go(2));
        budget.remove(2, S[3]);
        (0..101).for_each(|_| budget.begin_round());
        assert!(budget.may_go(2) && !budget.is_shared(), "paid, and forgotten");
    }

    #[test]
    fn nobody_saves_turns() {
        let mut budget = Budget::default();
        budget.add(1, S[0]);
        (0..1000).for_each(|_| budget.begin_round());
        assert!(!budget.charge(1, QUANTUM_NS as u64));
    }

    #[test]
    fn users_and_their_sessions_take_turns_at_being_first() {
        let mut budget = Budget::default();
        for (uid, session) in [(1, S[0]), (1, S[1]), (2, S[2])] {
            budget.add(uid, session);
        }
        let order = |budget: &Budget| (0..).map_while(|at| budget.user(at)).collect::<Vec<_>>();
        budget.begin_round();
        let first = order(&budget);
        budget.begin_round();
        assert_ne!(order(&budget), first);
        assert_eq!([0, 1, 2].map(|at| budget.session(1, at)), [Some(S[0]), Some(S[1]), None]);
        budget.pass(1, 1);
        assert_eq!([0, 1].map(|at| budget.session(1, at)), [Some(S[1]), Some(S[0])]);
    }
}
