//! A listener that several engines serve: one socket for each, and the first of them, the *head*, is the program's.
//!
//! Its siblings have no descriptor. Each has an owner queue in its own engine's queue set; what becomes ready there shows at the
//! head, and is told to whoever watches the head. Made by the switch layer's `listen`, used by [`super::listener`].

use crate::queue::QueueSet;
use crate::socket::{Socket, as_socket, stream};
use crate::stack::EngineIdx;
use std::sync::atomic::Ordering;

impl Socket {
    /// The engine that has it, or had it.
    pub fn engine(&self) -> EngineIdx {
        EngineIdx::new(self.engine.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    pub(crate) fn set_engine(&self, engine: EngineIdx) {
        self.engine.store(engine.index() as u8, Ordering::Relaxed);
    }

    /// Lets go of the siblings: they are to end with this socket.
    pub(super) fn take_siblings(&self) -> Vec<&'static Socket> {
        let all = self.siblings.iter().collect();
        // They know their head until they are used again: it says whether others hold the listener.
        self.siblings.let_go();
        all
    }

    /// Those of the same listener, itself included, from one on that `round` says.
    pub(super) fn members(&'static self, round: u32) -> impl Iterator<Item = &'static Socket> {
        let count = 1 + self.siblings.iter().count();
        let member = move |index: usize| if index == 0 { Some(self) } else { self.siblings.at(index - 1) };
        (0..count).filter_map(move |n| member((round as usize + n) % count))
    }

    /// The queue sets that serve it: one, or of a listener of several engines one for each.
    pub(crate) fn owner_queues(&self) -> impl Iterator<Item = &'static QueueSet> {
        self.owner_queue().into_iter().chain(self.siblings.iter().filter_map(Socket::owner_queue))
    }

    /// The socket that the program has, and that is watched.
    pub(super) fn watched_as(&self) -> &Socket {
        as_socket(self.siblings.primary.load(Ordering::Acquire)).unwrap_or(self)
    }

    /// What a sibling has becomes visible at its head.
    pub(super) fn tell_primary(&self, ready: u32) {
        let Some(primary) = as_socket(self.siblings.primary.load(Ordering::Acquire)) else { return };
        let Some(index) = primary.siblings.iter().position(|other| std::ptr::eq(other, self)) else { return };
        let bit = 1 << index;
        if ready & stream::IN != 0 {
            primary.siblings.ready.fetch_or(bit, Ordering::SeqCst);
        } else {
            primary.siblings.ready.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    pub(super) fn has_siblings(&self) -> bool {
        self.siblings.at(0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sibling_has_shows_at_the_head() {
        let (primary, sibling) = (Socket::allocate(), Socket::allocate());
        primary.ready.store(0, Ordering::SeqCst);
        sibling.ready.store(0, Ordering::SeqCst);
        primary.join(sibling);
        assert_eq!(primary.ready_now(), 0);
        sibling.publish(stream::IN, stream::IN);
        assert_eq!(primary.ready_now(), stream::IN);
        sibling.publish(0, 0);
        assert_eq!(primary.ready_now(), 0);
        assert!(std::ptr::eq(sibling.watched_as(), primary));
        sibling.publish(stream::IN, stream::IN);
        let ended = primary.take_siblings();
        assert!(
            ended.len() == 1 && std::ptr::eq(sibling.watched_as(), primary),
            "it is asked who else holds it"
        );
        assert_eq!(primary.ready_now(), 0);
        ended.into_iter().chain([primary]).for_each(Socket::abandon);
        assert!(std::ptr::eq(sibling.watched_as(), sibling), "it may be another's sibling now");
    }

    #[test]
    fn accepts_begin_at_each_member_in_turn() {
        let sockets = [Socket::allocate(), Socket::allocate(), Socket::allocate()];
        sockets[0].join(sockets[1]);
        sockets[0].join(sockets[2]);
        let order = |round| {
            let index = |one: &Socket| sockets.iter().position(|socket| std::ptr::eq(*socket, one));
            sockets[0].members(round).map(|one| index(one).expect("one of them")).collect::<Vec<_>>()
        };
        assert_eq!(order(0), [0, 1, 2]);
        assert_eq!(order(4), [1, 2, 0]);
        sockets[0].abandon();
    }
}
