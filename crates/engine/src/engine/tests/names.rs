//! Whose names are whose: a second user of B's engine, and users of other network namespaces, try to get what the kernel
//! has given to somebody else. The test is the kernel, which lets sockets be bound, listen and go.

use super::world::{A, B, LAYOUT, Side, World, addr, pattern};
use crate::ControlEvent;
use crate::control::names::Twin;
use crate::hostif::anchors::AnchorTarget;
use core::net::SocketAddr;
use toe_abi::command::{NO_HANDLE, WireAddr};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::{Cred, ListenerId, NetNs, SessionId};

const HERE: NetNs = NetNs(0);
const ELSEWHERE: NetNs = NetNs(7);
const ROOT: Cred = Cred { uid: 0, netns: HERE };
const MALLORY: u32 = 1000;

fn attach(world: &mut World, uid: u32, netns: NetNs) -> SessionId {
    let engine = &mut world.sides[B].engine;
    let session = engine.open_session(Cred { uid, netns }, LAYOUT).expect("room");
    engine.add_queue_set(session).expect("room");
    session
}

/// What B's programs do is done by this session.
fn by<R>(world: &mut World, session: SessionId, act: impl FnOnce(&mut Side) -> R) -> R {
    let side = &mut world.sides[B];
    let before = core::mem::replace(&mut side.session, session);
    let result = act(side);
    side.session = before;
    result
}

fn listen(world: &mut World, session: SessionId, at: SocketAddr, twin: Twin) -> Result<ListenerId, Errno> {
    let now = world.now;
    by(world, session, |side| {
        let twin = side.show(twin);
        side.listen_with(now, at, twin)
    })
}

fn connect(
    world: &mut World,
    session: SessionId,
    (from, to): (SocketAddr, SocketAddr),
    twin: Option<Twin>,
) -> Result<usize, Errno> {
    let now = world.now;
    by(world, session, |side| {
        let twin = twin.map_or(NO_HANDLE, |twin| side.show(twin));
        side.connect_with(now, from.into(), to, twin)
    })
}

fn ip(ip: [u8; 4], port: u16) -> SocketAddr {
    SocketAddr::from((ip, port))
}

/// A kernel socket of the engine's own namespace that listens there, seen now.
fn listening(world: &World, at: SocketAddr, identity: u64) -> Twin {
    Twin::listening(at.into(), identity, ROOT, world.now)
}

/// Which users have something at a port of B, by the states of what they have.
fn at_port(world: &World, port: u16) -> Vec<(&'static str, Vec<SessionId>)> {
    let sockets =
        world.sides[B].engine.view().sockets(world.now).into_iter().filter(|s| s.local.port() == port);
    sockets.map(|s| (s.state, s.holders.iter().map(|(session, _)| *session).collect())).collect()
}

#[test]
fn nobody_connects_from_a_port_that_the_kernel_has_not_given_him() {
    let mut world = World::new();
    let mallory = attach(&mut world, MALLORY, HERE);
    let now = world.now;
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    let way = (addr(B, 80), addr(A, 5555));
    let bound = Twin::bound(addr(B, 80).into(), 1, ROOT, now);
    for (twin, why) in [
        (None, "nothing is shown"),
        (Some(Twin { local: addr(B, 81).into(), ..bound }), "another port"),
        (Some(Twin { local: ip([127, 0, 0, 1], 80).into(), ..bound }), "another address"),
        (Some(Twin { netns: ELSEWHERE, ..bound }), "of another namespace"),
    ] {
        for session in [mallory, world.sides[B].session] {
            assert_eq!(connect(&mut world, session, way, twin), Err(Errno::EACCES), "{why}");
        }
    }
    // Bound with SO_REUSEADDR before anybody listened there.
    assert_eq!(connect(&mut world, mallory, way, Some(bound)), Err(Errno::EADDRINUSE));
    let own = world.sides[B].session;
    connect(&mut world, own, way, Some(bound)).expect("the listener's own user");
}

