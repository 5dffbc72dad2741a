//! UDP: which kernel sockets hear from the engine's links and send by them (decision 0035), and which two of them have a lane past
//! all of it (decision 0034). The sockets, their names and queues are the kernel's.
//!
//! | plane | stages in their order | file |
//! |---|---|---|
//! | data, receive | interface and IP, checksum ([`crate::ingress`]) → whose it is → delivery | [`sockets`] |
//! | data, transmit | record → route → build, cut into fragments, checksum → the port's queue | [`transmit`] |
//! | control | names and ends open and close; unknown ports, ICMP errors; path MTU; neighbours that are waited for | [`sockets`], [`errors`], [`path_mtu`], [`waiting`] |
//! | lanes past the engine | | [`lanes`] |
//!
//! Plain state; `engine/datagrams` joins it with the other stages. Memory that peers or programs make grow is bounded by the constants
//! of each file, and by quotas.

pub mod errors;
pub mod lanes;
pub mod path_mtu;
pub mod sockets;
#[cfg(test)]
mod tests;
pub mod transmit;
pub mod waiting;

pub use lanes::{Asked, Lanes, Outcome, Presented, SESSION_LANES_MAX};

use path_mtu::PathMtus;
use sockets::Sockets;
use toe_tcp::limit::RateLimit;
use transmit::TxQueue;
use waiting::Waiting;

/// Answers to datagrams of unknown ports.
const UNREACHABLES_A_SECOND: u32 = 1000;

/// All of the engine's UDP but for lanes. `P`: who is charged for a socket.
#[derive(Debug)]
pub struct Udp<P> {
    pub sockets: Sockets<P>,
    /// By the port's number.
    queues: Vec<TxQueue>,
    pub waiting: Waiting<P>,
    pub paths: PathMtus,
    pub unreachables: RateLimit,
    /// Of the next packet that is cut up (RFC 791, RFC 8200 section 4.5).
    ident: u32,
}

impl<P: Copy + Eq> Udp<P> {
    pub fn new(secret: [u8; 16]) -> Udp<P> {
        let [a, b, c, d, ..] = secret;
        Udp {
            sockets: Sockets::default(),
            queues: Vec::new(),
            waiting: Waiting::default(),
            paths: PathMtus::default(),
            unreachables: RateLimit::new(secret, UNREACHABLES_A_SECOND),
            // The first is nobody's to guess.
            ident: u32::from_le_bytes([d, b, a, c]),
        }
    }

    /// What waits to go out by a port.
    pub fn queue(&mut self, port: usize) -> &mut TxQueue {
        if self.queues.len() <= port {
            self.queues.resize_with(port + 1, TxQueue::default);
        }
        &mut self.queues[port]
    }

    pub fn has_queued(&self, port: usize) -> bool {
        self.queues.get(port).is_some_and(|queue| !queue.is_empty())
    }

    /// Whether one more record may be taken. A port that takes no frames must not keep others from theirs: what is for it is dropped.
    pub fn has_room(&mut self) -> bool {
        self.queues.is_empty() || self.queues.iter_mut().any(TxQueue::has_room)
    }

    /// Frames and datagrams that wait.
    pub fn held(&self) -> usize {
        self.queues.iter().map(TxQueue::len).sum::<usize>() + self.waiting.len()
    }

    pub fn next_ident(&mut self) -> u32 {
        self.ident = self.ident.wrapping_add(1);
        self.ident
    }
}
