//! Follows the kernel: keeps the engine's shared ports at the addresses, routes and neighbours that the kernel has, and
//! takes up any port's interface again that went away and came back. Owned by the run loop, which calls
//! [`Links::follow`] when the netlink socket is readable, and [`Links::serve`] for what the engine wants.
//!
//! Links, addresses and neighbours are followed by what the kernel tells of each change. Of routes it does not tell all
//! (those that go with an interface go in silence), so any event of that kind is a reason to ask for all of them.

use super::events::{KernelEvent, LinkEvent, NeighbourEvent, RouteEvent};
use super::netlink::{List, Looked, Netlink};
use super::reserve::Reserved;
use crate::poller::{Poller, Token};
use crate::ports::Ports;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddrV4;
use toe_base::{Addr, Endpoint, Instant, PortId};
use toe_engine::{Engine, KernelRoute, KernelVia, NetworkChange, NetworkRequest, SteerChange};
use toe_wire::link::MacAddr;

/// How long the kernel may take for the lists that an engine begins with.
const BEGIN_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// For each route of a list so long until the next one is asked for; to read a route takes a tenth of that.
const ROUTES_SPACING_US: u64 = 20;

/// How soon after the kernel had no port number it is asked for one again.
const RESERVE_AGAIN_AFTER_US: u64 = 1_000_000;

/// So often in a row a list that changed while it came is asked for again at once.
const FAILURES_MAX: u32 = 100;

/// What came of the list that is being received, and what the kernel told of meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    links: HashSet<u32>,
    addrs: HashSet<(u32, Addr, u8)>,
    neighbours: HashSet<(u32, Addr)>,
    routes: Vec<RouteEvent>,
}

/// What is known of the kernel.
#[derive(Debug)]
pub struct Follower {
    netlink: Netlink,
    /// Every interface, by its number.
    links: HashMap<u32, LinkEvent>,
    /// The ports whose interface is there.
    ports: HashMap<u32, PortId>,
    /// Interface, address and prefix length: an address may be there with several.
    addrs: HashSet<(u32, Addr, u8)>,
    /// Addresses that are gone, and that connections still have.
    lingering: HashSet<(PortId, Addr)>,
    /// The kernel's neighbours that it knows, and whether it doubts: it does not tell anew of one that it is asked for.
    neighbours: HashMap<(u32, Addr), (MacAddr, bool)>,
    /// The list that is being received, what came of it, and those that are due.
    pub(crate) receiving: Option<List>,
    pub(crate) listed: Listed,
    due: VecDeque<List>,
    /// Lists in a row that did not come whole.
    failures: u32,
    reserved: Reserved,
    /// Routes are not asked for before this.
    routes_not_before: Instant,
}

impl Follower {
    pub(crate) fn open() -> std::io::Result<Follower> {
        Ok(Follower {
            netlink: Netlink::open()?,
            links: HashMap::new(),
            ports: HashMap::new(),
            addrs: HashSet::new(),
            lingering: HashSet::new(),
            neighbours: HashMap::new(),
            receiving: None,
            listed: Listed::default(),
            due: VecDeque::new(),
            failures: 0,
            reserved: Reserved::default(),
            routes_not_before: Instant::ZERO,
        })
    }

    /// A list is to be asked for when its turn comes.
    fn want(&mut self, list: List) {
        if !self.due.contains(&list) {
            self.due.push_back(list);
        }
    }

    fn want_all(&mut self) {
        // In this order: what names an interface comes after it.
        [List::Links, List::Addrs, List::Neighbours, List::Routes]
            .into_iter()
            .for_each(|list| self.want(list));
    }

    /// Asks for the next list that is due, unless one is being received.
    fn ask(&mut self, now: Instant) -> std::io::Result<()> {
        let next = self.next_list(now).and_then(|at| self.due.remove(at));
        let Some(list) = next else { return Ok(()) };
        self.listed = Listed::default();
        self.receiving = Some(list);
        self.netlink.ask_for(list)
    }

