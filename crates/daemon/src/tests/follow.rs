//! A daemon with a shared port that is not there in truth: the test is the kernel, and hears what is steered.

use super::fake_host::FakeHost;
use super::{daemon, settle};
use crate::config::PortConfig;
use crate::daemon::Daemon;
use crate::kernel::events::{KernelEvent, LinkEvent, NeighbourEvent, RouteEvent};
use crate::kernel::follow::{Follower, Listed};
use crate::kernel::netlink::List;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use toe_abi::attach::{Reply, Request};
use toe_base::{Addr, PortId};
use toe_engine::{KernelRoute, KernelVia, NetworkChange};
use toe_port::{OpenError, Port, PortCounters, Steering};
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
const ADDR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const INDEX: u32 = 100_000;

/// What was asked of the port, a line each.
type Log = Arc<Mutex<Vec<String>>>;

#[derive(Debug)]
struct FakePort {
    log: Log,
    mtu: u32,
}

impl FakePort {
    fn note(&self, what: String) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

impl FrameSink for FakePort {
    fn frame(&mut self, _: usize) -> Option<&mut [u8]> {
        None
    }
    fn commit(&mut self, _: TxOffload) {}
}

impl Port for FakePort {
    fn name(&self) -> &str {
        "fake0"
    }
    fn mac(&self) -> MacAddr {
        MAC
    }
    fn mtu(&self) -> u32 {
        self.mtu
    }
    fn caps(&self) -> LinkCaps {
        LinkCaps::default()
    }
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn next_deadline_us(&self) -> Option<u64> {
        None
    }
    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&[u8], RxOffload)) -> io::Result<usize> {
        Ok(0)
    }
    fn transmit(&mut self) -> &mut dyn FrameSink {
        self
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
    fn steering(&mut self) -> Option<&mut dyn Steering> {
        Some(self)
    }
    fn reopen(&mut self) -> Result<(), OpenError> {
        self.mtu = 1400;
        self.note("reopened".to_owned());
        Ok(())
    }
    fn refresh(&mut self) -> Result<(), OpenError> {
        self.mtu = 1400;
        self.note("refreshed".to_owned());
        Ok(())
    }
}

