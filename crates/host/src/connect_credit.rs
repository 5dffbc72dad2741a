//! What lets a connect go on without the engine's answer: flow ids that the engine has given for it, and to whom it has connected before.
//! Each queue has one; [`crate::socket::connect`] asks it, and [`crate::queue`] fills it.
//!
//! That somebody listens is known by an earlier connection, for as long as a word in the region, which the engine changes when anybody
//! stops to listen, is what it was before that one. If the listener goes in the moment between the look and the engine's
//! turn, the connection is refused, as it would have been in that moment.
//!
//! An engine that has not been heard for a moment is asked, whoever is known: one that stands still does not answer, and the connection is
//! the kernel's.

use std::net::SocketAddr;
use toe_abi::errno::Errno;
use toe_base::FlowId;

/// Programs that connect many times a second do so to few places.
const CACHE_ENTRIES: usize = 8;
/// For so long the engine is not asked again to whom it has said that it does not connect.
const LEFT_MS: u64 = 500;
/// For so long after the engine was seen to go round it is taken to do so still.
const HEARD_MS: u64 = 250;

/// What is known of a few addresses; the newest replaces the oldest.
#[derive(Debug)]
struct PeerCache<T> {
    known: [Option<(SocketAddr, T)>; CACHE_ENTRIES],
    oldest: usize,
}

impl<T: Copy> Default for PeerCache<T> {
    fn default() -> PeerCache<T> {
        PeerCache { known: [None; CACHE_ENTRIES], oldest: 0 }
    }
}

impl<T: Copy> PeerCache<T> {
    fn note(&mut self, remote: SocketAddr, what: T) {
        match self.known.iter_mut().flatten().find(|(at, _)| *at == remote) {
            Some((_, known)) => *known = what,
            None => {
                self.known[self.oldest] = Some((remote, what));
                self.oldest = (self.oldest + 1) % CACHE_ENTRIES;
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
    reached: PeerCache<u32>,
    /// To whom it does not connect: what it said, with the word as it was before, and until when that is taken as its answer.
    left: PeerCache<(Errno, u32, u64)>,
    heard: Heard,
}

/// How far the engine was, and when that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub looks: u64,
    pub now_ms: u64,
}

impl ConnectCredit {
    /// The engine has given an id.
    pub fn give(&mut self, id: FlowId) {
        self.ids.push(id);
    }

    /// The engine has taken a connection to `remote`, and answered. `names`: the word before it was asked.
    pub fn note(&mut self, remote: SocketAddr, names: u32, heard: Heard) {
        self.reached.note(remote, names);
        self.heard = heard;
    }

    /// An id for a connection to `remote`, if the engine need not be asked; `names`: the word now.
    pub fn take(&mut self, remote: SocketAddr, names: u32, heard: Heard) -> Option<FlowId> {
        let is_alive = self.is_alive(heard);
        if is_alive && self.reached.of(remote) == Some(names) { self.ids.pop() } else { None }
    }

    /// Who connects often sees the engine go on between two connections.
    fn is_alive(&mut self, heard: Heard) -> bool {
        let is_recent = heard.now_ms.saturating_sub(self.heard.now_ms) < HEARD_MS;
        if is_recent && heard.looks != self.heard.looks {
            self.heard = heard;
        }
        is_recent
    }

    /// The engine does not connect to `remote`: it leaves that to the kernel (EHOSTDOWN), or nobody listens there (ECONNREFUSED).
    pub fn note_left(&mut self, remote: SocketAddr, answer: Errno, names: u32, now_ms: u64) {
        self.left.note(remote, (answer, names, now_ms + LEFT_MS));
    }

    /// What it would say again: it did a moment ago, and nobody has begun or stopped to listen since.
    pub fn left(&self, remote: SocketAddr, names: u32, now_ms: u64) -> Option<Errno> {
        let (answer, at, until_ms) = self.left.of(remote)?;
        (at == names && now_ms < until_ms).then_some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARD: Heard = Heard { looks: 5, now_ms: 1_000 };

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn only_who_was_reached_since_the_last_change_is_not_asked_for() {
        let mut credit = ConnectCredit::default();
        credit.note(at(80), 7, HEARD);
        assert_eq!(credit.take(at(80), 7, HEARD), None, "the engine has given nothing");
        let ids = [FlowId::new(1, 0), FlowId::new(2, 3)];
        ids.into_iter().for_each(|id| credit.give(id));
        assert_eq!(credit.take(at(81), 7, HEARD), None, "nobody is known to listen there");
        assert_eq!(credit.take(at(80), 8, HEARD), None, "whoever listened may do so no longer");
        credit.note(at(80), 8, HEARD);
        assert_eq!(credit.take(at(80), 8, HEARD), Some(ids[1]));
        assert_eq!(credit.take(at(80), 8, HEARD), Some(ids[0]));
        assert_eq!(credit.take(at(80), 8, HEARD), None, "used up");
    }

    #[test]
    fn an_engine_that_was_not_heard_for_a_moment_is_asked() {
        let mut credit = ConnectCredit::default();
        (0..4).for_each(|slot| credit.give(FlowId::new(slot, 0)));
        credit.note(at(80), 7, HEARD);
        let after = |looks, ms| Heard { looks, now_ms: HEARD.now_ms + ms };
        assert!(credit.take(at(80), 7, after(6, HEARD_MS - 1)).is_some(), "it has gone on");
        assert!(credit.take(at(80), 7, after(6, 2 * HEARD_MS - 2)).is_some(), "not since");
        assert_eq!(credit.take(at(80), 7, after(6, 2 * HEARD_MS - 1)), None, "too long");
        assert_eq!(
            credit.take(at(80), 7, after(7, 2 * HEARD_MS)),
            None,
            "it went on at some time, and may stand still since"
        );
        credit.note(at(80), 7, after(8, 2 * HEARD_MS));
        assert!(credit.take(at(80), 7, after(8, 2 * HEARD_MS)).is_some(), "it has answered");
    }

    #[test]
    fn the_oldest_places_are_forgotten() {
        let mut credit = ConnectCredit::default();
        credit.give(FlowId::new(1, 0));
        (0..=CACHE_ENTRIES as u16).for_each(|port| credit.note(at(port), 0, HEARD));
        assert_eq!(credit.take(at(0), 0, HEARD), None);
        assert!(credit.take(at(1), 0, HEARD).is_some());
    }

    #[test]
    fn what_is_left_to_the_kernel_is_so_for_a_moment() {
        let mut credit = ConnectCredit::default();
        assert_eq!(credit.left(at(80), 7, 1_000), None);
        for answer in [Errno::EHOSTDOWN, Errno::ECONNREFUSED] {
            credit.note_left(at(80), answer, 7, 1_000);
            assert_eq!(credit.left(at(80), 7, 1_000 + LEFT_MS - 1), Some(answer));
            assert_eq!(credit.left(at(80), 7, 1_000 + LEFT_MS), None, "asked again");
            assert_eq!(credit.left(at(80), 8, 1_000), None, "somebody has begun or stopped to listen");
            assert_eq!(credit.left(at(81), 7, 1_000), None);
        }
    }
}