    #[cfg(test)]
    pub(crate) fn neighbours_known(&self) -> usize {
        self.neighbours.len()
    }

    /// The place of the list that is to be asked for now.
    pub(crate) fn next_list(&self, now: Instant) -> Option<usize> {
        let may = |list: &List| *list != List::Routes || now >= self.routes_not_before;
        self.due.iter().position(may).filter(|_| self.receiving.is_none())
    }

    /// When there is something to do although the kernel says nothing.
    fn deadline(&self) -> Instant {
        let wants_routes = self.receiving.is_none() && self.due.contains(&List::Routes);
        if wants_routes { self.routes_not_before } else { Instant::FAR_FUTURE }
    }

    fn is_settled(&self, now: Instant) -> bool {
        self.receiving.is_none() && self.next_list(now).is_none()
    }

    /// The interface of a port.
    fn index_of(&self, port: PortId) -> Option<u32> {
        self.ports.iter().find(|(_, id)| **id == port).map(|(index, _)| *index)
    }

    /// A route as the engine knows it; `shared` says which ports' routes are the kernel's.
    fn kernel_route(&self, route: &RouteEvent, shared: &[PortId]) -> KernelRoute {
        let port = route.index.and_then(|index| self.ports.get(&index)).filter(|id| shared.contains(id));
        let via = match port {
            Some(&port) => KernelVia::Port { port, gateway: route.gateway, source: route.source },
            None => KernelVia::Elsewhere,
        };
        let RouteEvent { dst, prefix_len, metric, is_local, .. } = *route;
        KernelRoute { dst, prefix_len, metric, is_local, via }
    }
}

/// The engine's links: its ports, and what is known of the kernel.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) ports: Ports,
    /// Set once there are ports whose interfaces the kernel may change.
    pub(crate) kernel: Option<Follower>,
    /// The kernel had no port number for the engine, so often.
    pub(crate) port_numbers_refused: u64,
}

/// What came of serving the engine.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// How many neighbours were known already.
    pub(crate) neighbours: usize,
    /// Kernel sockets that are to be looked at: are they still there?
    pub(crate) twins: Vec<u64>,
    /// All of the listeners' are among them.
    is_checked: bool,
}

impl Links {
    /// Begins to follow the kernel, after all links are open. Returns once all that is there is known.
    pub fn begin(&mut self, now: Instant, engine: &mut Engine, poller: &Poller) -> std::io::Result<()> {
        let mut follower = Follower::open()?;
        follower.want_all();
        poller.add(&follower.netlink, Token::Kernel)?;
        self.kernel = Some(follower);
        self.follow(now, engine, poller);
        while let Some(follower) = self.kernel.as_ref().filter(|follower| !follower.is_settled(now)) {
            let mut fds = [PollFd::new(&follower.netlink, PollFlags::IN)];
            if rustix::event::poll(&mut fds, Some(&BEGIN_WITHIN))? == 0 {
                return Err(std::io::Error::other(
                    "the kernel does not list its links, addresses and routes",
                ));
            }
            self.follow(now, engine, poller);
        }
        Ok(())
    }

    /// Takes what the kernel has to say.
    pub(crate) fn follow(&mut self, now: Instant, engine: &mut Engine, poller: &Poller) {
        // Out of its place, so that what it says can change all the rest.
        let Some(mut follower) = self.kernel.take() else { return };
        let mut events = Vec::new();
        match follower.netlink.receive(|item| events.push(item)) {
            Ok(Looked::All | Looked::Enough) => {}
            Ok(Looked::Lost) => {
                tracing::warn!(
                    "the kernel had more to say of its links than there was room for; asking for all of it"
                );
                // A list that is being received comes all the same: the kernel goes on with it as it is read.
                follower.want_all();
            }
            Err(error) => tracing::error!(%error, "the kernel's events cannot be received"),
        }
        for item in events {
            self.take_event(now, (engine, poller), &mut follower, item);
        }
        self.forget_lingering(engine, &mut follower);
        if let Err(error) = follower.ask(now) {
            tracing::error!(%error, "the kernel cannot be asked for its links, addresses and routes");
            follower.receiving = None;
        }
        self.kernel = Some(follower);
    }

