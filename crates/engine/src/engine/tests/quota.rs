//! What one user may have, beside others: nobody is locked out, and what somebody lets go is charged to nobody.

use super::world::{LAYOUT, Side, World};
use crate::counter::Counter;
use crate::hostif::users::{Limit, Resource};
use crate::kit::FakeHosts;
use crate::via::ViaOutcome;
use crate::{ControlEvent, Engine, EngineConfig, NetworkChange};
use toe_abi::attach::Request;
use toe_abi::command::ConnectArgs;
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName};
use toe_base::{Cred, FlowId, Instant, NetNs, QueueSetId, SessionId};
use toe_wire::link::LinkCaps;
use zerocopy::IntoBytes;

const NOW: Instant = Instant::from_micros(1_000_000);
const QS: QueueSetId = QueueSetId(0);

struct Machine {
    engine: Engine,
    hosts: FakeHosts,
}

impl Machine {
    /// An engine with an address on a link that nobody answers at.
    fn new(config: EngineConfig) -> Machine {
        let mut engine = Engine::new(config);
        let port = engine.add_port(crate::Link { mtu: 1500, ..crate::Link::default() });
        engine.handle_network(NetworkChange::Address { port, addr: [10, 0, 0, 1].into(), prefix_len: 24 });
        Machine { engine, hosts: FakeHosts::default() }
    }

    fn attach(&mut self, uid: u32) -> SessionId {
        let cred = Cred { uid, netns: NetNs(0) };
        let session = self.engine.open_session(cred, LAYOUT).expect("room");
        self.engine.add_queue_set(session).expect("room");
        session
    }

    fn connect(&mut self, session: SessionId, port: u16) -> Result<FlowId, Errno> {
        let anchor = self.engine.take_anchor(session)?;
        let remote = core::net::SocketAddr::from(([10, 0, 0, 9], port)).into();
        let args = ConnectArgs { remote, anchor: anchor.0, ..ConnectArgs::default() };
        let mut block = [0; 64];
        block.copy_from_slice(args.as_bytes());
        self.hosts.completions.clear();
        let command = Command::Connect { token: 1 };
        self.engine
            .handle_command(NOW, session, QS, command, &block, &mut self.hosts)
            .expect("a good command");
        self.hosts.hear(&mut self.engine);
        let answer = self.hosts.completions.iter().find_map(|(_, completion)| match completion {
            Completion::CommandResult { errno, id, .. } => Some((*errno, *id)),
            _ => None,
        });
        let (errno, id) = answer.expect("answered");
        if errno.is_ok() {
            Ok(FlowId::from_raw(id))
        } else {
            self.engine.handle_control(NOW, ControlEvent::Shared(anchor), &mut self.hosts);
            self.engine.handle_control(NOW, ControlEvent::LastClose(anchor), &mut self.hosts);
            Err(errno)
        }
    }

    /// The handle that is new or was taken; 0: it is neither.
    fn via(&mut self, session: SessionId, request: Request) -> Result<u32, Errno> {
        Ok(match self.engine.handle_via(session, request)? {
            ViaOutcome::Listens(handle, _) | ViaOutcome::Asked(handle, _) => handle.0,
            ViaOutcome::Taken(taken) => taken.connection.0,
            _ => 0,
        })
    }

    fn connect_all(&mut self, session: SessionId) -> usize {
        (0..).take_while(|n| self.connect(session, 1 + n / 100).is_ok()).count()
    }

    fn used(&self, uid: u32, resource: Resource) -> u64 {
        self.engine.view().users().by_cred(Cred::of_user(uid)).map_or(0, |user| user.used(resource))
    }
}

fn config(flows_max: usize) -> EngineConfig {
    EngineConfig { flows_max, ..EngineConfig::with_secret([7; 16]) }
}

#[test]
fn one_user_does_not_lock_the_next_out_of_connections() {
    let mut machine = Machine::new(config(2048));
    let sessions = [(); 9].map(|()| machine.attach(1));
    let greedy: usize = sessions.map(|session| machine.connect_all(session)).iter().sum();
    assert!((1600..1900).contains(&greedy), "{greedy}");
    let other = machine.attach(2);
    let got = machine.connect_all(other);
    assert!(got >= 100, "{got} of 2048");
    let last = machine.attach(3);
    assert!(machine.connect_all(last) >= 8, "and so on");
    assert_eq!(machine.connect(sessions[0], 9), Err(Errno::EDQUOT));
    assert!(machine.engine.view().counter(Counter::OverQuota) > 0);
    machine.engine.view().audit().expect("sound");
}

