//! A listener whose kernel socket is in a message while nobody has it open.

use super::sessions::{completions_of, second_session};
use super::world::{A, B, World, addr};
use crate::ControlEvent;
use crate::DriverRequest;
use crate::control::names::Twin;
use crate::control::network::NetworkRequest;
use toe_abi::command::ListenArgs;
use toe_abi::entry::{Command, Completion};
use toe_base::AnchorHandle;

/// B listens, A has connected and nobody has taken that; then B's program lets go, and has said that others may have the socket.
fn on_its_way() -> (World, Twin) {
    let mut world = World::new();
    let (now, at) = (world.now, addr(B, 80));
    let side = &mut world.sides[B];
    let twin = Twin { listens: true, ..side.next_twin(now, at.into()) };
    listens(&mut world, twin);
    world.sides[B].deaf = true;
    connects(&mut world);
    let (now, side) = (world.now, &mut world.sides[B]);
    let listener = side.listeners[0];
    side.plain(now, Command::CloseListener { listener, last: false });
    side.engine.handle_control(now, ControlEvent::LastClose(AnchorHandle(0)), &mut side.memory);
    world.run_ms(1);
    (world, twin)
}

/// B's session listens with the kernel socket.
fn listens(world: &mut World, twin: Twin) {
    let (now, side) = (world.now, &mut world.sides[B]);
    let twin = side.show(twin);
    let args = ListenArgs { local: addr(B, 80).into(), backlog: 64, twin, ..Default::default() };
    side.listen_as(now, args).expect("it is the socket's");
}

fn connects(world: &mut World) {
    let now = world.now;
    let conn = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[conn].established));
    world.run_ms(1);
}

/// A second's wait for the next look was a second in which who connected got in, and was reset.
#[test]
fn whether_its_kernel_socket_is_gone_is_looked_at_now() {
    let (mut world, twin) = on_its_way();
    let asked = world.sides[B].engine.poll_request();
    assert_eq!(asked, Some(DriverRequest::Network(NetworkRequest::LookAtTwin { identity: twin.identity })));
    assert_eq!(world.sides[B].engine.poll_request(), None);
}

#[test]
fn whoever_receives_it_gets_all_connections() {
    let (mut world, twin) = on_its_way();
    // Also one that comes meanwhile.
    connects(&mut world);
    let receiver = second_session(&mut world);
    world.sides[B].session = receiver;
    world.sides[B].deaf = false;
    listens(&mut world, twin);
    let (now, side) = (world.now, &mut world.sides[B]);
    side.deaf = true;
    let listener = side.listeners[1];
    (0..3).for_each(|_| side.plain(now, Command::TakeConnection { listener }));
    let told = completions_of(&mut world, receiver);
    let taken = told.iter().filter(|told| matches!(told, Completion::Accepted { .. })).count();
    assert_eq!(taken, 2, "{told:?}");
    world.run_ms(5000);
    assert!(world.sides[A].conns.iter().all(|conn| conn.errno.is_none()), "its time ends nothing any more");
    assert_eq!(world.sides[B].engine.view().totals().listeners, 1);
}

#[test]
fn where_nobody_receives_it_the_connections_end() {
    let (mut world, _) = on_its_way();
    world.run_ms(1900);
    assert!(world.sides[A].conns[0].errno.is_none());
    world.run_ms(200);
    assert!(world.sides[A].conns[0].errno.is_some());
    assert_eq!(world.sides[B].engine.view().totals().listeners, 0);
}

#[test]
fn with_the_kernels_socket_it_ends_at_once() {
    let (mut world, twin) = on_its_way();
    let (now, side) = (world.now, &mut world.sides[B]);
    side.engine.handle_control(now, ControlEvent::SocketGone(twin.identity, now), &mut side.memory);
    assert_eq!(side.engine.view().totals().listeners, 0);
    world.run_ms(10);
    assert!(world.sides[A].conns[0].errno.is_some());
}