    pub(crate) fn take_event(
        &mut self,
        now: Instant,
        (engine, poller): (&mut Engine, &Poller),
        follower: &mut Follower,
        event: KernelEvent,
    ) {
        match event {
            KernelEvent::Link { index, link } => {
                self.link_there(now, (engine, poller), follower, index, link)
            }
            KernelEvent::LinkGone { index } => self.link_gone(now, (engine, poller), follower, index),
            KernelEvent::Addr { index, addr, prefix_len } => {
                follower.listed.addrs.insert((index, addr, prefix_len));
                self.addr_is(engine, follower, (index, addr, prefix_len), true);
            }
            KernelEvent::AddrGone { index, addr, prefix_len } => {
                follower.listed.addrs.remove(&(index, addr, prefix_len));
                self.addr_is(engine, follower, (index, addr, prefix_len), false);
            }
            KernelEvent::Route(route) => follower.listed.routes.push(route),
            KernelEvent::RoutesChanged => follower.want(List::Routes),
            KernelEvent::Neighbour { index, addr, state } => {
                self.neighbour(engine, follower, index, addr, state)
            }
            KernelEvent::ListEnds { sequence, is_whole } => {
                if let Some(is_whole) = follower.netlink.list_ended(sequence, is_whole) {
                    self.list_ends(now, (engine, poller), follower, is_whole);
                }
            }
        }
    }

    pub(crate) fn list_ends(
        &mut self,
        now: Instant,
        (engine, poller): (&mut Engine, &Poller),
        follower: &mut Follower,
        is_whole: bool,
    ) {
        let Some(list) = follower.receiving.take() else { return };
        if !is_whole {
            follower.failures += 1;
            if follower.failures < FAILURES_MAX {
                follower.want(list);
            } else {
                tracing::warn!(?list, "the kernel does not list it whole; asking again at its next event");
            }
            return;
        }
        follower.failures = 0;
        match list {
            List::Addrs => {
                let gone: Vec<_> = follower.addrs.difference(&follower.listed.addrs).copied().collect();
                for at in gone {
                    self.addr_is(engine, follower, at, false);
                }
            }
            List::Routes => {
                let shared = self.ports.shared();
                let routes = follower.listed.routes.iter().map(|route| follower.kernel_route(route, &shared));
                let routes: Vec<_> = routes.collect();
                engine.handle_network(NetworkChange::Routes(&routes));
                // With very many a list takes a while; others want their turn, however often routes change.
                follower.routes_not_before = now.after_us(ROUTES_SPACING_US * routes.len() as u64);
            }
            List::Links => {
                let listed = &follower.listed.links;
                let gone: Vec<_> = follower.links.keys().filter(|i| !listed.contains(i)).copied().collect();
                for index in gone {
                    self.link_gone(now, (engine, poller), follower, index);
                }
            }
            List::Neighbours => {
                let listed = &follower.listed.neighbours;
                let gone: Vec<_> =
                    follower.neighbours.keys().filter(|key| !listed.contains(key)).copied().collect();
                for (index, addr) in gone {
                    self.neighbour(engine, follower, index, addr, NeighbourEvent::Forgotten);
                }
            }
        }
    }

    fn neighbour(
        &mut self,
        engine: &mut Engine,
        follower: &mut Follower,
        index: u32,
        addr: Addr,
        state: NeighbourEvent,
    ) {
        let port = follower.ports.get(&index).copied().filter(|id| self.ports.is_shared(*id));
        let Some(port) = port else { return };
        let key = (index, addr);
        if let NeighbourEvent::Known { mac, is_doubtful } = state {
            follower.neighbours.insert(key, (mac, is_doubtful));
            follower.listed.neighbours.insert(key);
            engine.handle_network(NetworkChange::Neighbour { port, addr, mac, is_doubtful });
        } else {
            follower.neighbours.remove(&key);
            follower.listed.neighbours.remove(&key);
            engine.handle_network(NetworkChange::NoNeighbour {
                port,
                addr,
                failed: state == NeighbourEvent::Failed,
            });
        }
    }

