//! Wake-ups that the holder of a lock owes, under every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p toe-ring --release loom_pending_wakes`

use crate::pending_wakes::{Link, LockWord, PendingWakes, Sleeper};
use crate::sync::Ordering;
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// Sleeps until it was woken so many times; loom reports a sleep that nobody ends as a deadlock.
#[derive(Default)]
struct Bell {
    link: Link<Bell>,
    rung: Mutex<u32>,
    changed: Condvar,
}

impl Bell {
    fn sleep_until(&self, times: u32) {
        let mut rung = self.rung.lock().unwrap();
        while *rung < times {
            rung = self.changed.wait(rung).unwrap();
        }
    }
}

impl Sleeper for Bell {
    fn link(&self) -> &Link<Bell> {
        &self.link
    }

    fn wake(&self) {
        *self.rung.lock().unwrap() += 1;
        self.changed.notify_one();
    }
}

/// A lock and what its holders owe. Leaked, as what can be owed a wake-up is never freed.
struct World {
    word: LockWord,
    pending: PendingWakes<Bell>,
    bell: Bell,
}

impl World {
    fn new() -> &'static World {
        Box::leak(Box::new(World {
            word: LockWord::new(),
            pending: PendingWakes::default(),
            bell: Bell::default(),
        }))
    }

    fn take(&self, take_or_wait: fn(&LockWord) -> Option<u32>) {
        while take_or_wait(&self.word).is_some() {
            thread::yield_now();
        }
    }

    fn give_back(&self) {
        if self.word.give_back().owes {
            self.pending.pay();
        }
    }
}

/// One holds the lock, one finds something for the sleeper, be it held or not.
fn found_beside_a_holder(add: fn(&'static World)) {
    loom::model(move || {
        let world = World::new();
        assert!(world.word.try_take());
        let holder = thread::spawn(move || world.give_back());
        let finder = thread::spawn(move || add(world));
        world.bell.sleep_until(1);
        holder.join().unwrap();
        finder.join().unwrap();
    });
}

#[test]
fn loom_pending_is_paid_by_the_holder_or_by_who_owes_it() {
    found_beside_a_holder(|world| world.pending.add(&world.bell, &world.word));
}

/// Planted: the word is told first, and the holder finds nobody in the list.
#[test]
#[should_panic(expected = "deadlock")]
fn loom_pending_told_before_it_is_in_the_list_is_lost() {
    found_beside_a_holder(|world| {
        let holder_wakes = world.word.owe();
        world.pending.put_in(&world.bell);
        if !holder_wakes {
            world.pending.pay();
        }
    });
}

/// The holder himself finds something while another waits for the lock.
fn found_by_the_holder(take_or_wait: fn(&LockWord) -> Option<u32>) {
    loom::model(move || {
        let world = World::new();
        assert!(world.word.try_take());
        let holder = thread::spawn(move || {
            world.pending.add(&world.bell, &world.word);
            world.give_back();
        });
        let next = thread::spawn(move || {
            world.take(take_or_wait);
            world.give_back();
        });
        world.bell.sleep_until(1);
        holder.join().unwrap();
        next.join().unwrap();
    });
}

#[test]
fn loom_pending_stays_while_others_wait_for_the_lock() {
    found_by_the_holder(LockWord::take_or_wait);
}

/// Planted: who waits for the lock writes the word anew, and what was in it is forgotten.
#[test]
#[should_panic(expected = "deadlock")]
fn loom_pending_overwritten_by_who_waits_for_the_lock_is_lost() {
    found_by_the_holder(|word| {
        let before = word.word().swap(3, Ordering::AcqRel);
        (before & 1 != 0).then_some(3)
    });
}

/// A sleeper that is owed a wake-up twice, by two locks, is woken after the second.
#[test]
fn loom_pending_by_two_is_woken_after_both() {
    loom::model(|| {
        let (one, other) = (World::new(), World::new());
        assert!(one.word.try_take());
        let seen: &'static loom::sync::atomic::AtomicU32 =
            Box::leak(Box::new(loom::sync::atomic::AtomicU32::new(0)));
        let first = thread::spawn(move || {
            one.pending.add(&one.bell, &one.word);
            one.give_back();
        });
        let second = thread::spawn(move || {
            seen.store(1, Ordering::Relaxed);
            other.pending.add(&one.bell, &other.word);
        });
        let mut times = 1;
        loop {
            one.bell.sleep_until(times);
            if seen.load(Ordering::Relaxed) == 1 {
                break;
            }
            times += 1;
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}
