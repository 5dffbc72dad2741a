//! A listener that several engines serve: one socket for each, and the first of them, the *head*, is the program's.
//!
//! Its siblings have no descriptor. Each has a home in its own engine's queue set; what becomes ready there shows at the
//! head, and is told to whoever watches the head. Made by the switch layer's `listen`, used by [`super::listener`].

use super::{Kind, Socket, claim, stream};
use crate::queue::QueueSet;
use crate::stack::{ENGINES_MAX, EngineIdx};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use toe_abi::errno::Errno;

/// What binds them together. Of most sockets empty.
#[derive(Debug, Default)]
pub(super) struct Siblings {
    /// Of a sibling: its head.
    head: AtomicPtr<Socket>,
    /// Of a head: its siblings, without gaps.
    others: [AtomicPtr<Socket>; ENGINES_MAX - 1],
    /// Of a head: a bit for each sibling that has a connection.
    ready: AtomicU32,
}

impl Siblings {
    pub(super) fn forget(&self) {
        self.head.store(std::ptr::null_mut(), Ordering::Release);
        self.let_go();
    }

    fn let_go(&self) {
        for other in &self.others {
            other.store(std::ptr::null_mut(), Ordering::Release);
        }
        self.ready.store(0, Ordering::Relaxed);
    }

    fn at(&self, place: usize) -> Option<&'static Socket> {
        as_socket(self.others.get(place)?.load(Ordering::Acquire))
    }

    fn iter(&self) -> impl Iterator<Item = &'static Socket> {
        (0..ENGINES_MAX - 1).map_while(|place| self.at(place))
    }

    /// Whether another session has one of them.
    pub(super) fn have_moved(&self) -> bool {
        self.iter().any(|other| other.copies().is_moved())
    }
}

fn as_socket(at: *mut Socket) -> Option<&'static Socket> {
    // SAFETY: needed because siblings are in atomics. They hold null or what `join` got: a socket, which is never freed.
    (!at.is_null()).then(|| unsafe { &*at })
}

