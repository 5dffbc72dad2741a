//! What each user has of the engine's, and whether he may have more: who is locked out by whom, decided in one place.
//!
//! The rule is that of switches whose ports share one memory (Choudhury and Hahne, "Dynamic Queue Length Thresholds for
//! Shared-Memory Packet Switches", 1998): a user may take one more while he has less than [`ALPHA`] times what is free.
//! Alone he gets eight ninths, two get eight seventeenths each. What one leaves the next is a ninth, which a few users who
//! want everything use up, so that a part ([`RESERVE_ONE_IN`]) is kept for those who have little: who has less than
//! [`SMALL_ONE_IN`] gets it from there. Beside that there are caps from the configuration. Every check and every count takes
//! the same few steps, however many users there are.
//!
//! What is called a user here is an account ([`toe_base::account`]): a user has one in the engine's network namespace and
//! one in each of a few others, so that root of a container takes nothing from root outside. The rule is for each account, and
//! a cap for all accounts of a user together.
//!
//! Plain values. The engine asks before it gives something out, and says when it has come back; a user's record goes with
//! the last thing that he has.

pub use crate::work::UserIdx;
use std::collections::HashMap;
use toe_abi::errno::Errno;
use toe_base::account::account_of;
use toe_base::limits::{FLOWS_MAX, LISTENERS_MAX, SESSIONS_MAX};
use toe_base::{Cred, NetNs};

/// How many times what is free one user may have.
pub const ALPHA: u64 = 8;

/// Of everything, the part that is kept for users who have little, and how much of all is little. Of what there is less of
/// than that there is no such part.
const RESERVE_ONE_IN: u64 = 16;
const SMALL_ONE_IN: u64 = 256;

/// What there is a limited amount of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Resource {
    /// Attached processes, and memory of ended ones that is still sent from.
    Sessions,
    /// Connection records; those in TIME_WAIT that no program has are nobody's, because they make room for anybody.
    Flows,
    /// Sockets that listen, and listeners for virtual interfaces.
    Listeners,
    Anchors,
    Channels,
    /// Bytes of the receive parts of sessions' memory that the engine has written to and not given back.
    ReceiveMemory,
    /// Bytes of sessions' memory beside that: rings, records of flows, answers that wait, lanes to sockets.
    SessionMemory,
    /// Bytes of the engine's own memory, for data of connections that no session has.
    StagingMemory,
}

/// How many kinds of things there are.
const KINDS: usize = 8;

impl Resource {
    pub const ALL: [Resource; KINDS] = [
        Resource::Sessions,
        Resource::Flows,
        Resource::Listeners,
        Resource::Anchors,
        Resource::Channels,
        Resource::ReceiveMemory,
        Resource::SessionMemory,
        Resource::StagingMemory,
    ];

    /// As `toe status` and `[quota]` call it.
    pub const fn name(self) -> &'static str {
        match self {
            Resource::Sessions => "sessions",
            Resource::Flows => "flows",
            Resource::Listeners => "listeners",
            Resource::Anchors => "anchors",
            Resource::Channels => "channels",
            Resource::ReceiveMemory => "receive_memory",
            Resource::SessionMemory => "session_memory",
            Resource::StagingMemory => "staging_memory",
        }
    }
}

/// How much of something there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Of all users together.
    pub total: u64,
    /// Of any one, whatever is free.
    pub user: u64,
}

impl Limit {
    /// The rule alone decides who gets it.
    pub const fn shared(total: u64) -> Limit {
        Limit { total, user: u64::MAX }
    }
}

/// The limits of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    limits: [Limit; KINDS],
    /// There is nobody to leave anything to.
    is_ones: bool,
}

/// Bytes of the engine's own staging memory (session 0): data of connections that no session holds yet or any more.
pub const STAGING_LEN: u64 = 256 << 20;

/// Those of flows and listeners, and 64 in hand for each session: a host takes 32 at once, and may have
/// [`super::anchors::IN_HAND_MAX`].
const ANCHORS_MAX: usize = FLOWS_MAX + LISTENERS_MAX + SESSIONS_MAX * 64;
/// Each is some memory that two processes and the engine map.
const CHANNELS_MAX: u64 = 2048;
/// So much that it can be multiplied by [`ALPHA`].
const NO_END: u64 = u64::MAX / (2 * ALPHA);

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas::DEFAULT
    }
}

