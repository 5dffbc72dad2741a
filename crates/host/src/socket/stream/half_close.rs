//! Which directions of a connection are over: by its program's `shutdown`, and by the peer's FIN. Either side may go on sending when the
//! other has ended (RFC 9293 section 3.6: half-closed).

use crate::socket::Shutdown;

/// The half-close of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfClose {
    /// What the program has shut.
    shut: Option<Shutdown>,
    peer_closed: bool,
    /// Bytes came through the channel after both directions were shut: the peer is to learn of it by RST, as from Linux. Those that
    /// come by the engine came to it before, or it would have answered them itself; here they may be announced once more.
    is_unwanted: bool,
}

impl HalfClose {
    /// The program has shut it.
    pub fn shut(&mut self, how: Shutdown) {
        self.shut = Some(self.shut.map_or(how, |before| before.and(how)));
    }

    /// What the program has shut up to now.
    pub fn shut_by_program(&self) -> Option<Shutdown> {
        self.shut
    }

    pub fn is_read_shut(&self) -> bool {
        matches!(self.shut, Some(Shutdown::Read | Shutdown::Both))
    }

    pub fn is_write_shut(&self) -> bool {
        matches!(self.shut, Some(Shutdown::Write | Shutdown::Both))
    }

    /// Whether no more is to be read than what is here.
    pub fn is_read_over(&self) -> bool {
        self.peer_closed || self.is_read_shut()
    }

    /// Whether the peer's FIN has come, in order.
    pub fn has_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// It has come. `false`: it had before.
    pub fn on_peer_closed(&mut self) -> bool {
        !std::mem::replace(&mut self.peer_closed, true)
    }

    /// Bytes came through the channel.
    pub fn on_direct_data(&mut self) {
        self.is_unwanted |= self.shut == Some(Shutdown::Both);
    }

    /// Whether the peer is to be told that nobody takes its bytes.
    pub fn is_unwanted(&self) -> bool {
        self.is_unwanted
    }

    /// The connection is taken back: the next one begins with both directions open.
    pub fn reopen(&mut self) {
        (self.shut, self.peer_closed) = (None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_direction_after_the_other_makes_both() {
        for (first, second) in [(Shutdown::Read, Shutdown::Write), (Shutdown::Write, Shutdown::Read)] {
            let mut half_close = HalfClose::default();
            half_close.shut(first);
            half_close.shut(first);
            assert_eq!(half_close.shut_by_program(), Some(first));
            assert_ne!(half_close.is_read_shut(), half_close.is_write_shut());
            half_close.shut(second);
            assert_eq!(half_close.shut_by_program(), Some(Shutdown::Both));
            assert!(half_close.is_read_shut() && half_close.is_write_shut());
        }
    }

    #[test]
    fn bytes_are_unwanted_once_nobody_reads_nor_writes() {
        let mut half_close = HalfClose::default();
        half_close.shut(Shutdown::Read);
        half_close.on_direct_data();
        assert!(!half_close.is_unwanted());
        half_close.shut(Shutdown::Write);
        half_close.on_direct_data();
        assert!(half_close.is_unwanted());
    }

    #[test]
    fn the_peers_end_is_told_once_and_is_no_shutdown() {
        let mut half_close = HalfClose::default();
        assert!(half_close.on_peer_closed() && !half_close.on_peer_closed());
        assert!(half_close.is_read_over() && !half_close.is_read_shut());
        half_close.reopen();
        assert!(!half_close.is_read_over());
    }
}