#[test]
fn one_user_does_not_lock_the_next_out_of_sessions() {
    let mut machine = Machine::new(config(64));
    let sessions =
        (0..).take_while(|_| machine.engine.open_session(Cred::of_user(1), LAYOUT).is_ok()).count();
    assert!(sessions >= toe_base::limits::SESSIONS_MAX * 3 / 4, "alone he gets most: {sessions}");
    assert_eq!(machine.engine.open_session(Cred::of_user(1), LAYOUT), Err(Errno::EDQUOT));
    for uid in 2..10 {
        machine.attach(uid);
    }
}

#[test]
fn anchors_follow_what_they_are_for() {
    let mut machine = Machine::new(config(1024));
    let session = machine.attach(1);
    let take_all =
        |machine: &mut Machine| (0..).take_while(|_| machine.engine.take_anchor(session).is_ok()).count();
    assert_eq!(take_all(&mut machine), 256);
    machine.engine.close_session(NOW, session, &mut machine.hosts);
    assert_eq!(machine.used(1, Resource::Anchors), 0, "they go with their session");
}

#[test]
fn what_has_ended_is_charged_to_nobody() {
    let mut machine = Machine::new(config(64));
    let session = machine.attach(5);
    for _ in 0..10 {
        machine.connect(session, 80).expect("room");
    }
    assert_eq!([Resource::Flows, Resource::Anchors].map(|r| machine.used(5, r)), [10, 10]);
    machine.engine.close_session(NOW, session, &mut machine.hosts);
    // The kernel closes the descriptors of a process that ends.
    (0..10).for_each(|n| {
        machine.engine.handle_control(
            NOW,
            ControlEvent::LastClose(toe_base::AnchorHandle(n)),
            &mut machine.hosts,
        )
    });
    while machine.engine.poll_local(NOW, &mut machine.hosts, 64) > 0 {}
    machine.engine.forget_session(session);
    assert!(
        machine.engine.view().users().by_cred(Cred::of_user(5)).is_none(),
        "{:?}",
        machine.engine.view().users()
    );
}

#[test]
fn a_cap_of_the_configuration_holds() {
    let quotas = crate::Quotas::default().with(Resource::Flows, Limit { total: 0, user: 3 });
    let mut machine = Machine::new(EngineConfig { quotas, ..config(64) });
    let session = machine.attach(1);
    assert_eq!(machine.connect_all(session), 3);
    let other = machine.attach(2);
    assert_eq!(machine.connect_all(other), 3);
}

#[test]
fn a_session_with_many_connections_gives_them_up_in_steps() {
    let mut machine = Machine::new(config(2048));
    let session = machine.attach(1);
    for n in 0..200 {
        machine.connect(session, n + 1).expect("room");
    }
    let before = machine.engine.view().totals().flows;
    machine.engine.close_session(NOW, session, &mut machine.hosts);
    assert!(!machine.engine.hostif.is_drained(session), "128 of them in one step");
    let steps = (0..100).take_while(|_| machine.engine.poll_local(NOW, &mut machine.hosts, 64) > 0).count();
    assert!(steps <= 2, "{steps}");
    assert!(machine.engine.hostif.is_drained(session) && machine.engine.view().totals().flows <= before);
    machine.engine.view().audit().expect("sound");
}

#[test]
fn many_deadlines_at_one_moment_are_kept_in_steps() {
    let mut machine = Machine::new(config(4096));
    for _ in 0..8 {
        let session = machine.attach(1);
        (0..200).for_each(|n| _ = machine.connect(session, n + 1).expect("room"));
    }
    let mut sink = super::world::Outbox::default();
    machine.engine.poll_transmit(NOW, toe_base::PortId(0), &mut sink, &mut machine.hosts, 10_000);
    let later = NOW.after_us(10_000_000);
    let timeouts = |machine: &Machine| machine.engine.view().counter(Counter::RetransmitTimeouts);
    let mut steps = Vec::new();
    while timeouts(&machine) < 1600 {
        let before = timeouts(&machine);
        machine.engine.handle_timeout(later, &mut machine.hosts);
        steps.push(timeouts(&machine) - before);
    }
    assert_eq!(steps, [512, 512, 512, 64]);
}

