//! Datagrams to neighbours whose hardware address is not known yet.

use crate::work::TxDatagram;
use std::collections::VecDeque;
use toe_base::PortId;

/// So many wait, of so many octets together; the oldest give way (Linux keeps about as many for each neighbour).
const WAITING_MAX: usize = 128;
const OCTETS_MAX: usize = 1 << 20;

#[derive(Debug)]
struct One {
    port: PortId,
    neighbour: u16,
    datagram: TxDatagram,
    text: Vec<u8>,
}

#[derive(Debug, Default)]
pub struct Waiting {
    queue: VecDeque<One>,
    octets: usize,
}

impl Waiting {
    /// Returns how many older ones gave way.
    pub fn push(&mut self, port: PortId, neighbour: u16, datagram: TxDatagram, text: &[u8]) -> usize {
        let mut gone = 0;
        while !self.queue.is_empty()
            && (self.queue.len() >= WAITING_MAX || self.octets + text.len() > OCTETS_MAX)
        {
            let first = self.queue.pop_front();
            self.octets -= first.map_or(0, |one| one.text.len());
            gone += 1;
        }
        self.octets += text.len();
        self.queue.push_back(One { port, neighbour, datagram, text: text.to_vec() });
        gone
    }

    /// Takes those for a neighbour, in their order.
    pub fn take(&mut self, port: PortId, neighbour: u16) -> Vec<(TxDatagram, Vec<u8>)> {
        let mut taken = Vec::new();
        let is_for = |one: &One| one.port == port && one.neighbour == neighbour;
        if !self.queue.iter().any(is_for) {
            return taken;
        }
        for one in std::mem::take(&mut self.queue) {
            if is_for(&one) {
                self.octets -= one.text.len();
                taken.push((one.datagram, one.text));
            } else {
                self.queue.push_back(one);
            }
        }
        taken
    }

    /// Neighbours of a port have other numbers now.
    pub fn clear(&mut self, port: PortId) {
        let octets = &mut self.octets;
        self.queue.retain(|one| {
            let stays = one.port != port;
            *octets -= if stays { 0 } else { one.text.len() };
            stays
        });
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