impl Steering for FakePort {
    fn address(&mut self, addr: Ipv4Addr, on: bool) -> io::Result<()> {
        self.note(format!("address {addr} {on}"));
        Ok(())
    }
    fn reserve(&mut self, _: u16, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn listen(&mut self, local: SocketAddrV4, on: bool) -> io::Result<()> {
        self.note(format!("listen {local} {on}"));
        let is_full =
            on && self.log.lock().unwrap_or_else(PoisonError::into_inner).contains(&"full".to_owned());
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
    fn flow(&mut self, local: SocketAddrV4, _: SocketAddrV4, on: bool) -> io::Result<()> {
        self.note(format!("flow {local} {on}"));
        Ok(())
    }
    fn entries(&self) -> usize {
        0
    }
}

struct Kernel {
    daemon: Daemon,
    follower: Follower,
    log: Log,
}

impl Kernel {
    fn new() -> Kernel {
        let mut daemon = daemon();
        let log = Log::default();
        let spec = "xdp:fake0".parse().expect("a good specification");
        let config = PortConfig { spec, addrs: Vec::new(), gateways: Vec::new() };
        let port = FakePort { log: Arc::clone(&log), mtu: 1500 };
        daemon.open_port(&config, Box::new(port)).expect("a port");
        Kernel { daemon, follower: Follower::open().expect("a netlink socket"), log }
    }

    fn tells(&mut self, event: KernelEvent) {
        let (now, Daemon { links, engine, outside, .. }) = (self.daemon.timing.clock.now(), &mut self.daemon);
        links.take_event(now, (engine, &outside.poller), &mut self.follower, event);
    }

    /// A list ends in which nothing was but what has been told since [`Kernel::new_list`].
    fn list_ends(&mut self, list: List, is_whole: bool) {
        self.follower.receiving = Some(list);
        let (now, Daemon { links, engine, outside, .. }) = (self.daemon.timing.clock.now(), &mut self.daemon);
        links.list_ends(now, (engine, &outside.poller), &mut self.follower, is_whole);
    }

    fn new_list(&mut self) {
        self.follower.listed = Listed::default();
    }

    fn has_link(&mut self, index: u32, mtu: u32) {
        let link = LinkEvent { name: "fake0".to_owned(), is_up: true, mtu, mac: Some(MAC), is_veth: false };
        self.tells(KernelEvent::Link { index, link });
    }

    fn has_addr(&mut self, index: u32) {
        self.tells(KernelEvent::Addr { index, addr: ADDR.into(), prefix_len: 24 });
    }

    /// What was asked of the port since the last look, and its addresses as reports have them.
    fn look(&mut self) -> (Vec<String>, Vec<String>) {
        let now = self.daemon.timing.clock.now();
        self.daemon.round(now);
        let log = std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
        (log, self.daemon.whole_status().ports[0].addrs.clone())
    }
}

#[test]
fn an_address_with_two_prefix_lengths_goes_with_the_last() {
    let mut kernel = Kernel::new();
    kernel.has_link(INDEX, 1500);
    kernel.has_addr(INDEX);
    kernel.tells(KernelEvent::Addr { index: INDEX, addr: ADDR.into(), prefix_len: 32 });
    assert_eq!(kernel.look().1, ["10.0.0.2/24"]);
    kernel.tells(KernelEvent::AddrGone { index: INDEX, addr: ADDR.into(), prefix_len: 24 });
    let (log, addrs) = kernel.look();
    assert!(!log.contains(&"address 10.0.0.2 false".to_owned()), "{log:?}");
    assert_eq!(addrs, ["10.0.0.2/32"]);
    kernel.tells(KernelEvent::AddrGone { index: INDEX, addr: ADDR.into(), prefix_len: 32 });
    assert_eq!(kernel.look(), (lines(&["address 10.0.0.2 false"]), vec![]));
}

/// Between the kernel's having it again and our hearing of that its segments must not be the kernel's.
#[test]
fn an_address_that_connections_have_is_steered_until_they_end() {
    let mut kernel = Kernel::new();
    kernel.has_link(INDEX, 1500);
    kernel.has_addr(INDEX);
    let engine = &mut kernel.daemon.engine;
    let via = KernelVia::Port { port: PortId(0), gateway: None, source: None };
    engine.handle_network(NetworkChange::Routes(&[KernelRoute {
        dst: ADDR.into(),
        prefix_len: 24,
        metric: 0,
        is_local: false,
        via,
    }]));
    engine.handle_network(NetworkChange::PortReserved(40_000));
    let mut host = FakeHost::attach(&mut kernel.daemon);
    let remote = "10.0.0.9:80".parse().expect("an address");
    let (_flow, anchor) = host.begin_connect(&mut kernel.daemon, remote);
    kernel.look();
    kernel.tells(KernelEvent::AddrGone { index: INDEX, addr: ADDR.into(), prefix_len: 24 });
    assert_eq!(kernel.look(), (vec![], vec![]), "it is not ours, and not left to the kernel");
    kernel.has_addr(INDEX);
    assert_eq!(kernel.look(), (lines(&["address 10.0.0.2 true"]), lines(&["10.0.0.2/24"])));
    kernel.tells(KernelEvent::AddrGone { index: INDEX, addr: ADDR.into(), prefix_len: 24 });
    drop(anchor);
    settle(&mut kernel.daemon);
    kernel.daemon.links.kernel =
        Some(std::mem::replace(&mut kernel.follower, Follower::open().expect("a socket")));
    let (now, Daemon { links, engine, outside, .. }) = (kernel.daemon.timing.clock.now(), &mut kernel.daemon);
    links.follow(now, engine, &outside.poller);
    assert_eq!(kernel.look().0, ["address 10.0.0.2 false"]);
}

#[test]
fn many_routes_are_not_listed_at_each_change() {
    let mut kernel = Kernel::new();
    let via = |n: u32| RouteEvent {
        dst: Ipv4Addr::from_bits(n << 8).into(),
        prefix_len: 24,
        metric: 0,
        is_local: false,
        index: None,
        gateway: None,
        source: None,
    };
    (0..100_000).for_each(|n| kernel.tells(KernelEvent::Route(via(n))));
    let now = kernel.daemon.timing.clock.now();
    kernel.list_ends(List::Routes, true);
    kernel.tells(KernelEvent::RoutesChanged);
    kernel.tells(KernelEvent::RoutesChanged);
    assert_eq!(kernel.follower.next_list(now.after_us(1_000_000)), None);
    assert_eq!(kernel.follower.next_list(now.after_us(600_000_000)), Some(0));
}

/// KernelEvent was lost, so the lists were asked for.
#[test]
fn links_and_neighbours_that_went_unseen_are_gone_with_their_list() {
    let mut kernel = Kernel::new();
    kernel.has_link(INDEX, 1500);
    kernel.has_addr(INDEX);
    let known = NeighbourEvent::Known { mac: MAC, is_doubtful: false };
    let (first, second) = (Addr::from([10, 0, 0, 8]), Addr::from([10, 0, 0, 9]));
    kernel.tells(KernelEvent::Neighbour { index: INDEX, addr: first, state: known });
    kernel.tells(KernelEvent::Neighbour { index: INDEX, addr: second, state: known });
    assert_eq!(kernel.follower.neighbours_known(), 2);
    kernel.new_list();
    kernel.tells(KernelEvent::Neighbour { index: INDEX, addr: first, state: known });
    kernel.list_ends(List::Neighbours, true);
    assert_eq!(kernel.follower.neighbours_known(), 1);
    kernel.new_list();
    kernel.has_link(INDEX, 1500);
    kernel.list_ends(List::Links, true);
    assert_eq!(kernel.look().1, ["10.0.0.2/24"], "it was listed");
    kernel.new_list();
    kernel.list_ends(List::Links, true);
    assert_eq!((kernel.look().1, kernel.follower.neighbours_known()), (vec![], 0));
}

/// A program shows a kernel socket that listens, and the engine listens, too: as long as the kernel's does.
#[test]
fn a_listener_is_steered_no_longer_than_its_kernel_socket_listens() {
    let mut kernel = Kernel::new();
    kernel.has_link(INDEX, 1500);
    let Kernel { mut daemon, follower, log } = kernel;
    daemon.links.kernel = Some(follower);
    let mut host = FakeHost::attach(&mut daemon);
    let socket = TcpListener::bind("0.0.0.0:0").expect("a socket");
    let local = socket.local_addr().expect("bound");
    let (reply, _) = host.control.ask_with(&mut daemon, Request::ShowTwin, &[socket.as_fd()]);
    let Reply::Handle { handle } = reply else { panic!("{reply:?}") };
    let logged = || std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner));
    // The control server looks at what it watches before it comes to rest.
    let look = |daemon: &mut Daemon| {
        settle(daemon);
        logged()
    };
    let (on, off) = (format!("listen {local} true"), format!("listen {local} false"));
    let (_listener, anchor) = host.listen_with(&mut daemon, local, handle);
    assert_eq!(logged(), std::slice::from_ref(&on));
    assert_eq!(look(&mut daemon), Vec::<String>::new(), "it listens");
    drop(socket);
    assert_eq!(look(&mut daemon), std::slice::from_ref(&off));
    assert_eq!(look(&mut daemon), Vec::<String>::new());
    drop(anchor);
    settle(&mut daemon);
}

