//! Datagrams for a socket whose program is on its way to look into its lane: copied, in order. Filled and emptied by `to_socket`.

use std::collections::VecDeque;
use toe_base::Cred;
use toe_engine::RxDatagram;
use toe_engine::work::Arrival;
use toe_wire::UdpRepr;

/// Octets of one socket, with what is done with and not yet given up: as many as the smallest lane from the engine has room for.
const OCTETS_MAX: usize = 1 << 20;
/// Octets that an empty buffer keeps for the next time.
const KEPT: usize = 64 << 10;
/// Octets of all sockets together, with what keeping each datagram takes. No user's sockets have more than are free then, so that each
/// further user finds some.
const ALL_OCTETS_MAX: usize = 8 << 20;

/// What all sockets together hold, and whose.
#[derive(Debug, Default)]
pub(super) struct Total {
    octets: usize,
    /// Of those users who have something.
    of_users: Vec<(Cred, usize)>,
}

impl Total {
    fn of(&self, whose: Cred) -> usize {
        self.of_users.iter().find(|(user, _)| *user == whose).map_or(0, |(_, octets)| *octets)
    }

    fn has_room(&self, whose: Cred, octets: usize) -> bool {
        self.of(whose) + octets <= ALL_OCTETS_MAX.saturating_sub(self.octets + octets)
    }

    fn add(&mut self, whose: Cred, octets: usize) {
        self.octets += octets;
        match self.of_users.iter_mut().find(|(user, _)| *user == whose) {
            Some((_, of_user)) => *of_user += octets,
            None => self.of_users.push((whose, octets)),
        }
    }

    fn give_back(&mut self, whose: Cred, octets: usize) {
        self.octets = self.octets.saturating_sub(octets);
        let Some(at) = self.of_users.iter().position(|(user, _)| *user == whose) else { return };
        let of_user = &mut self.of_users[at].1;
        *of_user = of_user.saturating_sub(octets);
        if *of_user == 0 {
            self.of_users.swap_remove(at);
        }
    }
}

#[cfg(test)]
impl Total {
    pub fn is_nothing(&self) -> bool {
        self.octets == 0 && self.of_users.is_empty()
    }

    pub fn octets(&self) -> usize {
        self.octets
    }
}

#[derive(Clone, Copy, Debug)]
struct One {
    arrival: Arrival,
    ports: UdpRepr,
    segment: Option<u16>,
    len: usize,
}

/// Of one datagram of so many octets.
fn cost(len: usize) -> usize {
    len + size_of::<One>()
}

#[derive(Debug)]
pub(super) struct Held {
    whose: Cred,
    all: VecDeque<One>,
    octets: Vec<u8>,
    /// Where the first one's octets begin.
    at: usize,
}

impl Held {
    pub fn new(whose: Cred) -> Held {
        Held { whose, all: VecDeque::new(), octets: Vec::new(), at: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Octets that wait.
    pub fn octets(&self) -> usize {
        self.octets.len() - self.at
    }

    pub fn has_room(&self, len: usize, total: &Total) -> bool {
        // One takes up something, be it without octets.
        self.octets.len() + len <= OCTETS_MAX
            && self.all.len() < OCTETS_MAX / size_of::<One>()
            && total.has_room(self.whose, cost(len))
    }

    /// `false`: there is no room.
    pub fn push(&mut self, datagram: &RxDatagram<'_>, total: &mut Total) -> bool {
        let RxDatagram { arrival, ports, text, segment, .. } = *datagram;
        let is_room = self.has_room(text.len(), total);
        if is_room {
            total.add(self.whose, cost(text.len()));
            self.octets.extend_from_slice(text);
            self.all.push_back(One { arrival, ports, segment, len: text.len() });
        }
        is_room
    }

    pub fn first(&self) -> Option<RxDatagram<'_>> {
        let One { arrival, ports, segment, len } = *self.all.front()?;
        let text = self.octets.get(self.at..self.at + len)?;
        Some(RxDatagram { arrival, ports, headers: &[], text, segment })
    }

    /// The first one is on its way; of several that lie one behind the other the first `len` octets are.
    pub fn pop(&mut self, len: usize, total: &mut Total) {
        let Some(first) = self.all.front_mut() else { return };
        let len = len.min(first.len);
        first.len -= len;
        self.at += len;
        total.give_back(self.whose, len);
        if first.len == 0 {
            total.give_back(self.whose, cost(0));
            self.all.pop_front();
        }
        self.drop_used();
    }

    /// What is used up takes no more than what waits, or than an empty buffer keeps.
    fn drop_used(&mut self) {
        if self.all.is_empty() || self.at > self.octets().max(KEPT) {
            self.octets.drain(..self.at);
            self.at = 0;
            self.octets.shrink_to(self.octets.len().max(KEPT));
        }
    }

    /// The socket is gone.
    pub fn give_up(&mut self, total: &mut Total) {
        total.give_back(self.whose, self.all.iter().map(|one| cost(one.len)).sum());
        *self = Held::new(self.whose);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [usize; 4] = [4 << 20, 2 << 20, 1 << 20, 1 << 19];

    #[test]
    fn each_further_user_finds_room_whatever_the_others_hold() {
        let mut total = Total::default();
        for (uid, most) in (0..).zip(PARTS) {
            let user = Cred::of_user(uid);
            while total.has_room(user, 4096) {
                total.add(user, 4096);
            }
            assert_eq!(total.of(user), most, "half of what was free");
        }
        for uid in 0..PARTS.len() as u32 {
            let user = Cred::of_user(uid);
            total.give_back(user, total.of(user));
        }
        assert!(total.is_nothing());
    }
}
