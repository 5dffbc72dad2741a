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

#[derive(Debug, Default)]
pub struct ConnectCredit {
    ids: Vec<FlowId>,
    /// To whom the engine has connected, with the word as it was before; the newest replaces the oldest.
    reached: [Option<(SocketAddr, u32)>; PLACES],
    oldest: usize,
}

impl ConnectCredit {
    /// The engine has given an id.
    pub fn give(&mut self, id: FlowId) {
        self.ids.push(id);
    }

    /// The engine has taken a connection to `remote`. `names`: the word before it was asked.
    pub fn note(&mut self, remote: SocketAddr, names: u32) {
        let known = self.reached.iter_mut().flatten().find(|(known, _)| *known == remote);
        match known {
            Some((_, at)) => *at = names,
            None => {
                self.reached[self.oldest] = Some((remote, names));
                self.oldest = (self.oldest + 1) % PLACES;
            }
        }
    }

    /// An id for a connection to `remote`, if the engine need not be asked; `names`: the word now.
    pub fn take(&mut self, remote: SocketAddr, names: u32) -> Option<FlowId> {
        let is_known = self.reached.contains(&Some((remote, names)));
        if is_known { self.ids.pop() } else { None }
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
}
