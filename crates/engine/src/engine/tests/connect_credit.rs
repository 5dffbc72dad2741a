//! Connections whose host does not wait for an answer: which ids it is given for that, what it may do with them, and how it
//! learns that who listened does so no longer.

use super::direct::Machine;
use crate::ControlEvent;
use toe_abi::attach::FenceReason;
use toe_abi::command::ConnectArgs;
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, FlowId, QueueSetId, SessionId};
use zerocopy::IntoBytes;

const UID: u32 = 1000;

fn given(machine: &mut Machine, session: SessionId) -> Vec<FlowId> {
    let credit = |completion| match completion {
        Completion::ConnectCredit { flow } => Some(flow),
        _ => None,
    };
    machine.told(session).into_iter().filter_map(credit).collect()
}

/// `Connect` with an id; the anchor, and what the engine says to the entry.
fn connect_as(
    machine: &mut Machine,
    session: SessionId,
    flow: FlowId,
    port: u16,
) -> (AnchorHandle, Result<(), FenceReason>) {
    let anchor = machine.engine.hostif.new_anchor(session);
    let remote = core::net::SocketAddr::from(([127, 0, 0, 1], port));
    let args =
        ConnectArgs { remote: remote.into(), anchor: anchor.0, flow: flow.raw(), ..ConnectArgs::default() };
    let mut block = [0; 64];
    block.copy_from_slice(args.as_bytes());
    let command = Command::Connect { token: 7 };
    let Machine { engine, hosts, now, .. } = machine;
    (anchor, engine.handle_command(*now, session, QueueSetId(0), command, &block, hosts))
}

#[test]
fn a_connection_with_an_id_in_advance_is_like_any_other_and_is_not_answered() {
    let mut machine = Machine::new(UID);
    let client = machine.attach(UID);
    machine.connect(client);
    let ids = given(&mut machine, client);
    assert!(!ids.is_empty(), "whoever connects may do so again");
    let flow = ids[0];
    let (anchor, outcome) = connect_as(&mut machine, client, flow, 8080);
    assert_eq!(outcome, Ok(()));
    let told = machine.told(client);
    assert!(told.contains(&Completion::Connected { flow, errno: Errno::OK }), "{told:?}");
    assert!(!told.iter().any(|c| matches!(c, Completion::CommandResult { .. })), "{told:?}");
    assert_eq!(machine.anchor_of((client, flow)), Some(anchor));
    machine.command(client, Command::CloseRetained { flow, anchor, abort: false }, &[]);
    assert_eq!(machine.anchor_of((client, flow)), None);
    // What was used up is given anew, by another name.
    let again: Vec<_> = told.iter().filter(|c| matches!(c, Completion::ConnectCredit { .. })).collect();
    assert!(!again.is_empty() && !again.contains(&&Completion::ConnectCredit { flow }), "{again:?}");
}

#[test]
fn an_id_is_for_one_connection_of_the_session_that_it_was_given_to() {
    let mut machine = Machine::new(UID);
    let (client, other) = (machine.attach(UID), machine.attach(UID));
    machine.connect(client);
    let flow = given(&mut machine, client)[0];
    let refused = Err(FenceReason::BadArgument);
    assert_eq!(connect_as(&mut machine, other, flow, 8080).1, refused, "another's");
    let made_up = FlowId::new(flow.slot() as u32, 77);
    assert_eq!(connect_as(&mut machine, client, made_up, 8080).1, refused);
    assert_eq!(
        connect_as(&mut machine, client, FlowId::new(60, 0), 8080).1,
        refused,
        "a slot that is not there"
    );
    assert_eq!(connect_as(&mut machine, client, flow, 8080).1, Ok(()));
    assert_eq!(connect_as(&mut machine, client, flow, 8080).1, refused, "used");
    machine.engine.view().audit().unwrap();
}

#[test]
fn what_cannot_be_tried_is_told_like_any_refusal_and_its_anchor_comes_back() {
    let mut machine = Machine::new(UID);
    let client = machine.attach(UID);
    machine.connect(client);
    let flow = given(&mut machine, client)[0];
    let (anchor, outcome) = connect_as(&mut machine, client, flow, 9);
    assert_eq!(outcome, Ok(()));
    let told = machine.told(client);
    assert!(told.contains(&Completion::Connected { flow, errno: Errno::ECONNREFUSED }), "{told:?}");
    let Machine { engine, hosts, now, .. } = &mut machine;
    engine.handle_control(*now, ControlEvent::LastClose(anchor), hosts);
    let told = machine.told(client);
    assert!(told.contains(&Completion::AnchorFree { anchor }), "{told:?}");
    assert_eq!(connect_as(&mut machine, client, flow, 8080).1, Err(FenceReason::BadArgument), "spent");
}

#[test]
fn the_end_of_a_listener_is_a_lapse_and_nothing_else_here_is() {
    let mut machine = Machine::new(UID);
    let client = machine.attach(UID);
    let before = machine.engine.view().lapses();
    machine.connect(client);
    machine.connect(client);
    assert_eq!(machine.engine.view().lapses(), before);
    machine.end_listener();
    assert_ne!(machine.engine.view().lapses(), before);
}
