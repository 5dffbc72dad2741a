//! Datagrams for a socket whose program is on its way to look into its lane: copied, in order. Filled and emptied by `to_socket`.

use std::collections::VecDeque;
use toe_engine::RxDatagram;
use toe_engine::work::Arrival;
use toe_wire::UdpRepr;

/// Octets of one socket, with what is done with and not yet given up: as many as the smallest lane from the engine has room for.
const OCTETS_MAX: usize = 1 << 20;
/// Octets that an empty buffer keeps for the next time.
const KEPT: usize = 64 << 10;
/// Octets of all sockets together, with what keeping each datagram takes. No socket has more than are free then.
const ALL_OCTETS_MAX: usize = 8 << 20;

/// What all sockets together hold.
#[derive(Debug, Default)]
pub(super) struct Total(usize);

#[cfg(test)]
impl Total {
    pub fn is_nothing(&self) -> bool {
        self.0 == 0
    }

    pub fn octets(&self) -> usize {
        self.0
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

#[derive(Debug, Default)]
pub(super) struct Held {
    all: VecDeque<One>,
    octets: Vec<u8>,
    /// Where the first one's octets begin.
    at: usize,
}

impl Held {
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
            && self.octets() + self.all.len() * size_of::<One>() + cost(len)
                <= ALL_OCTETS_MAX.saturating_sub(total.0)
    }

    /// `false`: there is no room.
    pub fn push(&mut self, datagram: &RxDatagram<'_>, total: &mut Total) -> bool {
        let RxDatagram { arrival, ports, text, segment, .. } = *datagram;
        let is_room = self.has_room(text.len(), total);
        if is_room {
            total.0 += cost(text.len());
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
        total.0 = total.0.saturating_sub(len);
        if first.len == 0 {
            total.0 = total.0.saturating_sub(size_of::<One>());
            self.all.pop_front();
        }
        if self.all.is_empty() {
            self.at = 0;
            self.octets.clear();
            self.octets.shrink_to(KEPT);
        }
    }

    /// The socket is gone.
    pub fn give_up(&mut self, total: &mut Total) {
        total.0 = total.0.saturating_sub(self.all.iter().map(|one| cost(one.len)).sum());
        *self = Held::default();
    }
}
