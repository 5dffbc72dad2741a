//! Messages of the control socket, of a host that means harm to the engine and of an engine to a host: packets as they come, and packets that
//! begin as messages do. What is understood is said by one message alone, so that two readers cannot take it for two things.

use super::Bytes;
use toe_abi::INTERFACE_VERSION;
use toe_abi::attach::{BadMessage, MESSAGE_MAGIC, Message, Reply, Request};
use zerocopy::IntoBytes;

/// The packet is bytes alone: its length comes first.
const RAW: u8 = 1;
/// Of a message: one more than each argument can be stands in the place of a small one.
const WIDE: u8 = 2;

/// See the module.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    while !bytes.is_empty() {
        let how = bytes.u8();
        if how & RAW != 0 {
            let len = usize::from(bytes.u8() & 0x7f);
            hear(bytes.take(len));
            continue;
        }
        let kind = u16::from(bytes.u8()) | if how & 4 != 0 { 0x100 } else { 0 };
        let args = std::array::from_fn(|at| match how >> 3 & 3 {
            0 => u64::from(bytes.u8()),
            1 if at < 4 => bytes.u64(),
            _ => u64::from(bytes.u32()) + if how & WIDE != 0 { 1 << 32 } else { 0 },
        });
        let message = Message { magic: MESSAGE_MAGIC, version: INTERFACE_VERSION, kind, args };
        hear(message.as_bytes());
    }
}

fn hear(packet: &[u8]) {
    let message = match Message::parse(packet) {
        Ok(message) => message,
        Err(BadMessage::Version(version)) => return assert_ne!(version, INTERFACE_VERSION),
        Err(bad) => return assert_eq!(bad, BadMessage::NotAMessage),
    };
    if let Ok(request) = Request::decode(&message) {
        assert_eq!(Request::decode(&request.encode()), Ok(request), "a request is read as it was meant");
    }
    if let Ok(reply) = Reply::decode(&message) {
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply), "a reply is read as it was meant");
    }
}
