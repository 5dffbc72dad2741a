//! The two ends of an owner word ([`toe_abi::owner_word`]). Who changes it has changed who may touch the flow; nobody is asked.
//!
//! What a host published before it gave up a use, it published before the word says `Held` (release); so whoever withdraws a word that says so
//! (acquire) finds those entries in the rings.

use crate::sync::{Ordering, Words};
use toe_abi::owner_word::Owned;
use toe_base::FlowId;

/// What a host finds that begins to use a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseOutcome {
    /// It stays this host's until [`end_use`].
    Begun,
    /// It is another session's, or about to be.
    Withdrawn,
    /// The word is another flow's. The engine has not heard of this one yet, or what became of it is among the completions: the engine
    /// publishes that before it gives the slot to another.
    OfAnother,
}

/// The host: takes a connection that it was handed. `false`: it went back.
pub fn accept(words: &impl Words, at: u64, flow: FlowId) -> bool {
    words.replace_u64(at, Owned::Offered.word(flow), Owned::Held.word(flow), Ordering::AcqRel)
}

/// The host: a thread is about to take or to give bytes.
pub fn begin_use(words: &impl Words, at: u64, flow: FlowId) -> UseOutcome {
    if words.replace_u64(at, Owned::Held.word(flow), Owned::InUse.word(flow), Ordering::AcqRel) {
        UseOutcome::Begun
    } else if words.load_u64(at, Ordering::Acquire) == Owned::Withdrawn.word(flow) {
        UseOutcome::Withdrawn
    } else {
        UseOutcome::OfAnother
    }
}

/// The host: the thread has published all entries for what it did.
pub fn end_use(words: &impl Words, at: u64, flow: FlowId) {
    // Else the flow ended meanwhile, and the word is another's.
    let _ = words.replace_u64(at, Owned::InUse.word(flow), Owned::Held.word(flow), Ordering::AcqRel);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Region;

    const AT: u64 = 64;

    fn region(says: Owned, flow: FlowId) -> Region {
        let (region, _) = Region::create(4096).expect("memory");
        region.store_u64(AT, says.word(flow), Ordering::Release);
        region
    }

    fn withdraw(region: &Region, from: Owned, flow: FlowId) -> bool {
        region.replace_u64(AT, from.word(flow), Owned::Withdrawn.word(flow), Ordering::AcqRel)
    }

    #[test]
    fn of_two_who_want_an_offered_connection_one_has_it() {
        let flow = FlowId::from_raw(5);
        let first = region(Owned::Offered, flow);
        assert!(accept(&first, AT, flow) && !withdraw(&first, Owned::Offered, flow));
        let second = region(Owned::Offered, flow);
        assert!(withdraw(&second, Owned::Offered, flow) && !accept(&second, AT, flow));
    }

    #[test]
    fn what_is_in_use_cannot_be_withdrawn_and_what_was_cannot_be_used() {
        let flow = FlowId::from_raw(5);
        let region = region(Owned::Held, flow);
        assert_eq!(begin_use(&region, AT, flow), UseOutcome::Begun);
        assert!(!withdraw(&region, Owned::Held, flow));
        end_use(&region, AT, flow);
        assert!(withdraw(&region, Owned::Held, flow));
        assert_eq!(begin_use(&region, AT, flow), UseOutcome::Withdrawn);
    }

    #[test]
    fn the_end_of_a_use_leaves_the_word_of_the_next_flow_alone() {
        let [old, new] = [5, 1 << 20 | 5].map(FlowId::from_raw);
        let region = region(Owned::Held, old);
        assert_eq!(begin_use(&region, AT, old), UseOutcome::Begun);
        region.store_u64(AT, Owned::Held.word(new), Ordering::Release);
        end_use(&region, AT, old);
        assert_eq!(begin_use(&region, AT, old), UseOutcome::OfAnother);
        assert_eq!(begin_use(&region, AT, new), UseOutcome::Begun);
    }
}
