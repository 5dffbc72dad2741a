//! The host interface's engine side: sessions and what they may name, commands in, completions out, claims.
//!
//! Called by [`crate::Engine`] with entries that the daemon copied out of a session's rings. Everything a host sent
//! is checked here for range and ownership; behind this folder it is trusted.

pub mod anchors;
pub mod captures;
pub mod channels;
pub mod closing;
pub mod outbox;
pub mod session;
pub mod slots;
pub mod users;

use crate::work::{RxDatagram, RxDatagramError};
use toe_base::DatagramId;
use toe_tcp::memory::HostMemory;
use toe_wire::link::FrameTail;

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    ByLane,
    ByKernel,
    QueueFull,
    /// The driver cannot hand it over.
    Nowhere,
}

/// The memory and rings of the sessions, as the engine reaches them. Served by the daemon over shared memory, by
/// tests over a `Vec`. Session 0 is the engine's own staging memory of [`crate::STAGING_LEN`] bytes.
///
/// Offsets that the engine passes were checked against the session's layout; an implementation still checks its own
/// bounds and ignores what does not fit.
pub trait HostSide: HostMemory {
    // Datagrams: a driver to which no sockets are shown gets none.

    /// Hands a datagram to the session that alone has the socket (`to`), or to the kernel, which knows whose it is. Of one that is
    /// several ([`RxDatagram::segment`]) all go by the lane, or are lost there; else `Nowhere`: they come one by one.
    fn deliver_datagram(&mut self, _to: Option<DatagramId>, _datagram: &RxDatagram<'_>) -> Delivered {
        Delivered::Nowhere
    }
    /// The same of datagrams whose bytes are still with the link: those of the frame from there on belong where `text` is, whose own have no
    /// meaning. `None`: it is to be delivered by [`HostSide::deliver_datagram`]; its bytes are in `bytes` if there are any, and else
    /// still with the link.
    fn deliver_datagram_tail(
        &mut self,
        _to: DatagramId,
        _datagram: &RxDatagram<'_>,
        _tail: (&dyn FrameTail, usize),
        _bytes: &mut Vec<u8>,
    ) -> Option<Delivered> {
        None
    }
    /// Hands the kernel an ICMP error about a datagram of a socket's. `false`: it cannot.
    fn deliver_datagram_error(&mut self, _error: &RxDatagramError<'_>) -> bool {
        false
    }
}
