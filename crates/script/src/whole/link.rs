//! What lies between the engine and the far end, in this thread's namespace: a TAP of the engine's, or a veth at the kernel's own
//! address, whose frames the kernel sorts (`xdp:`).

use crate::far_link;
use crate::namespace::{ip, sysctl};
use crate::packet::{FAR_ADDR, STACK_ADDR};
use crate::stack::StackError;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use toe_port::{Driver, Port, PortSpec};
use toe_wire::MacAddr;
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::link::{RxOffload, TxOffload};

/// The engine's interface, and the other end of a veth.
const LINK: &str = "script0";
const FAR_LINK: &str = "script1";
/// The hardware address of the engine's end of a veth.
const VETH_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// How long the engine may take to say its hardware address.
const ARP_LIMIT: Duration = Duration::from_secs(5);

/// Which of the engine's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    Tap,
    Xdp,
}

impl FromStr for LinkKind {
    type Err = String;

    fn from_str(word: &str) -> Result<LinkKind, String> {
        match word {
            "tap" => Ok(LinkKind::Tap),
            "xdp" => Ok(LinkKind::Xdp),
            _ => Err("tap or xdp".to_owned()),
        }
    }
}

impl LinkKind {
    /// Makes what an engine finds there when it starts.
    pub(super) fn prepare(self) -> Result<(), StackError> {
        if self == LinkKind::Tap {
            return Ok(());
        }
        // What comes for the far end is not for this kernel to send on.
        sysctl("ipv4/ip_forward", "0")?;
        ip(&format!(
            "link add {LINK} address {VETH_MAC} type veth peer name {FAR_LINK}\n\
             addr add {STACK_ADDR}/24 dev {LINK}\n\
             link set {LINK} up\n\
             link set {FAR_LINK} up\n"
        ))?;
        // What leaves the far end comes to a program, not to a kernel that finishes it.
        let offloads = ["-K", FAR_LINK, "tx", "off", "tso", "off", "gso", "off"];
        let status = Command::new("ethtool").args(offloads).stdout(Stdio::null()).status();
        let status = status.map_err(|error| StackError::new("running ethtool", error))?;
        if status.success() { Ok(()) } else { Err(StackError(format!("ethtool: {status}"))) }
    }

    /// What `toed` is told of it.
    pub(super) fn flags(self) -> Vec<String> {
        match self {
            // The engine makes it, with an address of its own.
            LinkKind::Tap => vec![format!("--port=tap:{LINK}"), format!("--addr={STACK_ADDR}/24")],
            LinkKind::Xdp => vec![format!("--port=xdp:{LINK}")],
        }
    }
}

/// The far end of a link.
pub(super) struct FarEnd {
    port: Box<dyn Port>,
    stack_mac: MacAddr,
}

impl FarEnd {
    /// After the engine has started.
    pub(super) fn open(kind: LinkKind) -> Result<FarEnd, StackError> {
        let (interface, stack_mac) = match kind {
            LinkKind::Tap => (LINK, MacAddr::BROADCAST),
            LinkKind::Xdp => (FAR_LINK, VETH_MAC),
        };
        let spec =
            PortSpec { driver: Driver::Packet, interface: interface.to_owned(), vlan: None, faults: None };
        let port = toe_port::open(&spec).map_err(|error| StackError::new("opening the link", error))?;
        if kind == LinkKind::Xdp {
            let far_mac = port.mac();
            ip(&format!("neigh replace {FAR_ADDR} lladdr {far_mac} dev {LINK} nud permanent\n"))?;
        }
        Ok(FarEnd { port, stack_mac })
    }

    /// The engine's hardware address, where that is its own to choose.
    pub(super) fn find_stack(&mut self) -> Result<(), StackError> {
        let start = Instant::now();
        while self.stack_mac == MacAddr::BROADCAST {
            if start.elapsed() > ARP_LIMIT {
                return Err(StackError("the engine does not answer ARP".to_owned()));
            }
            self.send_arp(ArpOperation::Request)?;
            self.wait(20_000)?;
            self.take(|_, _| Ok(()))?;
        }
        Ok(())
    }

    fn send_arp(&mut self, operation: ArpOperation) -> Result<(), StackError> {
        let message = ArpRepr {
            operation,
            sender_mac: self.port.mac(),
            sender_ip: FAR_ADDR,
            target_mac: self.stack_mac,
            target_ip: STACK_ADDR,
        };
        let mut bytes = vec![0; message.header_len()];
        message.emit(&mut bytes);
        self.send(EtherType::Arp, &bytes, TxOffload::default())
    }

    pub(super) fn send(
        &mut self,
        ethertype: EtherType,
        packet: &[u8],
        offload: TxOffload,
    ) -> Result<(), StackError> {
        let header = EthRepr { dst: self.stack_mac, src: self.port.mac(), ethertype };
        far_link::send_frame(&mut *self.port, header, packet, offload)
    }

    pub(super) fn mtu(&self) -> usize {
        self.port.mtu() as usize
    }

    pub(super) fn wait(&self, us: u64) -> Result<(), StackError> {
        far_link::wait(&*self.port, us)
    }

    /// Hands over the TCP packets that wait, and answers questions for the far end's address.
    pub(super) fn take(
        &mut self,
        mut tcp: impl FnMut(&[u8], RxOffload) -> Result<(), StackError>,
    ) -> Result<(), StackError> {
        let mut frames: Vec<(Vec<u8>, RxOffload)> = Vec::new();
        far_link::receive(&mut *self.port, &mut frames)?;
        for (frame, offload) in frames {
            let Ok((header, packet)) = EthRepr::parse(&frame) else { continue };
            match header.ethertype {
                EtherType::Arp => {
                    let Ok(message) = ArpRepr::parse(packet) else { continue };
                    if message.sender_ip == STACK_ADDR {
                        self.stack_mac = message.sender_mac;
                    }
                    if message.operation == ArpOperation::Request && message.target_ip == FAR_ADDR {
                        self.send_arp(ArpOperation::Reply)?;
                    }
                }
                EtherType::Ipv4 if packet.get(9) == Some(&6) => tcp(packet, offload)?,
                _ => {}
            }
        }
        Ok(())
    }
}
