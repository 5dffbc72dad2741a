//! Reports: what the engine says of itself agrees with what there is. A list that is made in steps has each connection that lasts once;
//! counters never go back; users are charged for what they have, and at the end for nothing.

use crate::node::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use toe_base::{FlowId, Instant, SessionId};
use toe_engine::{Resource, SocketCursor, SocketView};
use toe_tcp::state::TcpState;

/// Places that one step of a list looks at.
const PLACES: usize = 5;
/// Of what a session has no need of, so much may stay with it: less is not worth a system call.
const IDLE_MAX: u64 = 1 << 20;

/// A connection, known by its name in the session that has it.
type Known = (SessionId, FlowId, SocketAddr, SocketAddr);

/// What was reported so far.
#[derive(Debug, Default)]
pub struct Reports {
    counters: BTreeMap<&'static str, u64>,
    cursor: Option<SocketCursor>,
    /// Those that there were when the list began.
    began: Vec<Known>,
    listed: Vec<SocketView>,
}

impl Node {
    /// The next step of each report.
    pub fn check_reports(&mut self, clock: Instant) -> Result<(), String> {
        self.counters_rise()?;
        self.lengthen_list(clock)?;
        charges_agree(self)
    }

    fn counters_rise(&mut self) -> Result<(), String> {
        let counters: BTreeMap<_, _> = self.engine.view().counters().collect();
        let fell = |(name, was): &(&&'static str, &u64)| counters.get(*name).is_none_or(|n| n < *was);
        match self.reports.counters.iter().find(fell) {
            Some((name, was)) => Err(format!("counter {name} was {was}, and is {:?}", counters.get(name))),
            None => {
                self.reports.counters = counters;
                Ok(())
            }
        }
    }

    fn lengthen_list(&mut self, clock: Instant) -> Result<(), String> {
        let mut cursor = match self.reports.cursor {
            Some(cursor) => cursor,
            None => {
                (self.reports.began, self.reports.listed) = (self.lasting(), Vec::new());
                SocketCursor::at(clock)
            }
        };
        let before = self.reports.listed.len();
        let is_more = self.engine.view().more_sockets(&mut cursor, PLACES, &mut self.reports.listed);
        self.reports.cursor = is_more.then_some(cursor);
        let holders = self.reports.listed[before..].iter().flat_map(|view| &view.holders);
        let lives = |id: SessionId| self.sessions.iter().any(|s| s.id == id && !s.forgotten);
        if let Some((gone, _)) = holders.copied().find(|(id, _)| !lives(*id)) {
            return Err(format!("a socket of session {} is listed, which is forgotten", gone.0));
        }
        if is_more { Ok(()) } else { self.list_is_whole() }
    }

    fn list_is_whole(&self) -> Result<(), String> {
        let now = self.lasting();
        for lasting in self.reports.began.iter().filter(|known| now.contains(known)) {
            let (session, _, local, remote) = *lasting;
            let is_it = |view: &&SocketView| (view.local, view.remote) == (local, remote);
            let views: Vec<_> = self.reports.listed.iter().filter(is_it).collect();
            let holders: Vec<_> = views.iter().flat_map(|view| &view.holders).map(|(id, _)| *id).collect();
            if holders != [session] {
                return Err(format!("{lasting:?} is listed as held by {holders:?}"));
            }
        }
        Ok(())
    }

    fn lasting(&self) -> Vec<Known> {
        let flows = self.engine.view().audit_flows();
        let lasting = flows.filter(|f| f.state == TcpState::Established && !f.owner.is_nobody());
        lasting.map(|f| (f.owner.session, f.owner.flow_id, f.key.local_addr(), f.key.remote_addr())).collect()
    }
}

/// At any moment.
fn charges_agree(node: &Node) -> Result<(), String> {
    let (users, totals) = (node.engine.view().users(), node.engine.view().totals());
    // A socket of datagrams has a lane to the engine.
    let channels = totals.channels + totals.lanes + totals.datagram_sockets;
    let counted = [(Resource::Channels, channels), (Resource::Listeners, totals.listeners)];
    for (resource, there) in counted {
        if users.used(resource) != there as u64 {
            return Err(format!("{there} of {resource:?}, {} are charged", users.used(resource)));
        }
    }
    let live = node.sessions.iter().filter(|s| s.alive).count() as u64;
    if users.used(Resource::Sessions) < live {
        return Err(format!("{live} sessions live, {} are charged", users.used(Resource::Sessions)));
    }
    let beyond = |resource: &Resource| users.used(*resource) > users.quotas().of(*resource).total;
    match Resource::ALL.into_iter().find(beyond) {
        Some(resource) => Err(format!("there is more of {resource:?} than there may be")),
        None => Ok(()),
    }
}

/// When every program has let go of everything and time has passed.
pub fn nobody_is_charged(node: &Node) -> Result<(), String> {
    let users = node.engine.view().users();
    let live = node.sessions.iter().filter(|session| session.alive);
    let anchors: BTreeSet<u32> = live.clone().flat_map(|s| &s.free_anchors).map(|a| a.0).collect();
    let sessions = live.count() as u64;
    let left = [
        (Resource::Sessions, sessions),
        (Resource::Flows, node.engine.view().totals().datagram_sockets as u64),
        (Resource::Listeners, 0),
        (Resource::Anchors, anchors.len() as u64),
        (Resource::StagingMemory, 0),
    ];
    for (resource, expected) in left {
        if users.used(resource) != expected {
            return Err(format!("{} of {resource:?} are charged, not {expected}", users.used(resource)));
        }
    }
    if let Some(due) = node.engine.view().trim_due() {
        return Err(format!("pages that nobody needs wait since {due:?}"));
    }
    let idle = users.used(Resource::ReceiveMemory);
    if idle > sessions * IDLE_MAX {
        return Err(format!("{idle} bytes of {sessions} idle sessions were not given back"));
    }
    Ok(())
}