    fn link_there(
        &mut self,
        now: Instant,
        (engine, poller): (&mut Engine, &Poller),
        follower: &mut Follower,
        index: u32,
        link: LinkEvent,
    ) {
        follower.listed.links.insert(index);
        let before = follower.links.insert(index, link.clone());
        let port = match follower.ports.get(&index) {
            Some(port) => *port,
            None => match self.ports.on_interface(&link.name) {
                Some(port) => {
                    follower.ports.insert(index, port);
                    // It may have had them before it had this name.
                    follower.want(List::Addrs);
                    port
                }
                None => return,
            },
        };
        self.ports.interface_is(now, engine, poller, port, (index, &link));
        if before.is_none_or(|before| before.is_up != link.is_up) {
            // Routes go with their interface without a word.
            follower.want(List::Routes);
            follower.want(List::Neighbours);
        }
    }

    fn link_gone(
        &mut self,
        now: Instant,
        (engine, poller): (&mut Engine, &Poller),
        follower: &mut Follower,
        index: u32,
    ) {
        follower.listed.links.remove(&index);
        follower.links.remove(&index);
        if let Some(port) = follower.ports.remove(&index) {
            self.ports.interface_gone(now, poller, port, index);
            let addrs: HashSet<_> =
                follower.addrs.iter().filter(|(i, ..)| *i == index).map(|(_, a, _)| *a).collect();
            for addr in addrs {
                self.drop_addr(engine, follower, port, addr);
            }
        }
        follower.addrs.retain(|(i, ..)| *i != index);
        follower.neighbours.retain(|(i, _), _| *i != index);
        follower.want(List::Routes);
    }

    /// An address of an interface is there, or is not; what was known already changes nothing.
    fn addr_is(&mut self, engine: &mut Engine, follower: &mut Follower, at: (u32, Addr, u8), is_there: bool) {
        let is_new = if is_there { follower.addrs.insert(at) } else { follower.addrs.remove(&at) };
        let (index, addr, _) = at;
        if let Some(port) = follower.ports.get(&index).copied().filter(|_| is_new) {
            self.take_addr(engine, follower, port, index, addr);
        }
    }

    /// An address has come or gone, or is left in another network; of several the widest counts.
    fn take_addr(
        &mut self,
        engine: &mut Engine,
        follower: &mut Follower,
        port: PortId,
        index: u32,
        addr: Addr,
    ) {
        let of_addr = follower.addrs.iter().filter(|(i, a, _)| (*i, *a) == (index, addr));
        match of_addr.map(|(.., prefix_len)| *prefix_len).min() {
            None => self.drop_addr(engine, follower, port, addr),
            Some(prefix_len) if self.ports.is_shared(port) => {
                engine.handle_network(NetworkChange::Address { port, addr, prefix_len });
                self.ports.set_addr(port, addr, Some(prefix_len));
                follower.lingering.remove(&(port, addr));
                self.ports.steer_addr(port, addr, true);
            }
            Some(_) => {}
        }
        follower.want(List::Routes);
    }

    fn drop_addr(&mut self, engine: &mut Engine, follower: &mut Follower, port: PortId, addr: Addr) {
        if self.ports.is_shared(port) {
            engine.handle_network(NetworkChange::NoAddress { port, addr });
            self.ports.set_addr(port, addr, None);
            follower.lingering.insert((port, addr));
            self.forget_lingering(engine, follower);
        }
    }

    /// Of an address that is gone the kernel gets what comes once the engine has no connections there: if it comes back, the
    /// kernel has it before this is known here, and would reset them.
    fn forget_lingering(&mut self, engine: &Engine, follower: &mut Follower) {
        follower.lingering.retain(|(port, addr)| {
            let is_used = engine.view().has_flows_at(*addr);
            if !is_used {
                self.ports.steer_addr(*port, *addr, false);
            }
            is_used
        });
    }

