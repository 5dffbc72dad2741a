//! The link of an engine in virtual time: Ethernet around datagrams, and the far end's answers to ARP.

use crate::packet::{FAR_ADDR, STACK_ADDR};
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::eth::{self, EthRepr, EtherType};
use toe_wire::link::{FrameSink, MacAddr, TxOffload};

pub(super) const STACK_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const FAR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Frames that the engine sends.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    frame: Vec<u8>,
    pub(super) sent: Vec<(Vec<u8>, TxOffload)>,
}

impl FrameSink for Outbox {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame = vec![0xee; len];
        Some(&mut self.frame)
    }

    fn commit(&mut self, offload: TxOffload) {
        self.sent.push((core::mem::take(&mut self.frame), offload));
    }
}

/// The frame that carries a datagram of the far end.
pub(super) fn frame_around(datagram: &[u8]) -> Vec<u8> {
    frame_of(EtherType::Ipv4, datagram)
}

/// The same for any packet.
pub(super) fn frame_of(ethertype: EtherType, datagram: &[u8]) -> Vec<u8> {
    let header = EthRepr { dst: STACK_MAC, src: FAR_MAC, ethertype };
    let mut frame = vec![0; eth::HEADER_LEN];
    header.emit(&mut frame);
    frame.extend_from_slice(datagram);
    frame
}

/// The far end's ARP message of this kind.
pub(super) fn arp(operation: ArpOperation) -> Vec<u8> {
    let header = EthRepr { dst: STACK_MAC, src: FAR_MAC, ethertype: EtherType::Arp };
    let message = ArpRepr {
        operation,
        sender_mac: FAR_MAC,
        sender_ip: FAR_ADDR,
        target_mac: STACK_MAC,
        target_ip: STACK_ADDR,
    };
    let mut frame = vec![0; eth::HEADER_LEN + message.header_len()];
    header.emit(&mut frame);
    message.emit(&mut frame[eth::HEADER_LEN..]);
    frame
}
