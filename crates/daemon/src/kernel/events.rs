//! Messages of rtnetlink(7) as the few things that the engine is interested in. What is malformed or of no interest
//! gives nothing.

use netlink_packet_core::{NLM_F_MULTIPART, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::net::IpAddr;
use toe_base::Addr;
use toe_wire::link::MacAddr;

// From linux/rtnetlink.h.
const RT_TABLE_MAIN: u32 = 254;
const RT_TABLE_LOCAL: u32 = 255;

/// One thing that the kernel said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelEvent {
    /// An interface is there, or has changed.
    Link {
        index: u32,
        link: LinkEvent,
    },
    LinkGone {
        index: u32,
    },
    Addr {
        index: u32,
        addr: Addr,
        prefix_len: u8,
    },
    AddrGone {
        index: u32,
        addr: Addr,
        prefix_len: u8,
    },
    /// A route of a list that was asked for.
    Route(RouteEvent),
    /// Some route has come, gone or changed.
    RoutesChanged,
    Neighbour {
        index: u32,
        addr: Addr,
        state: NeighbourEvent,
    },
    /// The end of the list that was asked for with this number; `false`: it is not complete.
    ListEnds {
        sequence: u32,
        is_whole: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEvent {
    pub name: String,
    pub is_up: bool,
    pub mtu: u32,
    pub mac: Option<MacAddr>,
    pub is_veth: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEvent {
    pub dst: Addr,
    pub prefix_len: u8,
    pub metric: u32,
    /// Of the table of local addresses, else of the main one.
    pub is_local: bool,
    /// The interface; `None`: not just one, or none.
    pub index: Option<u32>,
    pub gateway: Option<Addr>,
    pub source: Option<Addr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourEvent {
    /// `is_doubtful`: good for use, not heard of for a while.
    Known {
        mac: MacAddr,
        is_doubtful: bool,
    },
    /// It did not answer.
    Failed,
    Forgotten,
}

/// What a message says.
pub fn parse(bytes: &[u8]) -> Option<KernelEvent> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes).ok()?;
    let is_listed = message.header.flags & NLM_F_MULTIPART != 0;
    let sequence = message.header.sequence_number;
    match message.payload {
        // Linux says there, too, that it could not go on.
        NetlinkPayload::Done(done) => Some(KernelEvent::ListEnds { sequence, is_whole: done.code == 0 }),
        // It ends the list that it answers, if it answers one.
        NetlinkPayload::Error(_) => Some(KernelEvent::ListEnds { sequence, is_whole: false }),
        NetlinkPayload::InnerMessage(inner) => match inner {
            RouteNetlinkMessage::NewLink(link) => link_event(&link),
            // That a bridge has lost a port is told so, too, and the interface is still there.
            RouteNetlinkMessage::DelLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                Some(KernelEvent::LinkGone { index: link.header.index })
            }
            RouteNetlinkMessage::NewAddress(address) => {
                let (index, addr) = address_of(&address)?;
                Some(KernelEvent::Addr { index, addr, prefix_len: address.header.prefix_len })
            }
            RouteNetlinkMessage::DelAddress(address) => {
                let (index, addr) = address_of(&address)?;
                Some(KernelEvent::AddrGone { index, addr, prefix_len: address.header.prefix_len })
            }
            RouteNetlinkMessage::NewRoute(route) if is_listed => route_event(&route).map(KernelEvent::Route),
            RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_) => {
                Some(KernelEvent::RoutesChanged)
            }
            RouteNetlinkMessage::NewNeighbour(neighbour) => neighbour_event(&neighbour, false),
            RouteNetlinkMessage::DelNeighbour(neighbour) => neighbour_event(&neighbour, true),
            _ => None,
        },
        _ => None,
    }
}

fn mac_of(bytes: &[u8]) -> Option<MacAddr> {
    bytes.try_into().ok().map(MacAddr)
}

fn link_event(message: &LinkMessage) -> Option<KernelEvent> {
    // Bridges tell of their ports in messages of the same kind.
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let (mut name, mut mtu, mut mac, mut is_veth) = (None, 0, None, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(is) => name = Some(is.clone()),
            LinkAttribute::Mtu(is) => mtu = *is,
            LinkAttribute::Address(bytes) => mac = mac_of(bytes),
            LinkAttribute::LinkInfo(infos) => is_veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
            _ => {}
        }
    }
    let is_up = message.header.flags.contains(LinkFlags::Up);
    Some(KernelEvent::Link {
        index: message.header.index,
        link: LinkEvent { name: name?, is_up, mtu, mac, is_veth },
    })
}

