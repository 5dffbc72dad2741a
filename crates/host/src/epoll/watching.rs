//! Who waits in an epoll set, or looks at it: how they come and go.

use crate::epoll::EpollSet;
use crate::waiter::Waiter;

impl EpollSet {
    pub(crate) fn add_waiter(&self, waiter: &'static Waiter) {
        self.inner.lock().waiters.inside.push(waiter);
    }

    /// Also passes on what is left to the next waiter.
    pub(crate) fn remove_waiter(&self, waiter: &'static Waiter) {
        let mut inner = self.inner.lock();
        inner.waiters.inside.retain(|w| !std::ptr::eq(*w, waiter));
        if !inner.ready.is_empty() {
            inner.waiters.inside.iter().any(|waiter| waiter.kick());
        }
    }

    /// `false`: it was one already.
    fn add_outside(&self, waiter: &'static Waiter) -> bool {
        let mut inner = self.inner.lock();
        let is_new = !inner.waiters.outside.iter().any(|known| std::ptr::eq(*known, waiter));
        if is_new {
            inner.waiters.outside.push(waiter);
        }
        is_new
    }

    fn remove_outside(&self, waiter: &'static Waiter) {
        self.inner.lock().waiters.outside.retain(|known| !std::ptr::eq(*known, waiter));
    }
}

/// Sets that a thread looks at besides the one it waits in: until this is dropped they kick it.
pub(crate) struct Watched {
    waiter: &'static Waiter,
    sets: Vec<&'static EpollSet>,
}

impl Watched {
    pub(crate) fn new(waiter: &'static Waiter) -> Watched {
        Watched { waiter, sets: Vec::new() }
    }

    /// From now on it is those that `find` finds. A set that comes into one of them is told of by a kick, unless it came before the
    /// thread was listed there: so it is asked again until there are no new ones.
    pub(crate) fn follow(&mut self, find: impl Fn() -> Vec<&'static EpollSet>) {
        loop {
            let found = find();
            // Also where it was before: a set that has ended meanwhile has forgotten it, and may be another one by now.
            let new = found.iter().filter(|set| set.add_outside(self.waiter)).count();
            let is_found = |one: &EpollSet| found.iter().any(|set| std::ptr::eq(*set, one));
            self.sets.iter().filter(|set| !is_found(set)).for_each(|set| set.remove_outside(self.waiter));
            self.sets = found;
            if new == 0 {
                return;
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.sets.iter().for_each(|set| set.remove_outside(self.waiter));
    }
}