impl Quotas {
    /// In the order of [`Resource`]. Of what only the machine has much or little of there is no end: whoever starts the
    /// engine knows.
    pub const DEFAULT: Quotas = Quotas {
        limits: [
            // Number 0 is the engine's own.
            Limit::shared(SESSIONS_MAX as u64 - 1),
            Limit::shared(FLOWS_MAX as u64),
            Limit::shared(LISTENERS_MAX as u64),
            Limit::shared(ANCHORS_MAX as u64),
            Limit::shared(CHANNELS_MAX),
            Limit::shared(NO_END),
            Limit::shared(NO_END),
            Limit::shared(STAGING_LEN),
        ],
        is_ones: false,
    };

    #[must_use]
    pub fn with(mut self, resource: Resource, limit: Limit) -> Quotas {
        self.limits[resource as usize] = limit;
        self
    }

    /// Who comes first gets all there is, but for caps: only one user comes.
    #[must_use]
    pub fn without_shares(self) -> Quotas {
        Quotas { is_ones: true, ..self }
    }

    pub const fn of(&self, resource: Resource) -> Limit {
        self.limits[resource as usize]
    }
}

/// Why a user does not get something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// He has his share.
    OverQuota,
    /// There is nothing left for anybody.
    UsedUp,
}

impl From<Refused> for Errno {
    fn from(refused: Refused) -> Errno {
        match refused {
            Refused::OverQuota => Errno::EDQUOT,
            Refused::UsedUp => Errno::ENOBUFS,
        }
    }
}

/// What a user has, and what he did not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// His account.
    pub cred: Cred,
    used: [u64; KINDS],
    refused: [u64; KINDS],
}

impl User {
    const fn new(cred: Cred) -> User {
        User { cred, used: [0; KINDS], refused: [0; KINDS] }
    }

    pub const fn used(&self, resource: Resource) -> u64 {
        self.used[resource as usize]
    }

    /// How often he was refused.
    pub const fn refused(&self, resource: Resource) -> u64 {
        self.refused[resource as usize]
    }
}

/// Everybody who has something.
#[derive(Debug)]
pub struct Users {
    quotas: Quotas,
    /// Used by all together.
    used: [u64; KINDS],
    /// Place 0 is nobody's.
    records: Vec<Option<User>>,
    free: Vec<u32>,
    /// By user the accounts that he has.
    by_uid: HashMap<u32, Vec<(Cred, UserIdx)>>,
    /// The engine's network namespace.
    own: NetNs,
    /// Another one after each change.
    version: u64,
}

impl Users {
    pub fn new(quotas: Quotas, own: NetNs) -> Users {
        Users {
            quotas,
            used: [0; KINDS],
            records: vec![None],
            free: Vec::new(),
            by_uid: HashMap::new(),
            own,
            version: 0,
        }
    }

    pub const fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    pub fn get(&self, user: UserIdx) -> Option<&User> {
        self.records.get(user.index())?.as_ref()
    }

    /// Whose account somebody's is, be there one yet or not.
    pub fn account(&self, who: Cred) -> Cred {
        let accounts = self.accounts(who.uid);
        account_of(who, self.own, accounts.iter().map(|(cred, _)| cred), true)
    }

    fn accounts(&self, uid: u32) -> &[(Cred, UserIdx)] {
        self.by_uid.get(&uid).map_or(&[], Vec::as_slice)
    }

    pub fn by_cred(&self, who: Cred) -> Option<&User> {
        self.get(self.idx(who))
    }

