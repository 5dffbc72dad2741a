//! What a session has sent counts before another's word that it takes no more, if its program sent it before.

use super::direct::{CLIENT_UID, Ends, LAYOUT, Machine};
use crate::ControlEvent;
use toe_abi::entry::{Command, Completion, FlowOption, MemRange, Send};
use toe_abi::errno::Errno;
use toe_base::{FlowId, SessionId};

/// A client's bytes of which the engine knows and which no turn has brought to the server yet, and then what the server says.
/// Returns what both were told.
fn sent_and_shut(of_the_server: &[fn(FlowId) -> Command]) -> [Vec<Completion>; 2] {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let [own, other]: Ends = m.connect(client);
    let data = MemRange { offset: LAYOUT.send_offset(), len: 5 };
    m.engine.handle_send(m.now, own.0, Send::new(own.1, data)).expect("fits");
    for command in of_the_server {
        carry_out(&mut m, other, client, command(other.1));
    }
    [m.told(client), m.told(other.0)]
}

/// As the driver does.
fn carry_out(m: &mut Machine, end: (SessionId, FlowId), peer: SessionId, command: Command) {
    if let Some(owner) = m.engine.view().counts_after(end.0, command) {
        assert_eq!(owner, peer, "its rings come first");
    }
    let queue_set = toe_base::QueueSetId(0);
    m.engine.handle_command(m.now, end.0, queue_set, command, &[0; 64], &mut m.hosts).expect("well-formed");
}

fn take_no_more(flow: FlowId) -> Command {
    Command::SetOption { flow, option: FlowOption::ReceiveShut, value: 1 }
}

fn send_no_more(flow: FlowId) -> Command {
    Command::ShutdownSend { flow }
}

/// Found by random calls beside the kernel: about one time in twenty the reader's shutdown was taken first, and the bytes were
/// answered with a reset.
#[test]
fn what_was_sent_before_both_directions_were_shut_is_data() {
    for order in [[send_no_more, take_no_more], [take_no_more, send_no_more]] {
        let [client, server] = sent_and_shut(&order);
        let is_reset = |c: &Completion| matches!(c, Completion::Reset { .. });
        assert!(!client.iter().chain(&server).any(is_reset), "{client:?} {server:?}");
        assert!(
            server.iter().any(|c| matches!(c, Completion::Data { data, .. } if data.len == 5)),
            "{server:?}"
        );
        assert!(client.iter().any(|c| matches!(c, Completion::PeerClosed { .. })), "{client:?}");
    }
}

/// The other end has its turn first, since there was something for it to do: its bytes meet a connection whose end waits for a turn.
#[test]
fn who_sends_after_a_close_hears_of_that_before_the_reset() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let [own, other]: Ends = m.connect(client);
    m.told(client);
    let no_delay = Command::SetOption { flow: own.1, option: FlowOption::NoDelay, value: 1 };
    carry_out(&mut m, own, other.0, no_delay);
    let anchor = m.anchor_of(other).expect("it has one");
    m.engine.handle_control(m.now, ControlEvent::LastClose(anchor), &mut m.hosts);
    let data = MemRange { offset: LAYOUT.send_offset(), len: 5 };
    m.engine.handle_send(m.now, own.0, Send::new(own.1, data)).expect("fits");
    let told = m.told(client);
    let reset = Completion::Reset { flow: own.1, errno: Errno::EPIPE };
    assert!(told.contains(&Completion::PeerClosed { flow: own.1 }) && told.contains(&reset), "{told:?}");
}