#[test]
fn a_host_that_takes_nothing_is_not_asked_again_and_again() {
    let mut machine = Machine::new(config(1024));
    let (deaf, other) = (machine.attach(1), machine.attach(2));
    machine.hosts.full.push(deaf);
    for _ in 0..500 {
        let command = Command::Listen { token: 1 };
        let anchor = machine.engine.hostif.new_anchor(deaf);
        let args = toe_abi::command::ListenArgs { anchor: anchor.0, ..Default::default() };
        let mut block = [0; 64];
        block.copy_from_slice(args.as_bytes());
        let done = machine.engine.handle_command(NOW, deaf, QS, command, &block, &mut machine.hosts);
        done.expect("a good command");
    }
    machine.hosts.looks = 0;
    (0..1000).for_each(|_| {
        machine.hosts.hear(&mut machine.engine);
    });
    assert!(machine.hosts.looks < 30, "{} looks", machine.hosts.looks);
    machine.connect(other, 80).expect("answered at once");
    machine.hosts.full.clear();
    (0..64).for_each(|_| {
        machine.hosts.hear(&mut machine.engine);
    });
    assert!(machine.hosts.completions.len() >= 500, "all of it");
}

#[test]
fn a_syn_beyond_the_share_of_the_listeners_user_is_dropped_and_counted() {
    let mut world = World::new();
    let now = world.now;
    let quotas = crate::Quotas::default().with(Resource::Flows, Limit { total: 0, user: 2 });
    world.sides[1] =
        Side::with_quotas(2, LinkCaps { tx_checksum: true, gso_max: 65_000, ..LinkCaps::default() }, quotas);
    world.sides[1].listen(now, "10.0.0.2:80".parse().expect("an address")).expect("free");
    for _ in 0..5 {
        world.sides[0].connect(now, "10.0.0.2:80".parse().expect("an address")).expect("starts");
    }
    world.run_ms(500);
    assert_eq!(world.sides[1].conns.len(), 2);
    assert!(world.sides[1].engine.view().counter(Counter::DropOverQuota) >= 3);
}

/// Connections of virtual interfaces are charged to who asks for them until it lets go, whoever takes them.
#[test]
fn virtual_interfaces_are_charged_to_who_asks_for_them() {
    let limit = Limit { total: 100, user: 5 };
    let quotas = crate::Quotas::default().with(Resource::Channels, limit);
    let mut machine = Machine::new(EngineConfig { quotas, ..EngineConfig::with_secret([1; 16]) });
    let name = |text: &str| NodeName::new(text.as_bytes()).expect("a name");
    let (server, client) = (machine.attach(7), machine.attach(7));
    let other = machine.attach(8);
    for (session, node) in [(server, "a"), (client, "b"), (other, "a")] {
        machine.via(session, Request::ViaName { name: name(node) }).expect("a name");
    }
    let connect = Request::ViaConnect { to: name("a"), discriminator: 5, attributes: Attributes::EVIL };
    let listener =
        machine.via(server, Request::ViaListen { from: None, discriminator: 5 }).expect("a listener");
    let asked: Vec<_> = (0..5).map(|_| machine.via(client, connect).expect("room")).collect();
    let refused = machine.engine.view().counter(Counter::OverQuota);
    for session in [client, server] {
        assert_eq!(machine.via(session, connect), Err(Errno::EDQUOT));
    }
    assert_eq!(machine.engine.view().counter(Counter::OverQuota), refused + 2);
    assert!(machine.via(other, connect).is_ok(), "another user has his own");
    assert_eq!(machine.via(server, Request::ViaTake { listener }), Ok(asked[0]));
    machine.via(server, Request::ViaForget { handle: asked[0] }).expect("taken");
    assert!(machine.via(client, connect).is_err(), "it has yet to be fetched");
    for connection in &asked[..2] {
        machine.via(client, Request::ViaForget { handle: *connection }).expect("its own");
    }
    for is_free in [true, true, false] {
        assert_eq!(machine.via(client, connect).is_ok(), is_free);
    }
    machine.engine.close_session(NOW, client, &mut machine.hosts);
    assert!(machine.via(server, connect).is_ok());
    machine.engine.close_session(NOW, server, &mut machine.hosts);
    machine.engine.close_session(NOW, other, &mut machine.hosts);
    machine.engine.view().audit().expect("nobody is charged any more");
}

