//! More bytes on one connection than there are sequence numbers. Memory is pretended: only places are checked.

use crate::control::names::Twin;
use crate::kit::FakeHosts;
use crate::{Engine, EngineConfig};
use core::net::SocketAddr;
use toe_abi::command::{ConnectArgs, ListenArgs};
use toe_abi::entry::{Command, Completion, MemRange, ReceiveCredit, Send};
use toe_abi::region::RegionLayout;
use toe_base::{FlowId, Instant, ListenerId, NetNs, QueueSetId, SessionId};
use toe_tcp::config::TcpConfig;
use zerocopy::IntoBytes;

const QS: QueueSetId = QueueSetId(0);
const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 8, receive_len: 32 << 20, send_len: 16 << 20 };

struct Ends {
    engine: Engine,
    host: FakeHosts,
    session: SessionId,
    now: Instant,
}

impl Ends {
    fn command(&mut self, command: Command, args: &[u8]) {
        let mut block = [0; 64];
        block[..args.len()].copy_from_slice(args);
        self.engine
            .handle_command(self.now, self.session, QS, command, &block, &mut self.host)
            .expect("well-formed");
    }

    fn next(&mut self) -> Option<Completion> {
        if self.host.completions.is_empty() {
            while self.engine.poll_local(self.now, &mut self.host, 64) > 0 {}
            self.host.hear(&mut self.engine);
        }
        self.host.completions.pop_front().map(|(_, completion)| completion)
    }

    fn result(&mut self) -> FlowId {
        match self.next() {
            Some(Completion::CommandResult { id, .. }) => FlowId::from_raw(id),
            other => panic!("{other:?}"),
        }
    }

    fn connected() -> (Ends, FlowId, FlowId) {
        let mut engine = Engine::new(EngineConfig {
            secret: [3; 16],
            netns: NetNs(0),
            ports: crate::PortRange::DEFAULT,
            quotas: Default::default(),
            flows_max: 8,
            direct: true,
            tcp: TcpConfig::default(),
        });
        engine.handle_network(crate::NetworkChange::Loopback);
        let session = engine.open_session(toe_base::Cred::default(), LAYOUT).expect("room");
        engine.add_queue_set(session).expect("room");
        let mut ends = Ends { engine, host: FakeHosts::default(), session, now: Instant::from_millis(1) };
        let at: SocketAddr = "127.0.0.1:80".parse().expect("an address");
        let anchor = ends.engine.hostif.new_anchor(session).0;
        let twin = Twin::listening(at.into(), 1, toe_base::Cred::default(), ends.now);
        let twin = ends.engine.add_twin(session, twin).expect("room");
        let args = ListenArgs { local: at.into(), backlog: 4, anchor, twin, ..Default::default() };
        ends.command(Command::Listen { token: 0 }, args.as_bytes());
        let listener = ListenerId(ends.result());
        ends.command(Command::AcceptCredit { listener, count: 1 }, &[]);
        let anchor = ends.engine.hostif.new_anchor(session).0;
        let args = ConnectArgs { remote: at.into(), anchor, ..Default::default() };
        ends.command(Command::Connect { token: 0 }, args.as_bytes());
        let client = ends.result();
        let mut server = None;
        for _ in 0..2 {
            if let Some(Completion::Accepted { flow, .. }) = ends.next() {
                server = Some(flow);
            }
        }
        let server = server.expect("accepted");
        let anchor = ends.engine.hostif.new_anchor(session);
        ends.command(Command::Accept { flow: server, anchor, fd: 4 }, &[]);
        (ends, client, server)
    }
}

/// Twice round the sequence space; the reader always leaves something unread, so nothing ever starts afresh.
#[test]
fn nine_gigabytes_go_through_one_connection() {
    let total = 9u64 << 30;
    let (mut ends, client, server) = Ends::connected();
    let unit = 4 << 20;
    let (mut sent, mut acked, mut got, mut given) = (0u64, 0u64, 0u64, 0u64);
    while got < total {
        while sent - acked < 2 * u64::from(unit) {
            let data = MemRange { offset: LAYOUT.send_offset() + sent % (16 << 20), len: unit };
            ends.engine.handle_send(ends.now, ends.session, Send::new(client, data)).expect("fits");
            sent += u64::from(unit);
        }
        ends.now = ends.now.after_us(100);
        let before = (acked, got);
        while let Some(told) = ends.next() {
            match told {
                Completion::Sent { flow, len } if flow == client => acked += u64::from(len),
                Completion::Data { flow, data } if flow == server => got += u64::from(data.len),
                other => panic!("{other:?}"),
            }
        }
        let len = (got - given).saturating_sub(1) as u32;
        given += u64::from(len);
        ends.engine
            .handle_credit(ends.now, ends.session, ReceiveCredit { flow: server, len })
            .expect("announced");
        assert!(before != (acked, got) || len > 0, "it stands still at {got}");
    }
    assert!(ends.host.copied >= got);
    let (low, high) = ends.host.copied_to.expect("some");
    let all = MemRange { offset: low, len: (high - low) as u32 };
    assert!(all.lies_in(LAYOUT.receive_offset(), LAYOUT.receive_len));
}
