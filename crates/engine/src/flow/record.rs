//! A connection as plain data: no pointers, no heap, fixed layout. It can be copied, moved to another table or kept
//! in a snapshot; timers, ready lists and the lookup index are derived from it.
//!
//! Split by who works on it: [`Conn`] (who has it, between whom it is), [`Report`] (what the host has yet to be told), and
//! the transmission control block, which is [`toe_tcp`]'s.

use crate::control::listener_idx::ListenerIdx;
use crate::flow::carrier::Carrier;
use crate::flow::key::{FlowKey, NO_KEY};
use crate::flow::tenancy::Tenancy;
use crate::work::{Path, Sharing, StreamCounts, UserIdx};
use toe_abi::errno::Errno;
use toe_base::arena::Block;
use toe_base::{ListenerId, SeqNum, SessionId};
use toe_tcp::Tcb;
use toe_tcp::pool::{Pool, PoolSlot};
use toe_tcp::record::{Noted, Status};
use toe_tcp::state::TcpState;

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    pub tcb: Tcb,
    pub conn: Conn,
    pub report: Report,
}

/// Who the connection is between, who holds it, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conn {
    pub key: FlowKey,
    pub path: Path,
    pub tenancy: Tenancy,
    /// Who is charged for it.
    pub user: UserIdx,
    pub abort: Abort,
    /// In the lookup index under its key.
    pub indexed: bool,
    /// While it is, it is counted so ([`crate::control::in_use`]).
    pub sharing: Sharing,
    /// Its segments come to the engine because it is steered by itself, not by a listener or a reserved port.
    pub steered: bool,
    pub carrier: Carrier,
    /// What it counts as, once no program has it.
    pub leftover: Leftover,
    /// Where [`AsidePool`] has what few connections have.
    pub aside: PoolSlot,
}

/// Where the asides of all connections lie that have one. Each can have one, as long as there is something in it.
pub type AsidePool = Pool<Aside, 1>;

/// What few connections have, and not for long: what goes from one owner to the next, or waits for one, and what Fast Open counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aside {
    /// Staging memory that holds moved send data.
    pub staged: Option<Block>,
    /// Nobody has it: where the options wait in staging memory that its last owner wrote down ([`toe_abi::command::SocketOptions`]).
    pub options: Option<Block>,
    /// A closed session whose region still holds send data.
    pub pinned: Option<SessionId>,
    /// The listener that counts it as one that a program may have though its handshake is not complete (RFC 7413).
    pub early_at: Option<ListenerIdx>,
}

impl Aside {
    /// What it has of the staging memory.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        self.staged.into_iter().chain(self.options)
    }
}

/// Whether and when the peer gets RST for FIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Abort {
    #[default]
    No,
    /// When the program lets go of it (SO_LINGER with time 0).
    AtClose,
    /// Behind what can be sent now.
    WhenIdle,
}

/// A connection that no program has any more. In TIME_WAIT it counts as none: it is about to have another record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    #[default]
    No,
    /// It is still closing.
    Orphan,
    /// The same, and its peer has all bytes: but for the end of the stream nothing can be lost.
    SentOrphan,
}

/// What the owner has yet to be told beside what TCP has for it ([`Tcb::events`]), in this order: accepted, connected, direct, data, sent, soft error, peer closed,
/// reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub opened: OpenNotice,
    /// That its bytes go through a channel is new.
    pub direct: bool,
    /// What has gone out.
    pub unsent: Unsent,
    /// The state and the soft error that the flow information record shows.
    pub state: TcpState,
    pub published_error: Noted,
    pub peer_closed_notified: bool,
    /// The owner waits for the acknowledgement of its end.
    pub tells_end: bool,
    pub reset: Option<ResetNotice>,
}

/// How the connection came to its owner, which has yet to hear of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenNotice {
    #[default]
    None,
    Accepted(ListenerId),
    Connected(Errno),
}

/// Why it has ended, and whether the owner knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetNotice {
    pub errno: Errno,
    pub notified: bool,
}

impl Report {
    pub const fn is_accepted_untold(&self) -> bool {
        matches!(self.opened, OpenNotice::Accepted(_))
    }

    /// The owner need not hear that it has accepted it. Returns whether that was to come.
    pub fn take_accepted(&mut self) -> bool {
        let was_untold = self.is_accepted_untold();
        if was_untold {
            self.opened = OpenNotice::None;
        }
        was_untold
    }

    /// Whoever has it next hears of the end again.
    pub fn tell_end_again(&mut self) {
        self.peer_closed_notified = false;
        if let Some(reset) = &mut self.reset {
            reset.notified = false;
        }
    }
}

/// What has gone out is news when fewer bytes than half of the mark have not (`FlowOption::UnsentLowWater`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// 0: the owner does not want to hear of it.
    pub low_water: u32,
    /// How far it has been told.
    pub notified: SeqNum,
}

/// Each connection costs this much: a field more is a decision.
const _: () = assert!(size_of::<Flow>() <= 496 && size_of::<Conn>() <= 108);

impl Flow {
    /// A connection that nobody has yet.
    pub fn new(key: FlowKey, path: Path, tcb: Tcb) -> Flow {
        let vacant = Flow::vacant();
        Flow { conn: Conn { key, path, ..vacant.conn }, tcb, ..vacant }
    }

    /// How far its programs have come. What was announced and not given back is to be read yet.
    pub fn counts(&self) -> StreamCounts {
        let Tcb { sending, receiving, status: Status { traffic, .. }, .. } = &self.tcb;
        let unread = receiving.buffer.unconsumed(self.tcb.data_nxt());
        let counts = StreamCounts {
            read: traffic.received.cast_signed() - i64::from(unread),
            written: traffic.acked + u64::from(sending.queue.len()),
        };
        // Both ends of a channel say by them what comes before it: a count that is wrong by one stops the connection.
        debug_assert_eq!(
            counts.written as u32,
            self.tcb.queue_end().distance_from(self.tcb.handshake.iss.plus(1))
        );
        counts
    }

    /// What the program wants of the connection's end. RST that is on its way stays on its way.
    pub fn set_abort_at_close(&mut self, wanted: bool) {
        match self.conn.abort {
            Abort::No | Abort::AtClose => self.conn.abort = if wanted { Abort::AtClose } else { Abort::No },
            Abort::WhenIdle => {}
        }
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
                abort: Abort::No,
                indexed: false,
                sharing: Sharing::default(),
                steered: false,
                carrier: Carrier::default(),
                leftover: Leftover::No,
                aside: PoolSlot::default(),
            },
            report: Report::default(),
            tcb: Tcb::vacant(),
        }
    }
}
