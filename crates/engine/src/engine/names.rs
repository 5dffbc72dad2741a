//! Names: kernel sockets are shown and go, and with them what rests on them ([`crate::control::names`] has the rule); and
//! which addresses a session's namespace has.

use super::Engine;
use crate::control::listen::Listeners;
use crate::control::listener_idx::ListenerIdx;
use crate::control::names::{Names, Rest, Twin};
use crate::control::route::Route;
use crate::flow::key::{FlowKey, Scope};
use crate::flow::record::Flow;
use crate::hostif::users::Resource;
use crate::parts::{HostInterface, IpLayer, Records};
use crate::work::{RxWork, Sharing};
use toe_abi::command::{LISTEN_SHARES_SHIFT, LISTEN_V6_ONLY, ListenArgs, NO_HANDLE, WireAddr};
use toe_abi::errno::Errno;
use toe_base::{Addr, Endpoint, FlowId, FlowIdx, Instant, SessionId};
use toe_tcp::segment::Segment;
use toe_tcp::state::TcpState;

impl Engine {
    // ---- something happened ----

    /// The session showed a kernel socket; the answer is its handle, for one command. `None`: it has shown too many that no
    /// command has named.
    pub fn add_twin(&mut self, session: SessionId, twin: Twin) -> Option<u32> {
        let record = self.hostif.sessions.get_mut(session).filter(|record| record.is_open())?;
        let id = record.twins.insert(twin)?;
        self.names.rests.add(&twin, Rest::Presented(session, id));
        Some(id.raw())
    }
}

impl Records<'_> {
    /// Whether a SYN that meets a connection which a program is opening is for another user's listener all the same.
    pub(super) fn is_listeners(&self, idx: FlowIdx, work: &RxWork<'_>) -> bool {
        let Segment { ack, flags, .. } = work.rx.segment;
        if !flags.syn() || flags.rst() || ack.is_some() {
            return false;
        }
        let Flow { conn, tcb, .. } = self.flows.get(idx);
        if tcb.state != TcpState::SynSent {
            return false;
        }
        let uid =
            self.hostif.sessions.get(conn.tenancy.owner().session).map_or(u32::MAX, |record| record.cred.uid);
        self.listeners.others_listen_at(work.key.scope, work.key.local, uid)
    }

    // ---- views ----

    // ---- asked by a host ----

    /// [`toe_abi::entry::FlowOption::SharesName`].
    pub(super) fn set_sharing(&mut self, session: SessionId, flow: FlowId, value: u32) {
        let Some(idx) = self.hostif.sessions.get(session).and_then(|record| record.flows.get(flow)) else {
            return;
        };
        self.edit(idx, |records, idx| {
            let conn = &mut records.flows.get_mut(idx).conn;
            let before = core::mem::replace(&mut conn.sharing, Sharing::from_value(value));
            if conn.indexed && before != conn.sharing {
                let FlowKey { scope, local, .. } = conn.key;
                records.names.in_use.remove(scope, local, before);
                records.names.in_use.add(scope, local, conn.sharing, conn.user);
            }
        });
    }

    // ---- shared by the files of this folder ----

    /// Takes a listener out of the table, and what its anchors rested on with it.
    pub(super) fn remove_listener(&mut self, idx: ListenerIdx) -> Option<crate::control::listen::Listener> {
        let listener = self.listeners.close(idx)?;
        self.names.note_lapse();
        self.hostif.sessions.users_mut().give(listener.user, Resource::Listeners, 1);
        for (identity, anchor) in listener.holders.rests() {
            self.names.rests.remove(identity, Rest::Listener(idx, anchor));
        }
        self.names.leave(listener.scope);
        if listener.is_steered {
            self.stop_steering_listener(listener.local);
        }
        Some(listener)
    }
}

pub(super) fn endpoint_of(addr: WireAddr) -> Result<Endpoint, Errno> {
    addr.to_endpoint().ok_or(Errno::EOPNOTSUPP)
}

/// A link-local address of this link, whatever zone it was given with.
pub(super) fn in_zone(addr: Addr, zone: u32) -> Addr {
    if addr.is_link_local() { Addr::v6(addr.to_v6(), zone) } else { addr }
}

impl IpLayer {
    /// Whether a namespace has the address: the engine's own those of its links, and each its loopback.
    pub(super) fn has_addr(&self, scope: Scope, addr: Addr) -> bool {
        self.routes.is_own(addr) && (scope.is_own() || addr.is_loopback())
    }

    /// The way to an address out of a namespace: out of another than the engine's own to its loopback, and nowhere else.
    pub(super) fn route(&self, scope: Scope, addr: Addr) -> Option<Route> {
        let may = scope.is_own() || addr.is_loopback();
        self.routes.to(addr).filter(|_| may)
    }
}

impl HostInterface {
    /// Whether a socket may be bound there, as far as connections of this engine are concerned; EADDRINUSE: it may not.
    pub(super) fn asks_to_bind(
        &mut self,
        names: &mut Names,
        now: Instant,
        session: SessionId,
        args: &ListenArgs,
    ) -> Result<(), Errno> {
        let record = self.sessions.get(session).ok_or(Errno::EBADF)?;
        names.in_use.forget_retained(now, record.scope);
        let local = args.local.to_endpoint().ok_or(Errno::EOPNOTSUPP)?;
        let kind = Sharing::from_value(args.flags >> LISTEN_SHARES_SHIFT);
        let name = (local, args.flags & LISTEN_V6_ONLY != 0);
        let refuses = names.in_use.refuses(record.scope, name, kind, record.user);
        if refuses { Err(Errno::EADDRINUSE) } else { Ok(()) }
    }

    /// A session has gone: what it has shown says nothing any more.
    pub(super) fn forget_twins(&mut self, names: &mut Names, session: SessionId) {
        let Some(record) = self.sessions.get_mut(session) else { return };
        for (id, twin) in record.twins.drain() {
            names.rests.remove(twin.identity, Rest::Presented(session, id));
        }
    }

    /// What was shown under a handle, which the command that names it uses up.
    pub(super) fn take_twin(&mut self, names: &mut Names, session: SessionId, handle: u32) -> Option<Twin> {
        if handle == NO_HANDLE {
            return None;
        }
        let id = FlowId::from_raw(handle);
        let twin = self.sessions.get_mut(session)?.twins.remove(id)?;
        names.rests.remove(twin.identity, Rest::Presented(session, id));
        Some(twin)
    }
}

impl Listeners {
    /// Takes an anchor from a listener. `true`: it was the last one.
    pub(super) fn unanchor(
        &mut self,
        names: &mut Names,
        idx: ListenerIdx,
        anchor: toe_base::AnchorHandle,
    ) -> bool {
        let Some(listener) = self.get_mut(idx) else { return false };
        if let Some(twin) = listener.holders.drop_lifetime(anchor) {
            names.rests.remove(twin.identity, Rest::Listener(idx, anchor));
        }
        listener.holders.is_unanchored()
    }
}