fn address_of(message: &AddressMessage) -> Option<(u32, Addr)> {
    // On a point-to-point link `Address` is the peer's; elsewhere both are the same.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(addr)) => Some(Addr::v4(*addr)),
        _ => None,
    });
    local.map(|addr| (message.header.index, addr))
}

fn inet(address: &RouteAddress) -> Option<Addr> {
    match address {
        RouteAddress::Inet(addr) => Some(Addr::v4(*addr)),
        _ => None,
    }
}

fn route_event(message: &RouteMessage) -> Option<RouteEvent> {
    if message.header.address_family != AddressFamily::Inet {
        return None;
    }
    let mut table = u32::from(message.header.table);
    let mut route = RouteEvent {
        dst: Addr::UNSPECIFIED_V4,
        prefix_len: message.header.destination_prefix_length,
        metric: 0,
        is_local: false,
        index: None,
        gateway: None,
        source: None,
    };
    let mut is_plain = message.header.kind == RouteType::Unicast && message.header.tos == 0;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(is) => table = *is,
            RouteAttribute::Destination(is) => route.dst = inet(is)?,
            RouteAttribute::Gateway(is) => route.gateway = Some(inet(is)?),
            RouteAttribute::PrefSource(is) => route.source = inet(is),
            RouteAttribute::Oif(is) => route.index = Some(*is),
            RouteAttribute::Priority(is) => route.metric = *is,
            // Several ways, an IPv6 gateway, a tunnel: the kernel's.
            RouteAttribute::MultiPath(_) | RouteAttribute::Via(_) | RouteAttribute::Encap(_) => {
                is_plain = false;
            }
            _ => {}
        }
    }
    if message.header.tos != 0 || ![RT_TABLE_MAIN, RT_TABLE_LOCAL].contains(&table) {
        return None;
    }
    route.is_local = table == RT_TABLE_LOCAL;
    if !is_plain {
        route.index = None;
    }
    Some(route)
}