/// Or one user could have as many as his sessions hold, in memory that is charged to nobody.
#[test]
fn listeners_for_virtual_interfaces_are_charged_to_their_user() {
    let limit = Limit { total: 100, user: 5 };
    let quotas = crate::Quotas::default().with(Resource::Listeners, limit);
    let mut machine = Machine::new(EngineConfig { quotas, ..EngineConfig::with_secret([1; 16]) });
    let name = NodeName::new(b"a").expect("a name");
    let (first, second, other) = (machine.attach(7), machine.attach(7), machine.attach(8));
    let listen = Request::ViaListen { from: None, discriminator: 5 };
    assert_eq!(machine.via(first, listen), Err(Errno::EINVAL), "before it has a name");
    for session in [first, second, other] {
        machine.via(session, Request::ViaName { name }).expect("a name");
    }
    let own: Vec<_> = (0..5).map(|_| machine.via(first, listen).expect("his share")).collect();
    let refused = machine.engine.view().counter(Counter::OverQuota);
    for session in [first, second] {
        assert_eq!(machine.via(session, listen), Err(Errno::EDQUOT));
    }
    assert_eq!(machine.engine.view().counter(Counter::OverQuota), refused + 2);
    machine.via(other, listen).expect("another user has his own");
    machine.engine.view().audit().expect("each is charged for his own");
    machine.via(first, Request::ViaForget { handle: own[0] }).expect("its own");
    machine.via(second, listen).expect("one has come back");
    machine.engine.close_session(NOW, first, &mut machine.hosts);
    for _ in 0..4 {
        machine.via(second, listen).expect("with the session all that it had");
    }
    machine.engine.close_session(NOW, second, &mut machine.hosts);
    machine.engine.close_session(NOW, other, &mut machine.hosts);
    machine.engine.view().audit().expect("nobody is charged any more");
    let listeners = machine.engine.view().users().used(Resource::Listeners);
    assert_eq!(listeners, 0);
}

/// The rings of a session are memory, too: nobody's, until all were killed for it.
#[test]
fn memory_of_sessions_is_charged_to_their_user() {
    let limit = Limit { total: 100 << 20, user: 1 << 20 };
    let quotas = crate::Quotas::default().with(Resource::SessionMemory, limit);
    let mut machine = Machine::new(EngineConfig { quotas, ..EngineConfig::with_secret([1; 16]) });
    let used = |machine: &Machine, uid| {
        let user = machine.engine.view().users().by_cred(Cred::of_user(uid)).expect("he has a session");
        user.used(Resource::SessionMemory)
    };
    let layout = toe_abi::region::RegionLayout { queue_sets: 16, ..LAYOUT };
    let session = machine.engine.open_session(Cred::of_user(7), layout).expect("room");
    let before = used(&machine, 7);
    let added = (0..16).take_while(|_| machine.engine.add_queue_set(session).is_some()).count() as u64;
    let rings = toe_abi::region::QUEUE_SET_STRIDE;
    assert!((5..9).contains(&added), "{added}");
    assert!(used(&machine, 7) - before >= added * rings && used(&machine, 7) <= limit.user);
    let other = machine.attach(8);
    for session in [session, other] {
        machine.engine.close_session(NOW, session, &mut machine.hosts);
        machine.engine.forget_session(session);
    }
    assert_eq!(machine.engine.view().users().used(Resource::SessionMemory), 0);
}

/// Answers that a host does not take lie in the engine's own memory.
#[test]
fn answers_that_nobody_takes_are_charged_and_bounded() {
    let limit = Limit { total: 100 << 20, user: 300 << 10 };
    let quotas = crate::Quotas::default().with(Resource::SessionMemory, limit);
    let mut machine = Machine::new(EngineConfig { quotas, ..EngineConfig::with_secret([1; 16]) });
    let session = machine.attach(7);
    machine.hosts.full.push(session);
    let args = ConnectArgs::default();
    let mut block = [0; 64];
    block.copy_from_slice(args.as_bytes());
    let refused = (0..100_000).find(|token| {
        let command = Command::Connect { token: *token };
        machine.engine.handle_command(NOW, session, QS, command, &block, &mut machine.hosts).is_err()
    });
    assert!(refused.is_some_and(|count| count < 8_000), "{refused:?}");
    assert!(machine.engine.view().users().used(Resource::SessionMemory) < 2 * limit.user);
}

/// The records of flows in a session's region are written by the engine, a page for some of them.
#[test]
fn flows_beyond_what_their_user_may_have_in_memory_are_refused() {
    let limit = Limit { total: 100 << 20, user: 256 << 10 };
    let quotas = crate::Quotas::default().with(Resource::SessionMemory, limit);
    let mut machine = Machine::new(EngineConfig { quotas, ..EngineConfig::with_secret([1; 16]) });
    let session = machine.attach(7);
    let count = machine.connect_all(session);
    assert!((1..1_000).contains(&count), "{count}");
    assert!(machine.engine.view().users().used(Resource::SessionMemory) <= limit.user);
}
