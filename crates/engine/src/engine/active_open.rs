//! An active OPEN (RFC 9293 section 3.10.1): from where, by which path, and the record that begins with it.

use super::names::endpoint_of;
use super::{Edit, Engine};
use crate::control::names;
use crate::control::names::{Purpose, Twin};
use crate::control::process_each::Whose;
use crate::control::route::Route;
use crate::counter::Counter;
use crate::flow::isn::{initial_sequence_number, timestamp_offset};
use crate::flow::key::{FlowKey, Scope};
use crate::flow::record::Flow;
use crate::flow::tenancy::TenancyEvent;
use crate::hostif::anchors::AnchorTarget;
use crate::work::{Owner, Path};
use toe_abi::command::{CONNECT_FAST_OPEN, CONNECT_KERNEL_TOO, ConnectArgs, NO_HANDLE};
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{Addr, AnchorHandle, Endpoint, FlowId, Instant, SessionId};
use toe_tcp::memory::HostMemory;
use toe_tcp::open;
use toe_tcp::open::OpenParams;

impl Engine {
    /// The addresses of the connection are known at once, though it is not established.
    pub(super) fn connect_to<H: HostMemory>(
        &mut self,
        now: Instant,
        owner: Owner,
        args: &ConnectArgs,
        host: &mut H,
    ) -> Result<FlowId, Errno> {
        let presented = self.hostif.take_twin(&mut self.names, owner.session, args.twin);
        let mut remote = endpoint_of(args.remote)?;
        if remote.addr.is_unspecified() {
            // As Linux has it: connecting to INADDR_ANY means this host.
            remote.addr = remote.addr.localhost();
        }
        if remote.port == 0 {
            return Err(Errno::ECONNREFUSED);
        }
        let scope = self.hostif.sessions.get(owner.session).ok_or(Errno::EBADF)?.scope;
        let can_ask_kernel = args.flags & CONNECT_KERNEL_TOO != 0;
        let (path, source) = self
            .path_to((now, can_ask_kernel), scope, remote)
            .inspect_err(|_| self.counters.add(Counter::ConnectRefused))?;
        let asked = if args.local.family == 0 { None } else { Some(endpoint_of(args.local)?) };
        let local = self.local_name(owner.session, presented, asked, source)?;
        let port = local.port;
        let name = FlowKey { local, remote, scope };
        let key = self.choose_key(now, path, name)?;
        if port != 0 && self.ip.is_shared(path) && !self.ip.steering.has_room_for_flow() {
            return Err(Errno::ENOBUFS);
        }
        let iss = initial_sequence_number(&self.config.secret, &key, now);
        let iss = self.records().replace(&key).map_or(iss, |beyond| iss.later(beyond));
        let params = OpenParams {
            is_local: path == Path::Local,
            is_v4: key.is_v4(),
            iss,
            timestamp_offset: timestamp_offset(&self.config.secret, &key),
            mss: self.ip.path_mss(path, remote.addr),
            tcp: self.tcp.config,
            now,
        };
        let (user, flow) =
            (self.hostif.sessions.user_of(owner.session), Flow::new(key, path, open::active(&params)));
        let idx = self.records().insert_flow(user, flow)?;
        self.edit(idx, |engine, idx| begin_open(engine, now, idx, (owner, args), host))
    }

    /// Where a connection comes from that a program asked to have from there, and whose way has this `source`; port 0: any.
    fn local_name(
        &self,
        session: SessionId,
        presented: Option<Twin>,
        asked: Option<Endpoint>,
        source: Addr,
    ) -> Result<Endpoint, Errno> {
        let Some(asked) = asked else { return Ok(Endpoint { addr: source, port: 0 }) };
        let record = self.hostif.sessions.get(session).ok_or(Errno::EBADF)?;
        let any = asked.addr.is_unspecified();
        let local = if any { asked.at(source) } else { asked };
        if !any && !self.ip.has_addr(record.scope, local.addr) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if local.addr.is_v4() != source.is_v4() {
            return Err(Errno::ENETUNREACH);
        }
        if local.port != 0 {
            names::require(presented, record.cred.netns, local, Purpose::Connect)?;
            if self.listeners.others_listen_at(record.scope, local, record.cred.uid) {
                return Err(Errno::EADDRINUSE);
            }
        }
        Ok(local)
    }

    /// The path to `remote` and the source address to use.
    fn path_to(
        &mut self,
        (now, can_ask_kernel): (Instant, bool),
        scope: Scope,
        remote: Endpoint,
    ) -> Result<(Path, Addr), Errno> {
        match self.ip.route(scope, remote.addr) {
            Some(Route::Local { source }) => {
                // Said at once, so that the caller can try the kernel's stack.
                let idx = self.listeners.find(scope, remote);
                let listener = idx.and_then(|idx| self.listeners.get_mut(idx)).ok_or(Errno::ECONNREFUSED)?;
                // Every kernel has the loopback addresses; others may be the engine's alone.
                if can_ask_kernel && remote.addr.is_loopback() {
                    let whose = listener.process_each.next(now);
                    if whose == Whose::Kernels || listener.holders.is_on_its_way() {
                        return Err(Errno::EHOSTDOWN);
                    }
                    if whose == Whose::EnginesLast {
                        // Those that it was tried with shall ask as well.
                        self.names.note_lapse();
                    }
                }
                Ok((Path::Local, source))
            }
            Some(Route::Via { port, source, next_hop }) => {
                let neighbour =
                    self.ip.neighbour((&self.flows, &self.udp), port, next_hop).ok_or(Errno::ENOBUFS)?;
                Ok((Path::Port { port, neighbour }, source))
            }
            None => Err(Errno::ENETUNREACH),
        }
    }
}

/// Its session has the connection, and knows its addresses at once, though it is not established.
fn begin_open<H: HostMemory>(
    engine: &mut Engine,
    now: Instant,
    idx: Edit<'_>,
    (mut owner, args): (Owner, &ConnectArgs),
    host: &mut H,
) -> Result<FlowId, Errno> {
    let may = promised(args).is_some() || engine.hostif.sessions.may_have_flow(owner.session);
    let session = engine.hostif.sessions.get_mut(owner.session).filter(|_| may);
    let named = session.and_then(|session| match promised(args) {
        Some(id) => session.flows.fulfil(id, *idx).then_some(id),
        None => session.flows.insert(*idx),
    });
    let Some(flow_id) = named else {
        engine.records().remove_flow(idx);
        return Err(Errno::EMFILE);
    };
    owner.flow_id = flow_id;
    let anchor = AnchorHandle(args.anchor);
    engine.hostif.own(&mut engine.flows, idx, TenancyEvent::Connected { owner, lifetime: anchor });
    engine.hostif.anchors.bind(owner.session, owner.queue_set, anchor, AnchorTarget::Flow(*idx));
    engine.flows.get_mut(idx).tcb.receiving.buffer.session = owner.session;
    engine.counters.add(Counter::ActiveOpens);
    if args.flags & CONNECT_FAST_OPEN != 0 {
        engine.records().open_fast(now, idx);
    }
    engine.hostif.write_owner_word(&engine.flows, *idx, Owned::Held, host);
    engine.records().memory().tell_flow_info(idx, host);
    Ok(flow_id)
}

/// The id that a connection is to have, if it was given in advance.
pub(super) fn promised(args: &ConnectArgs) -> Option<FlowId> {
    (args.flow != NO_HANDLE).then(|| FlowId::from_raw(args.flow))
}