    /// The place of the record of somebody's account, or nobody's.
    pub fn idx(&self, who: Cred) -> UserIdx {
        let account = self.account(who);
        let found = self.accounts(who.uid).iter().find(|(cred, _)| *cred == account);
        found.map(|(_, user)| *user).unwrap_or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = &User> {
        self.records.iter().flatten()
    }

    /// Used by all together.
    pub const fn used(&self, resource: Resource) -> u64 {
        self.used[resource as usize]
    }

    /// What anybody may take is what it was while this is.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// How much more the user may take.
    pub fn room(&self, user: UserIdx, resource: Resource) -> u64 {
        match self.get(user) {
            Some(record) => self.room_of(record.cred.uid, record.used(resource), resource),
            None if user == UserIdx::NOBODY => self.free(resource),
            None => 0,
        }
    }

    fn free(&self, resource: Resource) -> u64 {
        self.quotas.of(resource).total.saturating_sub(self.used(resource))
    }

    /// How much more an account of `uid` may take that has `used`.
    fn room_of(&self, uid: u32, used: u64, resource: Resource) -> u64 {
        let limit = self.quotas.of(resource);
        let free = self.free(resource);
        if self.quotas.is_ones {
            return free.min(self.room_below_cap(uid, limit.user, resource));
        }
        let small = limit.total / SMALL_ONE_IN;
        let reserve = if small > 0 { limit.total / RESERVE_ONE_IN } else { 0 };
        let shared = free.saturating_sub(reserve);
        // The largest n for which the last of them is still taken with less than ALPHA times what is free then.
        let by_rule = (ALPHA * shared).saturating_sub(used).div_ceil(ALPHA + 1).min(shared);
        let of_reserve = small.saturating_sub(used).min(free);
        by_rule.max(of_reserve).min(self.room_below_cap(uid, limit.user, resource))
    }

    /// How much more all accounts of `uid` together may take before his cap.
    fn room_below_cap(&self, uid: u32, cap: u64, resource: Resource) -> u64 {
        if cap == u64::MAX {
            return cap;
        }
        let used = |&(_, user): &(Cred, UserIdx)| self.get(user).map_or(0, |user| user.used(resource));
        cap.saturating_sub(self.accounts(uid).iter().map(used).sum())
    }

    /// Whether the user may take `n` more.
    pub fn may_take(&self, user: UserIdx, resource: Resource, n: u64) -> Result<(), Refused> {
        self.check(self.room(user, resource), resource, n)
    }

    fn check(&self, room: u64, resource: Resource, n: u64) -> Result<(), Refused> {
        if n <= room {
            return Ok(());
        }
        let is_full = self.quotas.of(resource).total < self.used(resource).saturating_add(n);
        Err(if is_full { Refused::UsedUp } else { Refused::OverQuota })
    }

    /// He takes `n` more, or is refused, which is counted.
    pub fn take(&mut self, user: UserIdx, resource: Resource, n: u64) -> Result<(), Refused> {
        match self.may_take(user, resource, n) {
            Ok(()) => {
                self.add(user, resource, n);
                Ok(())
            }
            Err(refused) => {
                self.note_refused(user, resource);
                Err(refused)
            }
        }
    }

    /// Whether somebody who has nothing yet, perhaps, may take one.
    pub fn may_enter(&self, who: Cred, resource: Resource) -> Result<(), Refused> {
        match self.idx(who) {
            UserIdx::NOBODY => self.check(self.room_of(who.uid, 0, resource), resource, 1),
            user => self.may_take(user, resource, 1),
        }
    }

    /// He takes it, and has a record from now on.
    pub fn enter(&mut self, who: Cred, resource: Resource) -> Result<UserIdx, Refused> {
        self.may_enter(who, resource)?;
        let user = self.idx(who);
        if user != UserIdx::NOBODY {
            self.add(user, resource, 1);
            return Ok(user);
        }
        let account = self.account(who);
        let place = self.free.pop().unwrap_or_else(|| {
            self.records.push(None);
            self.records.len() as u32 - 1
        });
        self.records[place as usize] = Some(User::new(account));
        let user = UserIdx(place);
        self.by_uid.entry(who.uid).or_default().push((account, user));
        self.add(user, resource, 1);
        Ok(user)
    }

    pub fn note_refused(&mut self, user: UserIdx, resource: Resource) {
        if let Some(Some(record)) = self.records.get_mut(user.index()) {
            record.refused[resource as usize] += 1;
        }
    }

    /// He has `n` more, whatever he may.
    pub fn add(&mut self, user: UserIdx, resource: Resource, n: u64) {
        if let Some(Some(record)) = self.records.get_mut(user.index()) {
            self.version += 1;
            record.used[resource as usize] += n;
            self.used[resource as usize] += n;
        }
    }

    /// `n` have come back.
    pub fn give(&mut self, user: UserIdx, resource: Resource, n: u64) {
        let Some(Some(record)) = self.records.get_mut(user.index()) else { return };
        debug_assert!(record.used[resource as usize] >= n, "{resource:?}: more came back than were taken");
        let n = n.min(record.used[resource as usize]);
        self.version += 1;
        record.used[resource as usize] -= n;
        self.used[resource as usize] -= n;
        if record.used == [0; KINDS] {
            let uid = record.cred.uid;
            if let Some(accounts) = self.by_uid.get_mut(&uid) {
                accounts.retain(|(_, other)| *other != user);
                if accounts.is_empty() {
                    self.by_uid.remove(&uid);
                }
            }
            self.records[user.index()] = None;
            self.free.push(user.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(total: u64, user: u64) -> Users {
        Users::new(Quotas::default().with(Resource::Flows, Limit { total, user }), NetNs(0))
    }

    fn take_all(users: &mut Users, user: UserIdx) -> u64 {
        let mut taken = 0;
        while users.take(user, Resource::Flows, 1).is_ok() {
            taken += 1;
        }
        taken
    }

    #[test]
    fn one_alone_gets_eight_ninths_and_a_newcomer_something_after_many_who_want_everything() {
        let mut users = users(960, u64::MAX);
        let greedy = users.enter(Cred::of_user(1), Resource::Sessions).expect("room");
        assert_eq!(take_all(&mut users, greedy), 800);
        let mut last = 800;
        for uid in 2..20 {
            let next = users.enter(Cred::of_user(uid), Resource::Sessions).expect("room");
            let got = take_all(&mut users, next);
            assert!(got >= 3 && got <= last, "user {uid} got {got}");
            last = got;
        }
        // Who is beyond his share gets nothing more until others have given something back.
        assert_eq!(users.may_take(greedy, Resource::Flows, 1), Err(Refused::OverQuota));
        assert_eq!(users.get(greedy).map(|user| user.refused(Resource::Flows)), Some(1));
    }

    #[test]
    fn two_that_want_everything_end_with_the_same() {
        let mut users = users(1700, u64::MAX);
        let [a, b] = [1, 2].map(|uid| users.enter(Cred::of_user(uid), Resource::Sessions).expect("room"));
        take_all(&mut users, a);
        for _ in 0..10_000 {
            // The first one's connections end, and both want the place.
            users.give(a, Resource::Flows, 1);
            if users.take(b, Resource::Flows, 1).is_err() {
                let _ = users.take(a, Resource::Flows, 1);
            }
            if users.get(a).map(|a| a.used(Resource::Flows)) <= users.get(b).map(|b| b.used(Resource::Flows))
            {
                break;
            }
        }
        take_all(&mut users, b);
        take_all(&mut users, a);
        let used = [a, b].map(|user| users.get(user).expect("there").used(Resource::Flows));
        assert!(used[0].abs_diff(used[1]) <= 80 && used[0] + used[1] >= 1480, "{used:?}");
    }

    #[test]
    fn many_at_once_are_what_as_many_one_by_one_are() {
        for total in [1, 4, 9, 10, 100, 300, 1000, 5000] {
            for n in 1..40 {
                let (mut single, mut many) = (users(total, u64::MAX), users(total, u64::MAX));
                let (one, all) = (
                    single.enter(Cred::of_user(1), Resource::Sessions),
                    many.enter(Cred::of_user(1), Resource::Sessions),
                );
                let (one, all) = (one.expect("room"), all.expect("room"));
                let taken = (0..n).take_while(|_| single.take(one, Resource::Flows, 1).is_ok()).count();
                assert_eq!(many.room(all, Resource::Flows).min(n), taken as u64, "{n} of {total}");
            }
        }
    }

    #[test]
    fn a_cap_holds_whatever_is_free_and_what_is_used_up_says_so() {
        let mut users = users(100, 10);
        let user = users.enter(Cred::of_user(1), Resource::Sessions).expect("room");
        assert_eq!(take_all(&mut users, user), 10);
        assert_eq!(Errno::from(users.take(user, Resource::Flows, 1).expect_err("a cap")), Errno::EDQUOT);
        let mut small = self::users(1, u64::MAX);
        let user = small.enter(Cred::of_user(1), Resource::Sessions).expect("room");
        assert_eq!(take_all(&mut small, user), 1);
        assert_eq!(Errno::from(small.take(user, Resource::Flows, 1).expect_err("full")), Errno::ENOBUFS);
    }

    #[test]
    fn a_record_goes_with_the_last_thing_that_its_user_has() {
        let mut users = users(100, u64::MAX);
        let user = users.enter(Cred::of_user(7), Resource::Sessions).expect("room");
        users.take(user, Resource::Flows, 1).expect("room");
        users.give(user, Resource::Sessions, 1);
        assert!(users.by_cred(Cred::of_user(7)).is_some(), "his connection closes without him");
        users.give(user, Resource::Flows, 1);
        assert!(users.by_cred(Cred::of_user(7)).is_none() && users.used(Resource::Flows) == 0);
        let next = users.enter(Cred::of_user(8), Resource::Sessions).expect("room");
        assert_eq!((next, users.get(next).map(|next| next.cred.uid)), (user, Some(8)));
    }

    #[test]
    fn root_of_a_container_takes_nothing_from_root_outside() {
        let mut users = users(100_000, u64::MAX);
        let [outside, inside] = [0, 5].map(|netns| Cred { uid: 0, netns: NetNs(netns) });
        let contained = users.enter(inside, Resource::Sessions).expect("room");
        let taken = take_all(&mut users, contained);
        assert!(taken > 80_000, "{taken}");
        let root = users.enter(outside, Resource::Sessions).expect("room");
        assert_ne!(contained, root);
        assert!(take_all(&mut users, root) > 4_000, "what anybody gets who comes later");
        users.give(contained, Resource::Flows, 50_000);
        assert!(take_all(&mut users, root) > 40_000, "he has his own share");
        assert_eq!(users.get(root).map(|root| root.cred), Some(outside));
    }

    #[test]
    fn namespaces_do_not_multiply_a_share_without_end_nor_a_cap_at_all() {
        let mut users = users(100_000, 1000);
        let all: Vec<UserIdx> = (0..100)
            .map(|netns| users.enter(Cred { uid: 7, netns: NetNs(netns) }, Resource::Sessions).expect("room"))
            .collect();
        let accounts: std::collections::HashSet<u32> = all.iter().map(|user| user.0).collect();
        assert_eq!(accounts.len(), 1 + toe_base::account::NAMESPACES_MAX + 1);
        let taken: u64 = all.iter().map(|user| take_all(&mut users, *user)).sum();
        assert_eq!(taken, 1000, "the cap is the user's");
        all.iter().for_each(|user| users.give(*user, Resource::Sessions, 1));
        assert!(users.by_cred(Cred { uid: 7, netns: NetNs(50) }).is_none(), "that one had nothing else");
    }

    #[test]
    fn where_only_one_user_comes_he_gets_everything() {
        let quotas = Quotas::default().with(Resource::Flows, Limit::shared(1000)).without_shares();
        let mut users = Users::new(quotas, NetNs(0));
        let user = users.enter(Cred::of_user(5), Resource::Sessions).expect("room");
        assert_eq!(take_all(&mut users, user), 1000);
        assert_eq!(users.may_take(user, Resource::Flows, 1), Err(Refused::UsedUp));
    }

    #[test]
    fn nobody_is_charged_for_nothing() {
        let mut users = users(100, u64::MAX);
        users.take(UserIdx::NOBODY, Resource::Flows, 100).expect("free");
        users.give(UserIdx::NOBODY, Resource::Flows, 5);
        assert_eq!(users.used(Resource::Flows), 0);
    }
}