/// It was possible with any port of any listener: flows are looked up before listeners.
#[test]
fn a_syn_for_a_listener_is_for_nobody_who_is_connecting_from_its_port() {
    let mut world = World::new();
    let mallory = attach(&mut world, MALLORY, HERE);
    // Both know each other's hardware address already.
    world.connected_to(addr(B, 79));
    let now = world.now;
    let any = Twin::bound(ip([0; 4], 80).into(), 1, Cred::of_user(MALLORY), now);
    let way = (addr(B, 80), addr(A, 5555));
    world.unplugged = true;
    connect(&mut world, mallory, way, Some(any)).expect("nobody listens there yet");
    world.sides[B].listen(now, addr(B, 80)).expect("the kernel lets both be bound");
    world.run_ms(1);
    world.unplugged = false;
    let now = world.now;
    let a = world.sides[A].connect_from(now, addr(A, 5555).into(), addr(B, 80)).expect("starts");
    assert!(world.run_until(5000, |w| w.sides[A].conns[a].established && w.sides[B].conns.len() == 3));
    let owner = world.sides[B].session;
    let open = at_port(&world, 80).into_iter().filter(|(state, _)| *state == "ESTAB");
    assert_eq!(open.collect::<Vec<_>>(), [("ESTAB", vec![owner])]);
    assert!(world.transfer(A, (a, 2), &pattern(5000, 1), 1000));
}

#[test]
fn a_listener_needs_a_socket_that_the_kernel_lets_listen_there() {
    let mut world = World::new();
    let mallory = attach(&mut world, MALLORY, HERE);
    let at = ip([127, 0, 0, 1], 5432);
    let now = world.now;
    assert_eq!(
        by(&mut world, mallory, |side| side.listen_with(now, at, NO_HANDLE)),
        Err(Errno::EACCES),
        "the kernel's service may be there"
    );
    assert_eq!(
        by(&mut world, mallory, |side| side.listen_with(now, ip([127, 0, 0, 1], 0), NO_HANDLE)),
        Err(Errno::EACCES),
        "and at any port that the engine would choose"
    );
    let good = listening(&world, at, 1);
    for (twin, why) in [
        (Twin { netns: ELSEWHERE, ..good }, "of another namespace"),
        (Twin { listens: false, ..good }, "bound, as with SO_REUSEADDR another may be that listens"),
        (Twin { local: ip([127, 0, 0, 2], 5432).into(), ..good }, "another address"),
        (Twin { local: ip([127, 0, 0, 1], 5433).into(), ..good }, "another port"),
    ] {
        assert_eq!(listen(&mut world, mallory, at, twin), Err(Errno::EACCES), "{why}");
    }
    listen(&mut world, mallory, at, Twin { local: ip([0; 4], 5432).into(), ..good }).expect("all addresses");
    // ip_unprivileged_port_start is the kernel's to judge: it let this one listen.
    let low = listening(&world, addr(B, 80), 2);
    listen(&mut world, mallory, addr(B, 80), low).expect("whatever the user");
}

#[test]
fn no_listener_loses_a_part_of_its_addresses_to_a_socket_that_is_no_more() {
    let mut world = World::new();
    let mallory = attach(&mut world, MALLORY, HERE);
    let owner = world.sides[B].session;
    let (any, one) = (ip([0; 4], 8080), addr(B, 8080));
    let stale = listening(&world, one, 1);
    world.run_ms(1);
    let live = listening(&world, any, 2);
    listen(&mut world, owner, any, live).expect("free");
    for at in [any, one, ip([127, 0, 0, 1], 8080)] {
        let stale = Twin { local: at.into(), ..stale };
        assert_eq!(listen(&mut world, mallory, at, stale), Err(Errno::EADDRINUSE), "{at}");
        let same_time = Twin { seen: live.seen, ..stale };
        assert_eq!(listen(&mut world, mallory, at, same_time), Err(Errno::EADDRINUSE), "{at}");
    }
    let v6 = SocketAddr::from(([0u16; 8], 8080));
    let dual = Twin { local: v6.into(), ..stale };
    assert_eq!(listen(&mut world, mallory, v6, dual), Err(Errno::EADDRINUSE), "of both families");
    assert_eq!(at_port(&world, 8080), [("LISTEN", vec![owner])]);
}

