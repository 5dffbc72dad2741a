//! Frames that belong to no flow's stream: ARP, ICMP echo replies, lone resets. At most one a frame received, and
//! queued in a bounded list, so nobody can use the engine to amplify.

use super::builder::{Envelope, FrameBuilder};
use super::segment::{self, NoRoom};
use crate::work::ControlFrame;
use toe_wire::arp::{self, ArpOperation, ArpRepr};
use toe_wire::eth::{self, EthRepr, EtherType};
use toe_wire::icmp::{self, IcmpRepr};
use toe_wire::ipv4::Protocol;
use toe_wire::link::{FrameSink, MacAddr, TxOffload};
use toe_wire::tcp;

/// Builds the frame in `sink` and hands it over.
pub fn emit(sink: &mut dyn FrameSink, mac: MacAddr, control: &ControlFrame) -> Result<(), NoRoom> {
    match control {
        ControlFrame::ArpRequest { target, source } => {
            let message = ArpRepr {
                operation: ArpOperation::Request,
                sender_mac: mac,
                sender_ip: *source,
                target_mac: MacAddr::default(),
                target_ip: *target,
            };
            emit_arp(sink, mac, MacAddr::BROADCAST, &message)
        }
        ControlFrame::ArpReply { to_mac, to, source } => {
            let message = ArpRepr {
                operation: ArpOperation::Reply,
                sender_mac: mac,
                sender_ip: *source,
                target_mac: *to_mac,
                target_ip: *to,
            };
            emit_arp(sink, mac, *to_mac, &message)
        }
        ControlFrame::EchoReply { to_mac, to, source, ident, seq, data } => {
            let envelope =
                Envelope { from_mac: mac, to_mac: *to_mac, from: *source, to: *to, traffic_class: 0 };
            let len = FrameBuilder::frame_len(icmp::HEADER_LEN + data.len());
            let frame = sink.frame(len).ok_or(NoRoom)?;
            let mut builder = FrameBuilder::ipv4(frame, &envelope, Protocol::Icmp);
            let message = builder.transport();
            message[icmp::HEADER_LEN..].copy_from_slice(data);
            IcmpRepr::EchoReply { ident: *ident, sequence: *seq }.emit(message);
            sink.commit(TxOffload::default());
            Ok(())
        }
        ControlFrame::Tcp { to_mac, key, segment } => {
            let (from, to) = (*key.local.ip(), *key.remote.ip());
            let envelope = Envelope { from_mac: mac, to_mac: *to_mac, from, to, traffic_class: 0 };
            let header = segment::header(key, segment);
            let frame = sink.frame(FrameBuilder::frame_len(header.header_len())).ok_or(NoRoom)?;
            let mut builder = FrameBuilder::ipv4(frame, &envelope, Protocol::Tcp);
            header.emit(builder.transport());
            tcp::store_checksum(builder.transport(), envelope.from, envelope.to);
            sink.commit(TxOffload::default());
            Ok(())
        }
    }
}

fn emit_arp(sink: &mut dyn FrameSink, mac: MacAddr, to: MacAddr, message: &ArpRepr) -> Result<(), NoRoom> {
    let frame = sink.frame(eth::HEADER_LEN + arp::MESSAGE_LEN).ok_or(NoRoom)?;
    EthRepr { dst: to, src: mac, ethertype: EtherType::Arp }.emit(frame);
    message.emit(&mut frame[eth::HEADER_LEN..]);
    sink.commit(TxOffload::default());
    Ok(())
}
