//! A host that writes anything anywhere: nothing panics, nothing is read or written outside the region, and what the
//! engine believes is its own.

use super::Random;
use crate::engine_cursor::{EngineProducer, PushError};
use crate::queue_set::EngineQueueSet;
use crate::region::Region;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use toe_abi::attach::FenceReason;
use toe_abi::entry::{Completion, RawEntry};
use toe_abi::region::{QueueSetLayout, RegionLayout};
use toe_abi::register::{EngineRegisters, HostRegisters};
use toe_base::{FlowId, Instant};

const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 16, receive_len: 1 << 16, send_len: 1 << 16 };
const BASE: u64 = LAYOUT.queue_set(0);
const CPL_HEAD: u64 = BASE + QueueSetLayout::HOST_REGISTERS + HostRegisters::CPL_HEAD;

fn engine_side() -> (Region, EngineQueueSet) {
    let (region, _files) = Region::create_for(&LAYOUT, 1).unwrap();
    let (sender, _receiver) = super::interrupt();
    let queue_set = EngineQueueSet::new(&region, &LAYOUT, 0, sender).unwrap();
    (region, queue_set)
}

const COMPLETION: Completion = Completion::PeerClosed { flow: FlowId::new(1, 2) };

#[test]
fn a_head_that_cannot_be_is_noticed_and_changes_nothing() {
    let (region, _file) = Region::create(1 << 16).unwrap();
    let mut producer = EngineProducer::new(region.clone(), 4096, 4, 64).unwrap();
    let entry = RawEntry { word0: 0x44, word1: 0 };
    for _ in 0..4 {
        producer.push(entry).unwrap();
    }
    for bad in [5, 6, 1 << 31, u32::MAX] {
        region.write_u32(64, bad).unwrap();
        assert_eq!(producer.push(entry), Err(PushError::BadHead(bad)));
        assert_eq!(producer.is_full(), Err(PushError::BadHead(bad)));
        assert_eq!(producer.tail(), 4);
    }
    // A head that can be: three were taken.
    region.write_u32(64, 3).unwrap();
    for _ in 0..3 {
        producer.push(entry).unwrap();
    }
    // Going back is not possible.
    region.write_u32(64, 2).unwrap();
    assert_eq!(producer.push(entry), Err(PushError::BadHead(2)));
    region.write_u32(64, 7).unwrap();
    assert_eq!(producer.push(entry), Ok(()));
}

#[test]
fn no_value_of_the_head_makes_the_engine_overwrite_or_run_away() {
    let (region, _file) = Region::create(1 << 16).unwrap();
    let mut producer = EngineProducer::new(region.clone(), 4096, 8, 64).unwrap();
    let mut random = Random(42);
    // The honest head, as a host that takes everything would have it.
    let mut valid_from = 0u32;
    for _ in 0..200_000 {
        let head = match random.below(3) {
            0 => random.next() as u32,
            1 => valid_from.wrapping_add(random.below(12) as u32).wrapping_sub(2),
            _ => producer.tail(),
        };
        region.write_u32(64, head).unwrap();
        let tail = producer.tail();
        let full = tail.wrapping_sub(valid_from) == 8;
        let possible = head.wrapping_sub(valid_from) <= tail.wrapping_sub(valid_from);
        match producer.push(RawEntry::default()) {
            Ok(()) if full => {
                assert!(possible && head != valid_from);
                valid_from = head;
            }
            Ok(()) => {}
            Err(PushError::Full) => assert!(full && head == valid_from),
            Err(PushError::BadHead(seen)) => assert!(full && !possible && seen == head),
        }
        assert!(producer.tail().wrapping_sub(tail) <= 1);
        assert!(producer.tail().wrapping_sub(valid_from) <= 8);
    }
}

#[test]
fn the_engine_does_not_read_its_own_registers_back() {
    let (region, mut engine) = engine_side();
    let mut random = Random(3);
    for lap in 0..2000u32 {
        for register in [EngineRegisters::CMD_HEAD, EngineRegisters::SND_HEAD, EngineRegisters::RCV_HEAD] {
            region.write_u32(BASE + register, random.next() as u32).unwrap();
        }
        // An entry at the place that is due, whatever the registers say.
        let place = lap % 256;
        let epoch = if (lap / 256) % 2 == 0 { RawEntry::EPOCH } else { 0 };
        let at = BASE + QueueSetLayout::CMD + u64::from(place) * 16;
        region.write(at, &(0x05 | epoch | u64::from(lap) << 32).to_le_bytes()).unwrap();
        let (command, _args) = engine.pop_command().expect("due").expect("well-formed");
        assert_eq!(command, toe_abi::entry::Command::ShutdownSend { flow: FlowId::from_raw(lap) });
        assert!(engine.pop_command().is_none());
        engine.publish_heads();
        assert_eq!(region.read_u32(BASE + EngineRegisters::CMD_HEAD), Ok(lap + 1));
    }
}

