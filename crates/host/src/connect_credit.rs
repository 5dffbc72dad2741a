//! What lets a connect go on without the engine's answer: flow ids that the engine has given for it, and to whom it has connected before.
//! Each queue has one; [`crate::socket::connect`] asks it, and [`crate::queue`] fills it.
//!
//! That somebody listens is known by an earlier connection, for as long as a word in the region, which the engine changes when anybody
//! stops to listen, is what it was before that one. If the listener goes in the moment between the look and the engine's
//! turn, the connection is refused, as it would have been in that moment.

use std::net::SocketAddr;
use toe_base::FlowId;

/// Programs that connect many times a second do so to few places.
const PLACES: usize = 8;
/// For so long the engine is not asked again about a listener that it leaves to the kernel.
const LEFT_MS: u64 = 500;

/// What is known of a few addresses; the newest replaces the oldest.
#[derive(Debug)]
struct Places<T> {
    known: [Option<(SocketAddr, T)>; PLACES],
    oldest: usize,
}

impl<T: Copy> Default for Places<T> {
    fn default() -> Places<T> {
        Places { known: [None; PLACES], oldest: 0 }
    }
}

impl<T: Copy> Places<T> {
    fn note(&mut self, remote: SocketAddr, what: T) {
        match self.known.iter_mut().flatten().find(|(at, _)| *at == remote) {
            Some((_, known)) => *known = what,
            None => {
                self.known[self.oldest] = Some((remote, what));
                self.oldest = (self.oldest + 1) % PLACES;
            }
        }
    }

    fn of(&self, remote: SocketAddr) -> Option<T> {
        self.known.iter().flatten().find(|(at, _)| *at == remote).map(|(_, what)| *what)
    }
}

#[derive(Debug, Default)]
pub struct ConnectCredit {
    ids: Vec<FlowId>,
    /// To whom the engine has connected, with the word as it was before.
    reached: Places<u32>,
    /// Whom it has left to the kernel, with the word as it was before, and until when that is taken as its answer.
    left: Places<(u32, u64)>,
}

impl ConnectCredit {
    /// The engine has given an id.
    pub fn give(&mut self, id: FlowId) {
        self.ids.push(id);
    }

    /// The engine has taken a connection to `remote`. `names`: the word before it was asked.
    pub fn note(&mut self, remote: SocketAddr, names: u32) {
        self.reached.note(remote, names);
    }

    /// An id for a connection to `remote`, if the engine need not be asked; `names`: the word now.
    pub fn take(&mut self, remote: SocketAddr, names: u32) -> Option<FlowId> {
        if self.reached.of(remote) == Some(names) { self.ids.pop() } else { None }
    }

    /// The engine leaves connections to `remote` to the kernel.
    pub fn note_left(&mut self, remote: SocketAddr, names: u32, now_ms: u64) {
        self.left.note(remote, (names, now_ms + LEFT_MS));
    }

    /// Whether it would say so again: it did a moment ago, and nobody has stopped to listen since.
    pub fn is_left(&self, remote: SocketAddr, names: u32, now_ms: u64) -> bool {
        self.left.of(remote).is_some_and(|(at, until_ms)| at == names && now_ms < until_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn only_who_was_reached_since_the_last_change_is_not_asked_for() {
        let mut credit = ConnectCredit::default();
        credit.note(at(80), 7);
        assert_eq!(credit.take(at(80), 7), None, "the engine has given nothing");
        let ids = [FlowId::new(1, 0), FlowId::new(2, 3)];
        ids.into_iter().for_each(|id| credit.give(id));
        assert_eq!(credit.take(at(81), 7), None, "nobody is known to listen there");
        assert_eq!(credit.take(at(80), 8), None, "whoever listened may do so no longer");
        credit.note(at(80), 8);
        assert_eq!(credit.take(at(80), 8), Some(ids[1]));
        assert_eq!(credit.take(at(80), 8), Some(ids[0]));
        assert_eq!(credit.take(at(80), 8), None, "used up");
    }

    #[test]
    fn the_oldest_places_are_forgotten() {
        let mut credit = ConnectCredit::default();
        credit.give(FlowId::new(1, 0));
        (0..=PLACES as u16).for_each(|port| credit.note(at(port), 0));
        assert_eq!(credit.take(at(0), 0), None);
        assert!(credit.take(at(1), 0).is_some());
    }

    #[test]
    fn what_is_left_to_the_kernel_is_so_for_a_moment() {
        let mut credit = ConnectCredit::default();
        assert!(!credit.is_left(at(80), 7, 1_000));
        credit.note_left(at(80), 7, 1_000);
        assert!(credit.is_left(at(80), 7, 1_000 + LEFT_MS - 1));
        assert!(!credit.is_left(at(80), 7, 1_000 + LEFT_MS), "asked again");
        assert!(!credit.is_left(at(80), 8, 1_000), "somebody has stopped to listen");
        assert!(!credit.is_left(at(81), 7, 1_000));
    }
}