/// The program that steers has no room for it; the program's kernel socket takes what comes.
#[test]
fn a_listener_that_cannot_be_steered_is_given_up() {
    let Kernel { mut daemon, follower, log } = Kernel::new();
    daemon.links.kernel = Some(follower);
    let mut host = FakeHost::attach(&mut daemon);
    let socket = TcpListener::bind("0.0.0.0:0").expect("a socket");
    let local = socket.local_addr().expect("bound");
    let (reply, _) = host.control.ask_with(&mut daemon, Request::ShowTwin, &[socket.as_fd()]);
    let Reply::Handle { handle } = reply else { panic!("{reply:?}") };
    log.lock().unwrap_or_else(PoisonError::into_inner).push("full".to_owned());
    let _listener = host.listen_with(&mut daemon, local, handle);
    let log = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(log, ["full".to_owned(), format!("listen {local} true"), format!("listen {local} false")]);
}

fn lines(wanted: &[&str]) -> Vec<String> {
    wanted.iter().map(ToString::to_string).collect()
}

#[test]
fn addresses_are_the_kernels_of_that_interface_alone() {
    let mut kernel = Kernel::new();
    kernel.has_link(INDEX, 1500);
    kernel.has_addr(INDEX + 1);
    assert_eq!(kernel.look(), (vec![], vec![]), "of another interface");
    kernel.has_addr(INDEX);
    kernel.has_addr(INDEX);
    assert_eq!(kernel.look(), (lines(&["address 10.0.0.2 true"]), lines(&["10.0.0.2/24"])), "once");
    kernel.tells(KernelEvent::AddrGone { index: INDEX, addr: ADDR.into(), prefix_len: 24 });
    assert_eq!(kernel.look(), (lines(&["address 10.0.0.2 false"]), vec![]));
}

#[test]
fn what_a_whole_list_does_not_have_is_gone_and_a_part_of_one_says_nothing() {
    let mut kernel = Kernel::new();
    kernel.has_link(INDEX, 1500);
    kernel.has_addr(INDEX);
    kernel.look();
    kernel.new_list();
    for (is_whole, wanted) in [(false, vec![]), (true, lines(&["address 10.0.0.2 false"]))] {
        kernel.list_ends(List::Addrs, is_whole);
        assert_eq!(kernel.look().0, wanted);
    }
}

#[test]
fn an_interface_that_comes_back_with_another_number_is_opened_anew() {
    let mut kernel = Kernel::new();
    kernel.has_link(INDEX, 1500);
    kernel.has_addr(INDEX);
    kernel.look();
    kernel.tells(KernelEvent::LinkGone { index: INDEX });
    assert_eq!(kernel.look(), (lines(&["address 10.0.0.2 false"]), vec![]));
    kernel.has_link(INDEX + 1, 1400);
    kernel.has_addr(INDEX + 1);
    let (log, addrs) = kernel.look();
    assert_eq!(log, ["address 10.0.0.2 true", "reopened"]);
    assert_eq!(addrs, ["10.0.0.2/24"]);
    kernel.has_link(INDEX + 1, 1400);
    assert_eq!(kernel.look().0, Vec::<String>::new(), "nothing has changed");
}

#[test]
fn another_mtu_leaves_the_interface_open() {
    let mut kernel = Kernel::new();
    kernel.has_link(INDEX, 1500);
    assert_eq!(kernel.look().0, Vec::<String>::new(), "as it was opened");
    kernel.has_link(INDEX, 1400);
    assert_eq!(kernel.look().0, ["refreshed"]);
    assert_eq!(kernel.daemon.whole_status().ports[0].mtu, 1400);
}