#[test]
fn a_socket_that_listens_proves_that_what_was_seen_there_before_is_no_more() {
    for (first, second) in [([0; 4], [10, 0, 0, 2]), ([10, 0, 0, 2], [0; 4]), ([0; 4], [0; 4])] {
        let mut world = World::new();
        let owner = world.sides[B].session;
        let mallory = attach(&mut world, MALLORY, HERE);
        let twin = listening(&world, ip(first, 8080), 1);
        listen(&mut world, mallory, ip(first, 8080), twin).expect("free");
        world.run_ms(1);
        let twin = listening(&world, ip(second, 8080), 2);
        listen(&mut world, owner, ip(second, 8080), twin).expect("the kernel has given it away");
        assert_eq!(at_port(&world, 8080), [("LISTEN", vec![owner])]);
        let view = world.sides[B].engine.view().session(mallory);
        assert_eq!(view.listeners, 0);
    }
}

#[test]
fn several_listen_at_one_port_when_the_kernel_lets_them() {
    let mut world = World::new();
    let (owner, worker) = (world.sides[B].session, attach(&mut world, 0, HERE));
    let mallory = attach(&mut world, MALLORY, HERE);
    let any = ip([0; 4], 80);
    let shared = |world: &World, identity| Twin { shares_port: true, ..listening(world, any, identity) };
    let twin = shared(&world, 1);
    listen(&mut world, owner, any, twin).expect("free");
    world.run_ms(1);
    let twin = shared(&world, 2);
    listen(&mut world, worker, any, twin).expect("SO_REUSEPORT, one user");
    assert_eq!(at_port(&world, 80), [("LISTEN", vec![owner, worker])]);
    // A descriptor that was passed on: whoever has it has the right.
    let (now, twin) = (world.now, shared(&world, 2));
    listen(&mut world, mallory, any, twin).expect("the same socket");
    by(&mut world, mallory, |side| {
        let listener = side.listeners.pop().expect("listens");
        side.plain(now, Command::CloseListener { listener, last: true });
    });
    assert_eq!(at_port(&world, 80), [("LISTEN", vec![owner, worker])]);
    // SO_REUSEPORT of two users: the kernel would not let both, so the first have gone.
    world.run_ms(1);
    let twin = Twin { uid: MALLORY, ..shared(&world, 3) };
    listen(&mut world, mallory, any, twin).expect("the kernel has given it away");
    assert_eq!(at_port(&world, 80), [("LISTEN", vec![mallory])]);
}

#[test]
fn a_listener_ends_with_the_last_socket_that_it_rests_on() {
    let mut world = World::new();
    let (owner, worker) = (world.sides[B].session, attach(&mut world, 0, HERE));
    let any = ip([0; 4], 80);
    let shared = |world: &World, identity| Twin { shares_port: true, ..listening(world, any, identity) };
    let (first, second) = (shared(&world, 1), shared(&world, 2));
    listen(&mut world, owner, any, first).expect("free");
    listen(&mut world, worker, any, second).expect("shares the port");
    let now = world.now;
    // The worker takes none, and the owner no more.
    world.sides[B].deaf = true;
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].established));
    let now = world.now;
    let Side { engine, memory, .. } = &mut world.sides[B];
    engine.handle_control(now, ControlEvent::SocketGone(3, now), memory);
    engine.handle_control(now, ControlEvent::SocketGone(1, now), memory);
    assert_eq!(at_port(&world, 80)[0], ("LISTEN", vec![worker]));
    let Side { engine, memory, .. } = &mut world.sides[B];
    engine.handle_control(now, ControlEvent::SocketGone(2, now), memory);
    assert!(at_port(&world, 80).iter().all(|(state, _)| *state != "LISTEN"));
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].errno == Some(Errno::ECONNRESET)));
    let again = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[again].errno == Some(Errno::ECONNREFUSED)));
    let now = world.now;
    world.sides[B].deaf = false;
    world.sides[B].listen(now, addr(B, 80)).expect("free");
}

