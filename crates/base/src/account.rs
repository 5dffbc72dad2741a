//! Who is charged for what a program has: its user, apart in each network namespace as far as that cannot be used to have
//! more. Root of a container without a user namespace is user 0 as root outside is, and must not use up what root outside
//! may have. But anybody can make namespaces without end: so a user has an account in the engine's own, one in each of
//! [`NAMESPACES_MAX`] others, and one for all the rest.

use crate::{Cred, NetNs};

/// Network namespaces other than the engine's in which a user has an account each.
pub const NAMESPACES_MAX: usize = 3;
/// What all others of a user count as; the kernel calls none so.
pub const ELSEWHERE: NetNs = NetNs(u64::MAX);

/// The account of `who`, where there are these accounts already; `are_left`: there may be more. `own` is the engine's
/// namespace.
pub fn account_of<'a>(
    who: Cred,
    own: NetNs,
    mut accounts: impl Iterator<Item = &'a Cred> + Clone,
    are_left: bool,
) -> Cred {
    let is_foreign = |cred: &&Cred| cred.uid == who.uid && cred.netns != own && cred.netns != ELSEWHERE;
    let may_have_own = || are_left && accounts.clone().filter(is_foreign).count() < NAMESPACES_MAX;
    if who.netns == own || may_have_own() || accounts.any(|cred| *cred == who) {
        who
    } else {
        Cred { netns: ELSEWHERE, ..who }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_without_end_are_a_few_accounts() {
        let own = NetNs(1);
        let in_ns = |uid, netns| Cred { uid, netns: NetNs(netns) };
        let mut accounts = std::collections::HashSet::new();
        for netns in 2..100 {
            accounts.insert(account_of(in_ns(0, netns), own, accounts.iter(), true));
        }
        assert_eq!(accounts.len(), NAMESPACES_MAX + 1, "{accounts:?}");
        let of = |who, are_left| account_of(who, own, accounts.iter(), are_left);
        assert_eq!(of(in_ns(0, 2), false), in_ns(0, 2), "who has one keeps it");
        assert_eq!(of(in_ns(0, 99), true), Cred { uid: 0, netns: ELSEWHERE });
        for are_left in [false, true] {
            assert_eq!(of(in_ns(0, 1), are_left), in_ns(0, 1), "outside he shares with nobody");
            assert_eq!(of(in_ns(7, 1), are_left), in_ns(7, 1));
        }
        assert_eq!(of(in_ns(7, 2), true), in_ns(7, 2), "another user's are his own");
        assert_eq!(of(in_ns(7, 2), false), Cred { uid: 7, netns: ELSEWHERE });
    }
}
