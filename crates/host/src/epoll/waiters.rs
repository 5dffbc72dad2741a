//! Who waits for what is in an epoll set. Of the threads that wait in it an event wakes one; who looks at it from outside, in a set
//! that has it or by poll(2), is told of every event, as by Linux: who reads it first nobody knows.

use crate::waiter::Waiter;

/// Parked threads, and those about to park.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    pub(super) inside: Vec<&'static Waiter>,
    pub(super) outside: Vec<&'static Waiter>,
}

impl Waiters {
    /// What is in the set, or where it is served, has changed: they all look anew.
    pub(super) fn kick_all(&self) {
        self.inside.iter().chain(&self.outside).for_each(|waiter| _ = waiter.kick());
    }

    /// Something has come, and `kick` is how a thread is woken for it. `true`: a parked one was.
    pub(super) fn tell(&self, kick: impl Fn(&'static Waiter) -> bool) -> bool {
        let woken = self.inside.iter().any(|waiter| kick(waiter));
        self.outside.iter().fold(woken, |woken, waiter| kick(waiter) || woken)
    }

    pub(super) fn clear(&mut self) {
        self.inside.clear();
        self.outside.clear();
    }
}
