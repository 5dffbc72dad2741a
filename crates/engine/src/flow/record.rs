//! A connection as plain data: no pointers, no heap, fixed layout. It can be copied, moved to another table or kept
//! in a snapshot; timers, ready lists and the lookup index are derived from it.
//!
//! Split by who works on it: [`Conn`] (who has it, between whom it is), [`Report`] (what the host has yet to be told), and
//! the transmission control block, which is [`toe_tcp`]'s.

use crate::control::listen::ListenerIdx;
use crate::flow::key::{FlowKey, NO_KEY};
use crate::flow::tenancy::Tenancy;
use crate::work::{Path, Sharing, UserIdx};
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_base::arena::Block;
use toe_base::{ChannelId, SeqNum, SessionId};
use toe_tcp::Tcb;
use toe_tcp::soft_error::Noted;
use toe_tcp::state::TcpState;

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub conn: Conn,
    pub report: Report,
    pub tcb: Tcb,
}

/// Who the connection is between, who holds it, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conn {
    pub key: FlowKey,
    pub path: Path,
    pub tenancy: Tenancy,
    /// Who is charged for it.
    pub user: UserIdx,
    /// RST follows what can be sent now.
    pub abort_when_idle: bool,
    /// When the program lets go, the peer is to get RST (SO_LINGER with time 0).
    pub abort_at_close: bool,
    /// In the lookup index under its key.
    pub indexed: bool,
    /// While it is, it is counted so ([`crate::control::in_use`]).
    pub sharing: Sharing,
    /// The listener that counts it as one that a program may have though its handshake is not complete (RFC 7413).
    pub early_at: Option<ListenerIdx>,
    /// Its segments come to the engine because it is steered by itself, not by a listener or a reserved port.
    pub steered: bool,
    /// Staging memory that holds moved send data.
    pub staged: Option<Block>,
    /// Nobody has it: where the options wait in staging memory that its last owner wrote down ([`toe_abi::command::SocketOptions`]).
    pub options: Option<Block>,
    /// A closed session whose region still holds send data.
    pub pinned: Option<SessionId>,
    /// Octets go through this slot of a channel, not through the engine.
    pub direct: Option<Direct>,
    /// No channel for this connection any more.
    pub no_direct: bool,
    /// How far it is on the way to a channel.
    pub earning: Earning,
    /// What it counts as, once no program has it.
    pub leftover: Leftover,
}

/// A connection that no program has any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    #[default]
    No,
    /// It is still closing.
    Orphan,
    /// The same, and its peer has all octets: but for the end of the stream nothing can be lost.
    ToldOrphan,
    TimeWait,
}

/// A connection's place in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    pub channel: ChannelId,
    pub slot: u32,
    pub side: Side,
    pub generation: u16,
}

/// Counts what a local connection receives, to tell when an attempt at a channel is due: at 4 units and then less and
/// less often, so that a short connection pays nothing and a refused one does not pay for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earning {
    units: u32,
    next: u32,
    /// Attempts that found the channel offered and not taken yet.
    early: u8,
}

impl Earning {
    /// The first attempt: an answer in two or three pieces (a header, a file) does not make a connection one that lasts.
    const FIRST: u32 = 4;
    /// Attempts after which a refused connection makes no more.
    const UNITS_MAX: u32 = 128;
    /// A channel that is being taken is asked for at every unit, this often; then ever more seldom, as the host may be
    /// one that takes none.
    const EARLY_MAX: u8 = 64;

    /// One more; whether an attempt is due.
    pub fn unit(&mut self) -> bool {
        self.units = self.units.saturating_add(1);
        self.units == self.next
    }

    pub fn refused(&mut self) {
        self.next = if self.units < Self::UNITS_MAX { self.units.next_power_of_two().max(2) } else { 0 };
        if self.next == self.units {
            self.next = self.units * 2;
        }
    }

    pub fn not_ready(&mut self) {
        let soon = self.early < Self::EARLY_MAX;
        self.early = self.early.saturating_add(1);
        self.next = if soon { self.units.saturating_add(1) } else { self.units.saturating_mul(2) };
    }
}

impl Default for Earning {
    fn default() -> Self {
        Earning { units: 0, next: Self::FIRST, early: 0 }
    }
}

/// What the owner has yet to be told beside what TCP has for it ([`Tcb::news`]), in this order: accepted, connected, direct, data, sent, soft error, peer closed,
/// reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub accepted: Option<toe_base::ListenerId>,
    pub connected: Option<Errno>,
    /// [`Conn::direct`] is new.
    pub direct: bool,
    /// The owner wants to hear of what has gone out.
    pub unsent: Option<Unsent>,
    /// The state and the soft error that the flow information record shows.
    pub state: TcpState,
    pub shown_error: Noted,
    pub peer_closed_told: bool,
    /// The owner waits for the acknowledgement of its end.
    pub tells_end: bool,
    pub reset: Option<Errno>,
    pub reset_told: bool,
}

/// What has gone out is news when fewer octets than half of the mark have not (`FlowOption::UnsentLowWater`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    pub low_water: u32,
    /// How far it has been told.
    pub told: SeqNum,
}

impl Flow {
    /// A connection that nobody has yet.
    pub fn new(key: FlowKey, path: Path, tcb: Tcb) -> Flow {
        let vacant = Flow::vacant();
        Flow { conn: Conn { key, path, ..vacant.conn }, tcb, ..vacant }
    }

    /// Whether what TCP and the engine have of its program agrees: TCP goes on alone when that has let go.
    pub fn is_consistent(&self) -> bool {
        !self.tcb.orphaned || matches!(self.conn.tenancy, Tenancy::Finishing { .. } | Tenancy::Nobody)
    }

    /// A record that stands for no connection.
    pub fn vacant() -> Flow {
        Flow {
            conn: Conn {
                key: NO_KEY,
                path: Path::Local,
                tenancy: Tenancy::Nobody,
                user: UserIdx::NOBODY,
                abort_when_idle: false,
                abort_at_close: false,
                indexed: false,
                sharing: Sharing::default(),
                early_at: None,
                steered: false,
                staged: None,
                options: None,
                pinned: None,
                direct: None,
                no_direct: false,
                earning: Earning::default(),
                leftover: Leftover::No,
            },
            report: Report::default(),
            tcb: Tcb::vacant(),
        }
    }
}