impl Socket {
    /// The engine that has it, or had it.
    pub fn engine(&self) -> EngineIdx {
        EngineIdx::new(self.engine.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    pub(super) fn set_engine(&self, engine: EngineIdx) {
        self.engine.store(engine.index() as u8, Ordering::Relaxed);
    }

    /// `sibling` listens at another engine for the same descriptor.
    pub fn join(&'static self, sibling: &'static Socket) {
        let places = &self.siblings.others;
        let Some(free) = places.iter().find(|place| place.load(Ordering::Relaxed).is_null()) else {
            // Cannot be: there are as many places as further engines.
            return sibling.abandon();
        };
        free.store(std::ptr::from_ref(sibling).cast_mut(), Ordering::Release);
        sibling.siblings.head.store(std::ptr::from_ref(self).cast_mut(), Ordering::Release);
        sibling.tell_head(sibling.ready.load(Ordering::SeqCst));
    }

    /// Lets go of the siblings: they are to end with this socket.
    pub(super) fn take_siblings(&self) -> Vec<&'static Socket> {
        let all = self.siblings.iter().collect();
        // They know their head until they are used again: it says whether others hold the listener.
        self.siblings.let_go();
        all
    }

    /// Those of the same listener, itself included, from one on that `turn` says.
    pub(super) fn members(&'static self, turn: u32) -> impl Iterator<Item = &'static Socket> {
        let count = 1 + self.siblings.iter().count();
        let member = move |place: usize| if place == 0 { Some(self) } else { self.siblings.at(place - 1) };
        (0..count).filter_map(move |n| member((turn as usize + n) % count))
    }

    /// The queue sets that serve it: one, or of a listener of several engines one for each.
    pub(crate) fn homes(&self) -> impl Iterator<Item = &'static QueueSet> {
        self.home().into_iter().chain(self.siblings.iter().filter_map(Socket::home))
    }

    /// A look has found nothing: what anybody handed to its engines before comes first. Whether to drain and look again.
    pub(crate) fn let_engine_finish(&self) -> bool {
        self.homes().fold(false, |waited, home| {
            let more = home.stack.settle();
            if more {
                home.drain();
            }
            waited | more
        })
    }

    /// What `look` sees; once more if it says nothing yet (`is_nothing`) and what was handed to the engine may change that.
    pub(super) fn seen<T>(&self, is_nothing: impl Fn(&T) -> bool, look: impl Fn() -> T) -> T {
        let first = look();
        if is_nothing(&first) && self.let_engine_finish() { look() } else { first }
    }

    /// The socket that the program has, and that is watched.
    pub(super) fn watched_as(&self) -> &Socket {
        as_socket(self.siblings.head.load(Ordering::Acquire)).unwrap_or(self)
    }

    /// What a sibling has becomes visible at its head.
    pub(super) fn tell_head(&self, ready: u32) {
        let Some(head) = as_socket(self.siblings.head.load(Ordering::Acquire)) else { return };
        let Some(place) = head.siblings.iter().position(|other| std::ptr::eq(other, self)) else { return };
        let bit = 1 << place;
        if ready & stream::IN != 0 {
            head.siblings.ready.fetch_or(bit, Ordering::SeqCst);
        } else {
            head.siblings.ready.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    pub(super) fn ready_elsewhere(&self) -> u32 {
        if self.siblings.ready.load(Ordering::SeqCst) == 0 { 0 } else { stream::IN }
    }

    pub(super) fn has_siblings(&self) -> bool {
        self.siblings.at(0).is_some()
    }

    /// Claims it of each engine that has it. Of a listener those engines that do not know it (any more) are left out: it is not asked
    /// for again.
    pub(super) fn claim_all(&'static self) -> Result<(), Errno> {
        let mut outcome = claim::claim(self);
        let is_lost = outcome == Err(Errno::ECONNRESET);
        if self.kind() != Kind::Listener || self.siblings.at(0).is_none() && !is_lost {
            return outcome;
        }
        for member in self.members(0).filter(|member| member.copies().is_moved()) {
            match claim::claim_or_why(member) {
                Ok(()) => outcome = Ok(()),
                Err(crate::errno::ENOENT | Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::ENETDOWN) => {
                    member.copies().set_moved(false);
                    member.lose_engine();
                }
                // It is tried again with the next call.
                Err(_) => {}
            }
        }
        if self.has_engine() { Ok(()) } else { outcome.and(Err(Errno::ECONNRESET)) }
    }

    /// Whether an engine serves this listener still.
    pub fn has_engine(&'static self) -> bool {
        self.members(0).any(|member| !member.has_lost_engine())
    }

    /// A listener begins to take connections at all of its engines. An error: at none.
    pub(super) fn activate_all(&'static self) -> Result<(), Errno> {
        self.members(0).map(Socket::activate_listener).reduce(Result::or).unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sibling_has_shows_at_the_head() {
        let (head, sibling) = (Socket::allocate(), Socket::allocate());
        head.ready.store(0, Ordering::SeqCst);
        sibling.ready.store(0, Ordering::SeqCst);
        head.join(sibling);
        assert_eq!(head.ready_now(), 0);
        sibling.publish(stream::IN, stream::IN);
        assert_eq!(head.ready_now(), stream::IN);
        sibling.publish(0, 0);
        assert_eq!(head.ready_now(), 0);
        assert!(std::ptr::eq(sibling.watched_as(), head));
        sibling.publish(stream::IN, stream::IN);
        let ended = head.take_siblings();
        assert!(
            ended.len() == 1 && std::ptr::eq(sibling.watched_as(), head),
            "it is asked who else holds it"
        );
        assert_eq!(head.ready_now(), 0);
        ended.into_iter().chain([head]).for_each(Socket::abandon);
        assert!(std::ptr::eq(sibling.watched_as(), sibling), "it may be another's sibling now");
    }

    #[test]
    fn accepts_begin_at_each_member_in_turn() {
        let sockets = [Socket::allocate(), Socket::allocate(), Socket::allocate()];
        sockets[0].join(sockets[1]);
        sockets[0].join(sockets[2]);
        let order = |turn| {
            let place = |one: &Socket| sockets.iter().position(|socket| std::ptr::eq(*socket, one));
            sockets[0].members(turn).map(|one| place(one).expect("one of them")).collect::<Vec<_>>()
        };
        assert_eq!(order(0), [0, 1, 2]);
        assert_eq!(order(4), [1, 2, 0]);
        sockets[0].abandon();
    }
}