/// By shutdown: it may listen again, at the kernel, before a look at it; who has connected to it until then would wait for ever.
#[test]
fn a_listener_ends_for_all_who_listen_by_a_socket_when_one_shuts_it_down() {
    let mut world = World::new();
    let (owner, worker) = (world.sides[B].session, attach(&mut world, 0, HERE));
    let other = attach(&mut world, 0, HERE);
    let any = ip([0; 4], 80);
    // Who looks at sockets has a clock of its own.
    let seen = world.now.after_us(3_600_000_000);
    let shared =
        |world: &World, identity| Twin { shares_port: true, seen, ..listening(world, any, identity) };
    for (session, identity) in [(owner, 1), (worker, 1), (other, 2)] {
        let twin = shared(&world, identity);
        listen(&mut world, session, any, twin).expect("one socket, and one that shares the port");
    }
    let end = |world: &mut World, session, listener| {
        let now = world.now;
        by(world, session, |side| side.plain(now, Command::EndListener { listener }));
    };
    let [first, _, third] = world.sides[B].listeners[..] else { panic!("three listen") };
    end(&mut world, owner, first);
    assert_eq!(at_port(&world, 80), [("LISTEN", vec![other])], "the other socket listens on");
    end(&mut world, owner, first);
    end(&mut world, other, third);
    assert_eq!(at_port(&world, 80), []);
}

/// Shut down and made to listen again, as what it may be shown before the engine hears that it had stopped.
#[test]
fn what_rests_on_a_socket_that_listens_again_stays() {
    let mut world = World::new();
    let session = world.sides[B].session;
    let at = ip([0; 4], 80);
    let first = listening(&world, at, 1);
    listen(&mut world, session, at, first).expect("free");
    world.run_ms(1);
    let looked_at = world.now;
    world.run_ms(1);
    let again = listening(&world, at, 1);
    listen(&mut world, session, at, again).expect("it is the same socket");
    let Side { engine, memory, .. } = &mut world.sides[B];
    engine.handle_control(looked_at, ControlEvent::SocketGone(1, looked_at), memory);
    assert_eq!(at_port(&world, 80), [("LISTEN", vec![session])]);
    let now = world.now;
    let Side { engine, memory, .. } = &mut world.sides[B];
    engine.handle_control(now, ControlEvent::SocketGone(1, now), memory);
    assert_eq!(at_port(&world, 80), []);
}

#[test]
fn a_socket_that_has_gone_before_its_command_came_is_none() {
    let mut world = World::new();
    let (now, at) = (world.now, addr(B, 80));
    let twin = listening(&world, at, 1);
    let handle = world.sides[B].show(twin);
    let Side { engine, memory, .. } = &mut world.sides[B];
    engine.handle_control(now, ControlEvent::SocketGone(1, now), memory);
    assert_eq!(world.sides[B].listen_with(now, at, handle), Err(Errno::EACCES));
}

#[test]
fn a_program_may_bind_and_connect_as_often_as_it_likes() {
    let mut world = World::new();
    let session = world.sides[B].session;
    let now = world.now;
    let bound = Twin::bound(addr(B, 7000).into(), 1, ROOT, now);
    for n in 0..10_000 {
        // A socket with itself: nothing else is left of it.
        let way = (addr(B, 7000), addr(B, 7000));
        assert_eq!(connect(&mut world, session, way, Some(bound)), Err(Errno::ECONNREFUSED), "{n}");
    }
    // Those that no command has named yet are not overwritten, and leave room once they have gone.
    let side = &mut world.sides[B];
    let held: Vec<u32> = core::iter::from_fn(|| side.engine.add_twin(session, bound)).collect();
    assert!(held.len() >= 100);
    let Side { engine, memory, .. } = side;
    engine.handle_control(now, ControlEvent::SocketGone(1, now), memory);
    assert!(engine.add_twin(session, bound).is_some());
    let rests = engine.names.rests.iter().count();
    assert_eq!(rests, 1, "nothing is left of those");
    engine.close_session(now, session, memory);
    assert_eq!(engine.names.rests.iter().count(), 0);
}

