//! What has become of a connection, as far as this process was told.

use toe_abi::command::{FLOW_WAITS_FOR_DATA, FlowInfo};

/// What has become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// `connect` is under way.
    Connecting {
        /// The SYN waits for the first bytes that the program sends, and has room for so many (TCP Fast Open); 0: it does not wait.
        syn_room: u32,
    },
    /// Established, perhaps with one or both directions shut.
    Open,
    Closed(HowClosed),
    /// Another process has it. The next call here shows the descriptor and takes it back.
    Moved {
        /// It was over, as far as this process was told, when the other one took it: that much is known.
        was: Option<HowClosed>,
    },
}

/// How it came to be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowClosed {
    /// Failed to connect, reset, or lost with the engine.
    Lost,
    /// Its program has taken it back ([`super::disconnect`]).
    Disconnected {
        /// The port that it had.
        port: Option<u16>,
    },
}

impl Link {
    pub const CONNECTING: Link = Link::Connecting { syn_room: 0 };

    pub fn is_connecting(&self) -> bool {
        matches!(self, Link::Connecting { .. })
    }

    pub fn is_closed(&self) -> bool {
        matches!(self, Link::Closed(_))
    }

    pub fn is_moved(&self) -> bool {
        matches!(self, Link::Moved { .. })
    }

    /// Whether it is over, or was when another process took it.
    pub fn was_over(&self) -> bool {
        matches!(self, Link::Closed(_) | Link::Moved { was: Some(_) })
    }

    pub fn is_disconnected(&self) -> bool {
        self.port_left().is_some()
    }

    /// Of one that its program has taken back: the port that it had, if it had one.
    pub fn port_left(&self) -> Option<Option<u16>> {
        match self {
            Link::Closed(HowClosed::Disconnected { port })
            | Link::Moved { was: Some(HowClosed::Disconnected { port }) } => Some(*port),
            _ => None,
        }
    }

    /// Bytes that the SYN waits for, and that go out with it.
    pub fn syn_room(&self) -> Option<u32> {
        match self {
            Link::Connecting { syn_room } if *syn_room > 0 => Some(*syn_room),
            _ => None,
        }
    }

    /// Whether the SYN waits for the first bytes that the program sends.
    pub fn waits_for_bytes(&self) -> bool {
        self.syn_room().is_some()
    }

    /// While it connects: whether the SYN waits is what the engine tells.
    pub fn read_syn_room(&mut self, info: &FlowInfo) {
        if let Link::Connecting { syn_room } = self {
            *syn_room = if info.flags & FLOW_WAITS_FOR_DATA != 0 { info.mss.into() } else { 0 };
        }
    }

    /// What the SYN waited for is with the engine. `false`: it did not wait.
    pub fn let_syn_go(&mut self) -> bool {
        let waited = self.waits_for_bytes();
        if waited {
            *self = Link::CONNECTING;
        }
        waited
    }

    /// The connection is gone. `false`: that is known.
    pub fn lose(&mut self) -> bool {
        let is_news = !self.is_closed() && !self.is_disconnected();
        if is_news {
            *self = Link::Closed(HowClosed::Lost);
        }
        is_news
    }

    /// Another process has it.
    pub fn moves(&mut self) {
        *self = match *self {
            Link::Closed(how) => Link::Moved { was: Some(how) },
            Link::Moved { was } => Link::Moved { was },
            Link::Connecting { .. } | Link::Open => Link::Moved { was: None },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_over_elsewhere_is_known_to_have_been_over_here() {
        let mut link = Link::Open;
        link.moves();
        assert!(link.is_moved() && !link.was_over());
        assert!(link.lose() && !link.lose(), "the engine is gone, and the other process with it");
        link.moves();
        link.moves();
        assert!(link.is_moved() && link.was_over() && !link.is_disconnected());
    }

    #[test]
    fn one_that_was_taken_back_is_not_lost_any_more() {
        let mut link = Link::Closed(HowClosed::Disconnected { port: Some(7) });
        assert!(!link.lose());
        link.moves();
        assert!(!link.lose() && link.is_moved());
        assert_eq!(link.port_left(), Some(Some(7)));
    }

    #[test]
    fn a_syn_waits_for_bytes_until_it_goes() {
        let mut link = Link::Connecting { syn_room: 5 };
        assert_eq!(link.syn_room(), Some(5));
        assert!(link.let_syn_go() && !link.let_syn_go());
        assert_eq!(link, Link::CONNECTING);
        let info = FlowInfo { flags: FLOW_WAITS_FOR_DATA, mss: 9, ..FlowInfo::default() };
        link.read_syn_room(&info);
        assert_eq!(link.syn_room(), Some(9));
        let mut link = Link::Open;
        link.read_syn_room(&info);
        assert_eq!(link, Link::Open);
    }
}
