//! The report behind `toe status`. Called by `attach`.

use crate::daemon::Daemon;
use crate::ports::PortSlot;
use crate::report::View;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use toe_abi::report::{AccountReport, PortReport, QuotaReport, SessionReport, StatusReport, UseReport};
use toe_base::SessionId;
use toe_engine::{Limit, Resource, User};
use toe_port::PortCounter;

/// What `toe status` shows to whom `view` is for. Counters and ports are everybody's, as those of /proc/net are.
pub(crate) fn status_report(daemon: &Daemon, view: &View<'_>) -> StatusReport {
    let sessions: Vec<SessionReport> = daemon
        .sessions
        .iter()
        .filter(|(_, session)| view.shows(session.peer.cred()))
        .map(|(id, session)| {
            let known = daemon.engine.view().session(id);
            SessionReport {
                id: id.0,
                pid: session.peer.pid,
                uid: session.peer.uid,
                netns: view.netns(known.netns),
                program: session.peer.program.clone(),
                flows: known.flows,
                listeners: known.listeners,
                receive_memory_used: known.receive_memory_used,
            }
        })
        .collect();
    let closing: &[SessionId] = if view.is_whole() { daemon.sessions.closing() } else { &[] };
    let closing = closing.iter().map(|&id| daemon.engine.view().session(id).receive_memory_used);
    // Not by a look at each: there may be tens of thousands. A listener that several processes have is each one's.
    let (flows, listeners) = if view.is_whole() {
        (daemon.engine.view().totals().flows as u32, daemon.engine.view().totals().listeners as u32)
    } else {
        (sessions.iter().map(|s| s.flows).sum(), sessions.iter().map(|s| s.listeners).sum())
    };
    StatusReport {
        name: daemon.reports.configured.name.clone(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        interface_version: toe_abi::INTERFACE_VERSION,
        uptime_secs: daemon.timing.clock.uptime_secs(),
        ports: daemon.links.ports.slots.iter().map(port_report).collect(),
        busy_permille: daemon.timing.meter.busy_permille(daemon.timing.clock.now()),
        flows,
        listeners,
        receive_memory_used: sessions.iter().map(|s| s.receive_memory_used).chain(closing).sum(),
        congestion: daemon.reports.configured.tcp.congestion.as_str().to_owned(),
        ecn: daemon.reports.configured.tcp.ecn.as_str().to_owned(),
        fast_open: daemon.reports.configured.tcp.fast_open.as_str().to_owned(),
        sessions,
        quotas: quotas(daemon),
        users: accounts(daemon, view),
        counters: all_counters(daemon),
        rounds: daemon.timing.stages.rounds(),
        stages: daemon.timing.stages.report(),
    }
}

/// What there is of everything.
fn quotas(daemon: &Daemon) -> BTreeMap<String, QuotaReport> {
    let quotas = daemon.engine.view().users().quotas();
    let report = |resource: Resource| {
        let Limit { total, user } = quotas.of(resource);
        let user = (user < total).then_some(user);
        (
            resource.name().to_owned(),
            QuotaReport { total, user, used: daemon.engine.view().users().used(resource) },
        )
    };
    Resource::ALL.into_iter().map(report).collect()
}

/// What each user has of it; to who may not see the others, only himself.
fn accounts(daemon: &Daemon, view: &View<'_>) -> Vec<AccountReport> {
    let report = |user: &User| {
        let part =
            |resource: Resource| UseReport { used: user.used(resource), refused: user.refused(resource) };
        let parts = Resource::ALL.map(|resource| (resource.name().to_owned(), part(resource)));
        let parts = parts.into_iter().filter(|(_, part)| part.used + part.refused > 0).collect();
        AccountReport {
            uid: user.cred.uid,
            netns: view.netns(user.cred.netns),
            parts,
            engine_us: daemon.schedule.budget.used_ns(user.cred) / 1000,
        }
    };
    let own = daemon.engine.view().users().account(view.who.cred());
    let is_shown = |user: &&User| view.is_whole() || own == user.cred;
    let users = daemon.engine.view().users().iter().filter(is_shown);
    let mut accounts: Vec<_> = users.map(report).collect();
    accounts.sort_by_key(|account| (account.uid, account.netns));
    accounts
}

/// Everything that is counted anywhere and is not zero.
fn all_counters(daemon: &Daemon) -> BTreeMap<String, u64> {
    let counts = &daemon.hosts.counts;
    let own = [
        ("attached", counts.attached),
        ("attach_refused", counts.attach_refused),
        ("bad_messages", counts.bad_messages),
        ("unread_answers", counts.unread_answers),
        ("connections_refused", daemon.hosts.server.refused()),
        ("wakes_by_users", daemon.hosts.server.handed().load(Ordering::Relaxed)),
        ("reports", daemon.reports.begun),
        ("parks", counts.parks),
        ("port_numbers_refused", daemon.links.port_numbers_refused),
    ];
    let own = own.into_iter().map(|(name, n)| (name.to_owned(), n));
    let engine = daemon.engine.view().counters().map(|(name, n)| (name.to_owned(), n));
    let ports = daemon.links.ports.slots.iter().flat_map(|slot| {
        let id = slot.id;
        let errors = (format!("port{id}_errors"), slot.errors);
        let counters: Vec<_> =
            slot.port.counters().iter().map(|(name, n)| (format!("port{id}_{name}"), n)).collect();
        counters.into_iter().chain([errors])
    });
    own.chain(engine).chain(ports).filter(|(_, n)| *n != 0).collect()
}

fn port_report(slot: &PortSlot) -> PortReport {
    let counters = slot.port.counters();
    PortReport {
        id: slot.id.0,
        name: slot.name.clone(),
        mac: slot.port.mac().to_string(),
        mtu: slot.port.mtu(),
        addrs: slot.addrs.clone(),
        is_veth: slot.is_veth,
        trouble: slot.trouble(),
        rx_frames: counters.get(PortCounter::RxFrames),
        tx_frames: counters.get(PortCounter::TxFrames),
        rx_bytes: counters.get(PortCounter::RxBytes),
        tx_bytes: counters.get(PortCounter::TxBytes),
    }
}