fn neighbour_event(message: &NeighbourMessage, is_gone: bool) -> Option<KernelEvent> {
    let (mut addr, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(is)) => addr = Some(Addr::v4(*is)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = mac_of(bytes),
            _ => {}
        }
    }
    let state = match (message.header.state, mac) {
        _ if is_gone => NeighbourEvent::Forgotten,
        (NeighbourState::Failed, _) => NeighbourEvent::Failed,
        // It is being asked for, and how that ends is told.
        (NeighbourState::Incomplete | NeighbourState::None, _) | (_, None) => return None,
        (NeighbourState::Stale, Some(mac)) => NeighbourEvent::Known { mac, is_doubtful: true },
        (_, Some(mac)) => NeighbourEvent::Known { mac, is_doubtful: false },
    };
    Some(KernelEvent::Neighbour { index: message.header.ifindex, addr: addr?, state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::NetlinkHeader;
    use std::net::Ipv4Addr;

    /// As the kernel would send it.
    fn bytes(message: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn route(table: u8, kind: RouteType, attributes: Vec<RouteAttribute>) -> Option<KernelEvent> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = 24;
        message.header.table = table;
        message.header.kind = kind;
        message.attributes = attributes;
        parse(&bytes(RouteNetlinkMessage::NewRoute(message), NLM_F_MULTIPART))
    }

    fn net() -> RouteAttribute {
        RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::new(10, 3, 0, 0)))
    }

    #[test]
    fn routes_of_the_main_table_and_what_makes_them_the_kernels() {
        let gateway = Ipv4Addr::new(10, 0, 0, 254);
        let over = |gateway| RouteAttribute::Gateway(RouteAddress::Inet(gateway));
        let plain = vec![net(), over(gateway), RouteAttribute::Oif(7), RouteAttribute::Priority(100)];
        let good = RouteEvent {
            dst: [10, 3, 0, 0].into(),
            prefix_len: 24,
            metric: 100,
            is_local: false,
            index: Some(7),
            gateway: Some(gateway.into()),
            source: None,
        };
        assert_eq!(route(254, RouteType::Unicast, plain.clone()), Some(KernelEvent::Route(good)));
        let elsewhere = RouteEvent { index: None, ..good };
        assert_eq!(route(254, RouteType::BlackHole, plain.clone()), Some(KernelEvent::Route(elsewhere)));
        let local = RouteEvent { is_local: true, index: None, ..good };
        assert_eq!(route(255, RouteType::Local, plain.clone()), Some(KernelEvent::Route(local)));
        assert_eq!(route(100, RouteType::Unicast, plain.clone()), None, "a table that rules lead to");
        let by_number = [plain, vec![RouteAttribute::Table(100)]].concat();
        assert_eq!(route(254, RouteType::Unicast, by_number), None, "the attribute goes before the field");
    }

    #[test]
    fn a_route_that_was_not_asked_for_says_only_that_routes_have_changed() {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        for message in
            [RouteNetlinkMessage::NewRoute(message.clone()), RouteNetlinkMessage::DelRoute(message.clone())]
        {
            assert_eq!(parse(&bytes(message, 0)), Some(KernelEvent::RoutesChanged));
        }
    }

    #[test]
    fn neighbours_are_known_doubtful_failed_or_forgotten() {
        let addr = Ipv4Addr::new(10, 0, 0, 9);
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let event = |state, with_mac: bool, is_gone: bool| {
            let mut message = NeighbourMessage::default();
            message.header.family = AddressFamily::Inet;
            message.header.ifindex = 7;
            message.header.state = state;
            message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(addr)));
            if with_mac {
                message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
            }
            let message = if is_gone {
                RouteNetlinkMessage::DelNeighbour(message)
            } else {
                RouteNetlinkMessage::NewNeighbour(message)
            };
            match parse(&bytes(message, 0))? {
                KernelEvent::Neighbour { index: 7, addr: found, state } if found == addr.into() => {
                    Some(state)
                }
                other => panic!("{other:?}"),
            }
        };
        let known = |is_doubtful| Some(NeighbourEvent::Known { mac, is_doubtful });
        assert_eq!(event(NeighbourState::Reachable, true, false), known(false));
        assert_eq!(event(NeighbourState::Permanent, true, false), known(false));
        assert_eq!(event(NeighbourState::Stale, true, false), known(true));
        assert_eq!(event(NeighbourState::Failed, false, false), Some(NeighbourEvent::Failed));
        assert_eq!(event(NeighbourState::Incomplete, false, false), None, "being asked for");
        assert_eq!(event(NeighbourState::Reachable, true, true), Some(NeighbourEvent::Forgotten));
    }

    #[test]
    fn links_and_addresses() {
        let mut link = LinkMessage::default();
        link.header.index = 7;
        link.header.flags = LinkFlags::Up;
        link.attributes = vec![
            LinkAttribute::IfName("eth1".to_owned()),
            LinkAttribute::Mtu(1500),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 7]),
        ];
        let mac = Some(MacAddr([2, 0, 0, 0, 0, 7]));
        let is = LinkEvent { name: "eth1".to_owned(), is_up: true, mtu: 1500, mac, is_veth: false };
        let found = parse(&bytes(RouteNetlinkMessage::NewLink(link.clone()), 0));
        assert_eq!(found, Some(KernelEvent::Link { index: 7, link: is }));
        let found = parse(&bytes(RouteNetlinkMessage::DelLink(link.clone()), 0));
        assert_eq!(found, Some(KernelEvent::LinkGone { index: 7 }));
        link.header.interface_family = AddressFamily::Bridge;
        assert_eq!(parse(&bytes(RouteNetlinkMessage::DelLink(link), 0)), None, "it has left a bridge");

        let mut address = AddressMessage::default();
        address.header.family = AddressFamily::Inet;
        address.header.index = 7;
        address.header.prefix_len = 24;
        let (local, peer) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
        address.attributes =
            vec![AddressAttribute::Address(peer.into()), AddressAttribute::Local(local.into())];
        let found = parse(&bytes(RouteNetlinkMessage::NewAddress(address.clone()), 0));
        assert_eq!(found, Some(KernelEvent::Addr { index: 7, addr: local.into(), prefix_len: 24 }));
        let found = parse(&bytes(RouteNetlinkMessage::DelAddress(address), 0));
        assert_eq!(found, Some(KernelEvent::AddrGone { index: 7, addr: local.into(), prefix_len: 24 }));
    }

    #[test]
    fn a_list_that_ends_with_an_error_is_not_whole() {
        for (code, is_whole) in [(0i32, true), (-11, false)] {
            let mut done = [0u8; 20];
            done[..4].copy_from_slice(&20u32.to_ne_bytes());
            done[4..6].copy_from_slice(&3u16.to_ne_bytes());
            done[8] = if cfg!(target_endian = "little") { 9 } else { 0 };
            done[16..].copy_from_slice(&code.to_ne_bytes());
            let ends = parse(&done);
            assert!(
                matches!(ends, Some(KernelEvent::ListEnds { is_whole: is, .. }) if is == is_whole),
                "{ends:?}"
            );
        }
    }

    #[test]
    fn no_bytes_do_harm() {
        let good = bytes(RouteNetlinkMessage::NewLink(LinkMessage::default()), 0);
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]), None, "cut to {len}");
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = parse(&bad);
            }
        }
    }
}
