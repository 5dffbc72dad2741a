//! Owner words under every interleaving: one has the flow, and whoever takes it finds what the other one did.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p toe-ring --release loom_owner_word`

use crate::owner_word::{UseOutcome, accept, begin_use, end_use};
use crate::sync::{Ordering, Words};
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;
use toe_abi::owner_word::Owned;
use toe_base::FlowId;

const WORD: u64 = 0;
/// Stands for the rings: what the host has published.
const ENTRY: u64 = 8;

struct Memory([AtomicU64; 2]);

impl Memory {
    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.0[(offset / 8) as usize]
    }
}

impl Words for Memory {
    fn spans(&self, _offset: u64, _len: u64) -> bool {
        true
    }

    fn load_u64(&self, offset: u64, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    fn store_u64(&self, offset: u64, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }

    fn load_u32(&self, _offset: u64, _order: Ordering) -> u32 {
        unreachable!("no half words here")
    }

    fn store_u32(&self, _offset: u64, _value: u32, _order: Ordering) {
        unreachable!("no half words here")
    }

    fn replace_u64(&self, offset: u64, old: u64, new: u64, order: Ordering) -> bool {
        self.word(offset).compare_exchange(old, new, order, Ordering::Relaxed).is_ok()
    }

    fn swap_u32(&self, _offset: u64, _value: u32, _order: Ordering) -> u32 {
        unreachable!("no half words here")
    }

    fn replace_u32(&self, _offset: u64, _old: u32, _new: u32, _order: Ordering) -> bool {
        unreachable!("no half words here")
    }

    fn fetch_or_u64(&self, offset: u64, bits: u64, order: Ordering) -> u64 {
        self.word(offset).fetch_or(bits, order)
    }
}

/// A host does its part while the engine withdraws a flow of which the word says `from`; what the host got, and what the engine found
/// published if it got the flow.
fn against_withdrawal<R: Send + 'static>(
    from: Owned,
    host: fn(&Memory, FlowId) -> R,
    check: fn(R, Option<u64>),
) {
    loom::model(move || {
        let flow = FlowId::from_raw(3);
        let memory = Arc::new(Memory([AtomicU64::new(from.word(flow)), AtomicU64::new(0)]));
        let of_host = memory.clone();
        let host = thread::spawn(move || host(&of_host, flow));
        let is_taken =
            memory.replace_u64(WORD, from.word(flow), Owned::Withdrawn.word(flow), Ordering::AcqRel);
        let found = is_taken.then(|| memory.load_u64(ENTRY, Ordering::Relaxed));
        check(host.join().unwrap(), found);
    });
}

#[test]
fn loom_an_offered_connection_is_one_sides() {
    let host = |memory: &Memory, flow| accept(memory, WORD, flow);
    against_withdrawal(Owned::Offered, host, |accepted, withdrawn| assert_ne!(accepted, withdrawn.is_some()));
}

#[test]
fn loom_who_takes_a_flow_finds_what_its_last_user_published() {
    let host = |memory: &Memory, flow| {
        let begun = begin_use(memory, WORD, flow);
        if begun == UseOutcome::Begun {
            memory.store_u64(ENTRY, 1, Ordering::Relaxed);
            end_use(memory, WORD, flow);
        }
        begun
    };
    against_withdrawal(Owned::Held, host, |begun, found| match (begun, found) {
        (UseOutcome::Begun, found) => assert_ne!(found, Some(0), "it was in use"),
        (UseOutcome::Withdrawn, found) => assert_eq!(found, Some(0)),
        (UseOutcome::OfAnother, _) => unreachable!("the word is this flow's all the time"),
    });
}

/// Found by two processes that had two connections: the slot of the one that was taken was the other's, and its first owner went on.
#[test]
fn loom_a_slot_is_anothers_only_once_its_last_owner_can_know() {
    loom::model(|| {
        let (flow, next) = (FlowId::from_raw(3), FlowId::from_raw(1 << 20 | 3));
        let memory = Arc::new(Memory([AtomicU64::new(Owned::Held.word(flow)), AtomicU64::new(0)]));
        let of_host = memory.clone();
        let host = thread::spawn(move || {
            let begun = begin_use(&*of_host, WORD, flow);
            let told = of_host.load_u64(ENTRY, Ordering::Relaxed);
            if begun == UseOutcome::Begun {
                end_use(&*of_host, WORD, flow);
            }
            (begun, told)
        });
        let is_taken =
            memory.replace_u64(WORD, Owned::Held.word(flow), Owned::Withdrawn.word(flow), Ordering::AcqRel);
        if is_taken {
            memory.store_u64(ENTRY, 1, Ordering::Relaxed);
            memory.store_u64(WORD, Owned::Held.word(next), Ordering::Release);
        }
        let (begun, told) = host.join().unwrap();
        assert!(begun != UseOutcome::OfAnother || told == 1, "its completion is there");
    });
}
