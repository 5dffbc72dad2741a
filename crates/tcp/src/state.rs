//! The states of a connection and the one table of their transitions (RFC 9293 section 3.3.2, figure 5).
//! Nobody assigns a state but by [`TcpState::after`] (`make lint` looks). LISTEN is no state of a connection: who listens
//! keeps records of its own.

/// RFC 9293 section 3.3.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpState {
    #[default]
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// What moves a connection from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpEvent {
    /// Active OPEN.
    Open,
    /// A SYN at a listener: the connection's own record begins.
    Accept,
    /// The peer's SYN arrived without an ACK of ours (simultaneous open).
    Syn,
    /// The peer acknowledged our SYN, and its own SYN has arrived.
    SynAcked,
    /// The program closed; our FIN is queued.
    Close,
    /// The peer's FIN is in order.
    Fin,
    /// The peer acknowledged our FIN.
    FinAcked,
    /// The peer's RST is believed.
    Reset,
    /// USER TIMEOUT (section 3.10.8), 2 MSL of TIME-WAIT, the time that an orphan has in FIN-WAIT-2.
    Timeout,
    /// This side deletes the TCB: the ABORT call (section 3.10.5), a close before the SYN is answered, a passive connection
    /// that goes back to LISTEN, a peer that cannot be reached.
    Delete,
}

impl TcpState {
    pub const ALL: [TcpState; 10] = [
        TcpState::Closed,
        TcpState::SynSent,
        TcpState::SynReceived,
        TcpState::Established,
        TcpState::FinWait1,
        TcpState::FinWait2,
        TcpState::CloseWait,
        TcpState::Closing,
        TcpState::LastAck,
        TcpState::TimeWait,
    ];

    /// The state after `event`. An event that a state does not know leaves it as it is.
    #[must_use]
    pub const fn after(self, event: TcpEvent) -> TcpState {
        match (self, event) {
            (TcpState::Closed, TcpEvent::Open) => TcpState::SynSent,
            (TcpState::Closed, TcpEvent::Accept) => TcpState::SynReceived,
            (TcpState::SynSent, TcpEvent::Syn) => TcpState::SynReceived,
            (TcpState::SynSent | TcpState::SynReceived, TcpEvent::SynAcked) => TcpState::Established,
            (TcpState::Established, TcpEvent::Close) => TcpState::FinWait1,
            (TcpState::CloseWait, TcpEvent::Close) => TcpState::LastAck,
            (TcpState::Established, TcpEvent::Fin) => TcpState::CloseWait,
            (TcpState::FinWait1, TcpEvent::Fin) => TcpState::Closing,
            (TcpState::FinWait2, TcpEvent::Fin) => TcpState::TimeWait,
            (TcpState::FinWait1, TcpEvent::FinAcked) => TcpState::FinWait2,
            (TcpState::Closing, TcpEvent::FinAcked) => TcpState::TimeWait,
            (TcpState::LastAck, TcpEvent::FinAcked) => TcpState::Closed,
            (_, TcpEvent::Reset | TcpEvent::Timeout | TcpEvent::Delete) => TcpState::Closed,
            (state, _) => state,
        }
    }

    /// The program may still queue data.
    pub const fn may_send(self) -> bool {
        matches!(
            self,
            TcpState::SynSent | TcpState::SynReceived | TcpState::Established | TcpState::CloseWait
        )
    }

    /// The peer's data is accepted (RFC 9293 section 3.10.7.4, seventh step).
    pub const fn accepts_text(self) -> bool {
        matches!(self, TcpState::Established | TcpState::FinWait1 | TcpState::FinWait2)
    }

    /// Both SYNs are acknowledged.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, TcpState::Closed | TcpState::SynSent | TcpState::SynReceived)
    }

    /// As `ss` and `netstat` spell it.
    pub const fn name(self) -> &'static str {
        match self {
            TcpState::Closed => "CLOSED",
            TcpState::SynSent => "SYN-SENT",
            TcpState::SynReceived => "SYN-RECV",
            TcpState::Established => "ESTAB",
            TcpState::FinWait1 => "FIN-WAIT-1",
            TcpState::FinWait2 => "FIN-WAIT-2",
            TcpState::CloseWait => "CLOSE-WAIT",
            TcpState::Closing => "CLOSING",
            TcpState::LastAck => "LAST-ACK",
            TcpState::TimeWait => "TIME-WAIT",
        }
    }

    /// Linux's number (include/net/tcp_states.h), as TCP_INFO carries it.
    pub const fn linux_number(self) -> u8 {
        match self {
            TcpState::Established => 1,
            TcpState::SynSent => 2,
            TcpState::SynReceived => 3,
            TcpState::FinWait1 => 4,
            TcpState::FinWait2 => 5,
            TcpState::TimeWait => 6,
            TcpState::Closed => 7,
            TcpState::CloseWait => 8,
            TcpState::LastAck => 9,
            TcpState::Closing => 11,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table, as a picture that a change has to change.
    #[test]
    fn the_transition_table_is_figure_5_of_rfc_9293() {
        use TcpEvent::{Accept, Close, Fin, FinAcked, Open, Syn, SynAcked};
        let events = [Open, Accept, Syn, SynAcked, Close, Fin, FinAcked];
        let mut table = String::new();
        for state in TcpState::ALL {
            for event in events {
                let next = state.after(event);
                if next != state {
                    table += &format!("{} {event:?} {}\n", state.name(), next.name());
                }
            }
        }
        let want = "\
CLOSED Open SYN-SENT
CLOSED Accept SYN-RECV
SYN-SENT Syn SYN-RECV
SYN-SENT SynAcked ESTAB
SYN-RECV SynAcked ESTAB
ESTAB Close FIN-WAIT-1
ESTAB Fin CLOSE-WAIT
FIN-WAIT-1 Fin CLOSING
FIN-WAIT-1 FinAcked FIN-WAIT-2
FIN-WAIT-2 Fin TIME-WAIT
CLOSE-WAIT Close LAST-ACK
CLOSING FinAcked TIME-WAIT
LAST-ACK FinAcked CLOSED
";
        assert_eq!(table, want);
    }

    /// What figure 5 leaves out of the picture, being the same everywhere.
    #[test]
    fn every_state_can_be_left_at_once() {
        for state in TcpState::ALL {
            for event in [TcpEvent::Reset, TcpEvent::Timeout, TcpEvent::Delete] {
                assert_eq!(state.after(event), TcpState::Closed, "{} {event:?}", state.name());
            }
        }
    }
}
