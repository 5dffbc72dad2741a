//! The program's UDP socket on the engine in virtual time: shown, and its records handed over, as the daemon does with lanes.

use super::EngineStack;
use crate::datagram::packet::{FAR_PORT, STACK_ADDR6, Sent};
use crate::datagram::{DatagramStack, PORTS};
use crate::packet::FAR_ADDR;
use crate::stack::StackError;
use toe_abi::attach::Use;
use toe_abi::lane::DatagramHeader;
use toe_base::{Addr, DatagramId, Endpoint, NetNs};
use toe_engine::NetworkChange;
use toe_engine::udp::Presented;
use toe_wire::eth::EtherType;

/// Bytes that the socket's queue holds; nothing here is ever queued.
const RECEIVE_BUFFER: u32 = 212_992;

impl EngineStack {
    fn socket(&self) -> Result<DatagramId, StackError> {
        self.datagrams.ok_or_else(|| StackError("`bind` comes first".to_owned()))
    }
}

impl DatagramStack for EngineStack {
    fn bind(&mut self) -> Result<(), StackError> {
        self.engine.handle_network(NetworkChange::Address {
            port: self.port,
            addr: Addr::v6(STACK_ADDR6, 0),
            prefix_len: 64,
        });
        let presented = Presented {
            local: Endpoint { addr: Addr::UNSPECIFIED_V6, port: PORTS.0 },
            peer: None,
            v6_only: false,
            identity: 1,
            netns: NetNs::default(),
            shares_port: false,
            receive_buffer: RECEIVE_BUFFER,
        };
        let hears = (Use::Hears, Endpoint::UNSPECIFIED_V4);
        let opened = self.engine.open_datagrams(self.now, self.program.session, hears, &presented);
        let end =
            opened.map_err(|errno| StackError(format!("the engine refuses the socket: {errno:?}")))?.end;
        self.datagrams = end.map(|end| end.id);
        self.socket().map(|_| ())
    }

    fn packet_arrives(&mut self, packet: &[u8], v6: bool) -> Result<(), StackError> {
        let ethertype = if v6 { EtherType::Ipv6 } else { EtherType::Ipv4 };
        self.frame_arrives(&super::link::frame_of(ethertype, packet));
        self.settle()
    }

    fn heard(&mut self) -> Option<Vec<u8>> {
        self.memory.heard.pop_front()
    }

    fn reply(&mut self, bytes: &[u8]) -> Result<(), StackError> {
        let id = self.socket()?;
        let peer = Endpoint { addr: Addr::v4(FAR_ADDR), port: FAR_PORT };
        let head = DatagramHeader { peer: peer.into(), ..DatagramHeader::default() };
        let (_, incoming) = self.engine.handle_datagrams(self.now, id, &head, bytes);
        self.memory.take(self.now, &mut self.engine, incoming);
        self.settle()
    }

    fn packet_sent(&mut self) -> Option<Sent> {
        self.packets.pop_front()
    }
}