    /// Does in the kernel what the engine wants of it; before anything is sent or posted that relies on it.
    pub(crate) fn serve(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        request: NetworkRequest,
        served: &mut Served,
    ) {
        match request {
            NetworkRequest::ReservePorts(wanted) => self.reserve_ports(now, engine, wanted),
            NetworkRequest::Steer(change) => {
                if matches!(change, SteerChange::Listen { on: true, .. }) && !served.is_checked {
                    // The socket was shown some time ago. What is found gone is taken back by a change behind this one.
                    served.twins.extend(engine.view().steered_twins().map(|twin| twin.identity));
                    served.is_checked = true;
                }
                let is_done = self.ports.steer(&change);
                if let SteerChange::Listen { local, on: true } = change
                    && !is_done
                {
                    engine.handle_network(NetworkChange::SteeringRefused { local });
                }
            }
            NetworkRequest::LookAtTwin { identity } => served.twins.push(identity),
            NetworkRequest::FindNeighbour { port, addr } => {
                served.neighbours += usize::from(self.find_neighbour(engine, port, addr));
            }
        }
    }

    /// When it is to be followed although it says nothing: something was put off.
    pub(crate) fn follow_at(&self) -> Instant {
        self.kernel.as_ref().map_or(Instant::FAR_FUTURE, Follower::deadline)
    }

    fn reserve_ports(&mut self, now: Instant, engine: &mut Engine, wanted: usize) {
        let Links { ports, kernel: Some(follower), .. } = self else { return };
        if now < follower.reserved.not_before {
            return;
        }
        let reserved = follower.reserved.reserve(wanted, |port| {
            ports.reserve(port);
            engine.handle_network(NetworkChange::PortReserved(port));
        });
        if reserved.is_err() {
            // The kernel has looked through all of its port numbers, which takes a while.
            follower.reserved.not_before = now.after_us(RESERVE_AGAIN_AFTER_US);
        }
        if let Err(error) = reserved {
            self.port_numbers_refused += 1;
            if self.port_numbers_refused.is_power_of_two() {
                tracing::warn!(%error, "no more port numbers for connections; the kernel does what finds none");
            }
        }
    }

    /// Lets the kernel find a neighbour that the engine waits for; whether it knew it already.
    fn find_neighbour(&mut self, engine: &mut Engine, port: PortId, addr: Addr) -> bool {
        let Some(follower) = &mut self.kernel else { return false };
        let Some(index) = follower.index_of(port) else { return false };
        let known = follower.neighbours.get(&(index, addr)).copied();
        if let Some((mac, is_doubtful)) = known {
            engine.handle_network(NetworkChange::Neighbour { port, addr, mac, is_doubtful: false });
            if !is_doubtful {
                return true;
            }
        }
        if let Err(error) = follower.netlink.resolve(index, addr) {
            tracing::debug!(%error, %addr, "the kernel cannot be asked for a neighbour");
        }
        known.is_some()
    }
}

impl Ports {
    /// One change of the steering, on every shared port; `false`: the kernel refuses it.
    fn steer(&mut self, change: &SteerChange) -> bool {
        self.each_steering(|steering| match *change {
            SteerChange::Listen { local, on } => steering.listen(steered(local)?, on),
            SteerChange::Flow { key, on } => steering.flow(steered(key.local)?, steered(key.remote)?, on),
        })
    }

    fn reserve(&mut self, port: u16) {
        self.each_steering(|steering| steering.reserve(port, true));
    }
}

/// An end as the steering program has it: it knows IPv4 only. Of a listener of both families that is one part.
fn steered(end: Endpoint) -> std::io::Result<SocketAddrV4> {
    let end = if end.addr == Addr::UNSPECIFIED_V6 { end.at(Addr::UNSPECIFIED_V4) } else { end };
    end.to_v4().ok_or_else(|| std::io::ErrorKind::Unsupported.into())
}