#[test]
fn random_words_everywhere_never_panic() {
    let mut random = Random(0xdead_beef);
    let mut reasons = std::collections::BTreeSet::new();
    let (mut entries, mut posted) = (0u64, 0u64);
    while entries < 300_000 {
        // A fence ends a session, so each round is a new one.
        let (region, mut engine) = engine_side();
        for round in 0..4 {
            for at in (0..LAYOUT.receive_offset()).step_by(8) {
                // Random types would nearly all be unknown ones; make half of them known.
                let mut word = random.next();
                if word & 1 << 40 == 0 {
                    word = word & !0xff | [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x21, 0x31][(word % 11) as usize];
                }
                region.write(at, &word.to_le_bytes()).unwrap();
            }
            let now = Instant::from_micros(round * 1000);
            for _ in 0..600 {
                let results = [
                    engine.pop_command().map(|r| r.map(|_| ())),
                    engine.pop_any_send().map(|r| r.map(|_| ())),
                    engine.pop_credit().map(|r| r.map(|_| ())),
                    Some(engine.post(COMPLETION).map(|ok| posted += u64::from(ok))),
                ];
                for result in results.into_iter().flatten() {
                    entries += 1;
                    reasons.extend(result.err().map(FenceReason::name));
                }
            }
            reasons.extend(engine.notify(now).err().map(FenceReason::name));
            engine.expire_irq(now);
            let _ = (engine.has_work(), engine.can_post(), engine.irq_deadline());
            engine.publish_heads();
        }
    }
    assert!(posted > 0);
    for reason in [FenceReason::UnknownEntryType, FenceReason::BadArgument, FenceReason::BadIrqMode] {
        assert!(reasons.contains(reason.name()), "{reason:?} never came up: {reasons:?}");
    }
}

#[test]
fn a_bad_completion_head_is_a_reason_to_fence() {
    let (region, mut engine) = engine_side();
    while engine.post(COMPLETION) == Ok(true) {}
    region.write_u32(CPL_HEAD, 5000).unwrap();
    assert_eq!(engine.post(COMPLETION), Err(FenceReason::BadHead));
    assert_eq!(engine.can_post(), Err(FenceReason::BadHead));
    assert_eq!(engine.notify(Instant::ZERO), Err(FenceReason::BadHead));
}

#[test]
fn an_entry_that_changes_while_it_is_read_is_still_one_copy() {
    // The host flips the type of an entry between a known and an unknown one for ever. Each pop must give one or the
    // other, decided once.
    let (region, mut engine) = engine_side();
    let stop = Arc::new(AtomicBool::new(false));
    let flipper = std::thread::spawn({
        let (region, stop) = (region.clone(), Arc::clone(&stop));
        move || {
            let mut random = Random(9);
            while !stop.load(Ordering::Relaxed) {
                let kind = if random.below(2) == 0 { 0x21 } else { 0xee };
                let epoch = if random.below(2) == 0 { RawEntry::EPOCH } else { 0 };
                let place = random.below(1024);
                let at = BASE + QueueSetLayout::SND + place * 16;
                let _ = region.write_u32(at, (kind | epoch) as u32);
            }
        }
    });
    let (mut good, mut bad) = (0u32, 0u32);
    for _ in 0..2_000_000 {
        match engine.pop_any_send() {
            Some(Ok(_)) => good += 1,
            Some(Err(reason)) => {
                assert_eq!(reason, FenceReason::UnknownEntryType);
                bad += 1;
            }
            None => {}
        }
        if good > 1000 && bad > 1000 {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    flipper.join().unwrap();
    assert!(good > 0 && bad > 0, "{good} {bad}");
}

/// Else it would wait for ever, and the engine look at it in each round.
#[test]
fn bytes_behind_a_command_that_was_never_published_are_a_breach() {
    let (region, mut engine) = engine_side();
    let at = BASE + QueueSetLayout::SND;
    region.write_u32(at, 0x21 | RawEntry::EPOCH as u32 | 1 << 16).unwrap();
    assert_eq!(engine.pop_send(), Some(Err(FenceReason::BadArgument)));
}
