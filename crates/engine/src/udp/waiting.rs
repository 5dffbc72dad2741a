//! Datagrams to neighbours whose hardware address is not known yet.

use crate::work::TxDatagram;
use std::collections::VecDeque;
use toe_base::PortId;

/// So many wait, of so many bytes together; of who has most of them the oldest give way (Linux keeps about as many for each neighbour).
const WAITING_MAX: usize = 128;
const BYTES_MAX: usize = 1 << 20;
/// What one datagram counts beside its bytes, so that many small ones are as much as a few large ones.
const EACH_COUNTS: usize = BYTES_MAX / WAITING_MAX;

#[derive(Debug)]
struct One<P> {
    port: PortId,
    neighbour: u16,
    payer: P,
    datagram: TxDatagram,
    text: Vec<u8>,
}

/// `P`: whose a datagram is.
#[derive(Debug)]
pub struct Waiting<P> {
    queue: VecDeque<One<P>>,
    bytes: usize,
}

impl<P> Default for Waiting<P> {
    fn default() -> Waiting<P> {
        Waiting { queue: VecDeque::new(), bytes: 0 }
    }
}

impl<P: Copy + Eq> Waiting<P> {
    /// `to`: a port and the number of a neighbour there. Returns for whom the older ones were that gave way.
    pub fn push(
        &mut self,
        to: (PortId, u16),
        payer: P,
        datagram: TxDatagram,
        text: &[u8],
    ) -> Vec<(PortId, u16)> {
        let mut gone = Vec::new();
        while self.queue.len() >= WAITING_MAX || self.bytes + text.len() > BYTES_MAX {
            let Some(first) = self.first_of_greediest().and_then(|at| self.queue.remove(at)) else { break };
            self.bytes -= first.text.len();
            gone.push((first.port, first.neighbour));
        }
        self.bytes += text.len();
        let (port, neighbour) = to;
        self.queue.push_back(One { port, neighbour, payer, datagram, text: text.to_vec() });
        gone
    }

    /// The oldest of the one who has most of what there is room for: who floods addresses where nobody is loses his own.
    fn first_of_greediest(&self) -> Option<usize> {
        let mut shares: Vec<(P, usize)> = Vec::new();
        for one in &self.queue {
            let counts = one.text.len() + EACH_COUNTS;
            match shares.iter_mut().find(|(payer, _)| *payer == one.payer) {
                Some((_, share)) => *share += counts,
                None => shares.push((one.payer, counts)),
            }
        }
        let (greediest, _) = shares.into_iter().max_by_key(|(_, share)| *share)?;
        self.queue.iter().position(|one| one.payer == greediest)
    }

    /// Whether something waits for a neighbour.
    pub fn is_for(&self, (port, neighbour): (PortId, u16)) -> bool {
        self.queue.iter().any(|one| one.port == port && one.neighbour == neighbour)
    }

    /// Takes those for a neighbour, in their order.
    pub fn take(&mut self, port: PortId, neighbour: u16) -> Vec<(TxDatagram, Vec<u8>)> {
        let mut taken = Vec::new();
        let is_for = |one: &One<P>| one.port == port && one.neighbour == neighbour;
        if !self.queue.iter().any(is_for) {
            return taken;
        }
        for one in std::mem::take(&mut self.queue) {
            if is_for(&one) {
                self.bytes -= one.text.len();
                taken.push((one.datagram, one.text));
            } else {
                self.queue.push_back(one);
            }
        }
        taken
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