#[test]
fn loopback_is_a_namespaces_own() {
    let mut world = World::new();
    let inside = attach(&mut world, MALLORY, ELSEWHERE);
    let own = world.sides[B].session;
    let lo = ip([127, 0, 0, 1], 8080);
    let twin = listening(&world, lo, 1);
    listen(&mut world, own, lo, twin).expect("free");
    let from = |port: u16| (WireAddr::default(), ip([127, 0, 0, 1], port));
    let try_from = |world: &mut World, session, (from, to): (WireAddr, SocketAddr)| {
        let now = world.now;
        by(world, session, |side| side.connect_with(now, from, to, NO_HANDLE))
    };
    assert_eq!(try_from(&mut world, inside, from(8080)), Err(Errno::ECONNREFUSED), "not the engine's own");
    // The same name there is another one, and both may have it.
    let theirs = Twin { netns: ELSEWHERE, ..listening(&world, lo, 2) };
    let listener = listen(&mut world, inside, lo, theirs).expect("free there");
    assert_eq!(world.sides[B].engine.view().totals().scopes, 1);
    let b = try_from(&mut world, inside, from(8080)).expect("of its own namespace");
    assert!(world.run_until(1000, |w| at_port(w, 8080).iter().any(|(state, _)| *state == "ESTAB")));
    let sockets = world.sides[B].engine.view().sockets(world.now);
    let of = |netns| sockets.iter().filter(|s| s.netns == netns).map(|s| s.state).collect::<Vec<_>>();
    assert_eq!(of(HERE), ["LISTEN"]);
    assert_eq!(of(ELSEWHERE), ["LISTEN", "ESTAB", "ESTAB"]);

    // All of it goes, and with it the namespace.
    let (now, flow) = (world.now, world.sides[B].conns[b].id);
    by(&mut world, inside, |side| {
        side.plain(now, Command::Close { flow, abort: true });
        side.plain(now, Command::CloseListener { listener, last: true });
        side.engine.close_session(now, inside, &mut side.memory);
    });
    world.run_ms(300_000);
    world.sides[B].engine.forget_session(inside);
    assert_eq!(world.sides[B].engine.view().totals().scopes, 0);
    assert_eq!(at_port(&world, 8080), [("LISTEN", vec![own])]);
}

#[test]
fn links_are_of_the_engines_own_namespace() {
    let mut world = World::new();
    let inside = attach(&mut world, 0, ELSEWHERE);
    let now = world.now;
    world.sides[A].listen(now, addr(A, 80)).expect("listens");
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    for to in [addr(A, 80), addr(B, 80)] {
        let result = by(&mut world, inside, |side| side.connect(now, to));
        assert_eq!(result, Err(Errno::ENETUNREACH), "{to}: the kernel's stack is asked");
    }
    let theirs = |at: SocketAddr| Twin { netns: ELSEWHERE, ..Twin::listening(at.into(), 9, ROOT, now) };
    let at_link = listen(&mut world, inside, addr(B, 81), theirs(addr(B, 81)));
    assert_eq!(at_link, Err(Errno::EADDRNOTAVAIL));
    let any = ip([0; 4], 80);
    listen(&mut world, inside, any, theirs(any)).expect("for its own loopback");
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].established));
    world.run_ms(10);
    let open = at_port(&world, 80).into_iter().find(|(state, _)| *state == "ESTAB");
    assert_eq!(open, Some(("ESTAB", vec![world.sides[B].session])));
    let from_lo = ip([127, 0, 0, 1], 0).into();
    let result = by(&mut world, inside, |side| side.connect_with(now, from_lo, addr(A, 80), NO_HANDLE));
    assert_eq!(result, Err(Errno::ENETUNREACH));
}

/// Whoever holds a descriptor has the right to what it stands for, wherever it came from.
#[test]
fn what_is_passed_to_another_namespace_stays_of_its_own() {
    let mut world = World::new();
    let inside = attach(&mut world, 0, ELSEWHERE);
    let (a, b) = world.connected();
    let (now, anchor) = (world.now, world.sides[B].conns[b].anchor);
    let Side { engine, memory, .. } = &mut world.sides[B];
    assert!(matches!(engine.hostif.anchors.get(anchor), Some(AnchorTarget::Flow(_))));
    let claimed = engine.claim(now, inside, toe_base::QueueSetId(0), 9, anchor, memory);
    assert!(matches!(claimed, Ok(crate::Changed::Flow(_, _))), "{claimed:?}");
    assert!(world.sides[B].engine.view().sockets(world.now).iter().all(|socket| socket.netns == HERE));
    world.close(A, a);
}
