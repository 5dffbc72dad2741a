//! ICMP and ICMPv6: echo requests, errors about segments that the engine sent, neighbour discovery.

use super::arrived::Arrived;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::work::{Arrival, IcmpError, NeighbourMessage, RxDatagramError, Trouble};
use toe_abi::errno::Errno;
use toe_base::{Addr, Endpoint};
use toe_wire::ParseError;
use toe_wire::icmp::{self, IcmpRepr, QuotedTcp};
use toe_wire::icmpv6::{self, Icmpv6Repr};

pub(super) fn parse<'a>(arrival: &Arrival, message: &'a [u8]) -> Result<Arrived<'a>, Counter> {
    let (repr, rest) = IcmpRepr::parse(message).or_else(ignore_unknown)?;
    let trouble = match repr {
        IcmpRepr::EchoRequest { ident, sequence } => {
            return Ok(Arrived::EchoRequest { arrival: *arrival, ident, seq: sequence, data: rest });
        }
        IcmpRepr::EchoReply { .. } => return Ok(Arrived::Ignored),
        IcmpRepr::DestinationUnreachable { code: icmp::CODE_FRAGMENTATION_NEEDED, next_hop_mtu } => {
            Trouble::TooBig { mtu: u32::from(next_hop_mtu) }
        }
        IcmpRepr::DestinationUnreachable { code, .. } => Trouble::Unreachable(unreachable(code)),
        IcmpRepr::TimeExceeded { .. } => Trouble::Unreachable(Errno::EHOSTUNREACH),
        IcmpRepr::ParameterProblem { .. } => Trouble::Unreachable(Errno::EPROTO),
    };
    match icmp::quoted_udp(rest) {
        Ok(ends) => Ok(of_datagram(arrival, ends, trouble, message)),
        Err(_) => error(trouble, icmp::quoted_tcp(rest)),
    }
}

pub(super) fn parse_v6<'a>(arrival: &Arrival, message: &'a [u8]) -> Result<Arrived<'a>, Counter> {
    let parsed = Icmpv6Repr::parse(message, arrival.src.to_v6(), arrival.dst.to_v6());
    let (repr, rest) = parsed.or_else(ignore_unknown)?;
    // RFC 4861 section 7.1: any other hop limit says that it is not from this link.
    let is_from_link = arrival.hop_limit == icmpv6::HOP_LIMIT;
    let addr = |target| Addr::checked_v6(target, arrival.zone).ok_or(Counter::DropBadIcmp);
    let trouble = match repr {
        Icmpv6Repr::NeighbourSolicitation { target, source_mac } if is_from_link => {
            let message = NeighbourMessage::Asked { arrival: *arrival, target: addr(target)?, source_mac };
            return Ok(Arrived::Neighbour(message));
        }
        Icmpv6Repr::NeighbourAdvertisement(it) if is_from_link => {
            let (mac, overrides) = (it.target_mac, it.overrides);
            let message = NeighbourMessage::Advertised {
                target: addr(it.target)?,
                mac,
                solicited: it.is_solicited,
                overrides,
            };
            return Ok(Arrived::Neighbour(message));
        }
        Icmpv6Repr::NeighbourSolicitation { .. } | Icmpv6Repr::NeighbourAdvertisement(_) => {
            return Err(Counter::DropBadIcmp);
        }
        // Whoever has no address gets no answer, and a group of many is not answered for.
        _ if arrival.src.is_unspecified() => return Err(Counter::DropBadAddress),
        Icmpv6Repr::EchoRequest { .. } if arrival.dst.is_multicast() => return Ok(Arrived::Ignored),
        Icmpv6Repr::EchoRequest { ident, sequence } => {
            return Ok(Arrived::EchoRequest { arrival: *arrival, ident, seq: sequence, data: rest });
        }
        Icmpv6Repr::EchoReply { .. } | Icmpv6Repr::Routers => return Ok(Arrived::Ignored),
        Icmpv6Repr::PacketTooBig { mtu } => Trouble::TooBig { mtu },
        Icmpv6Repr::DestinationUnreachable { code } => Trouble::Unreachable(unreachable_v6(code)),
        Icmpv6Repr::TimeExceeded { .. } => Trouble::Unreachable(Errno::EHOSTUNREACH),
        Icmpv6Repr::ParameterProblem { .. } => Trouble::Unreachable(Errno::EPROTO),
    };
    match icmp::quoted_udp_v6(rest, arrival.zone) {
        Ok(ends) => Ok(of_datagram(arrival, ends, trouble, message)),
        Err(_) => error(trouble, icmp::quoted_tcp_v6(rest, arrival.zone)),
    }
}

/// Only what quotes a datagram of the address that it came to is about one of ours.
fn of_datagram<'a>(
    arrival: &Arrival,
    (own, peer): (Endpoint, Endpoint),
    trouble: Trouble,
    message: &'a [u8],
) -> Arrived<'a> {
    let mtu = match trouble {
        Trouble::TooBig { mtu } => Some(mtu),
        Trouble::Unreachable(_) => None,
    };
    match own.addr == arrival.dst {
        true => {
            let message = message.into();
            Arrived::DatagramError(RxDatagramError { arrival: *arrival, own, peer, mtu, message })
        }
        false => Arrived::Ignored,
    }
}

/// What is well-formed and means nothing here is no fault of its sender.
fn ignore_unknown<T>(error: ParseError) -> Result<T, Counter> {
    Err(if error == ParseError::Unsupported { Counter::IgnoredIcmp } else { Counter::DropBadIcmp })
}

fn error<'a>(trouble: Trouble, quoted: Result<QuotedTcp, ParseError>) -> Result<Arrived<'a>, Counter> {
    let quoted = quoted.or_else(ignore_unknown)?;
    let key = FlowKey::new(quoted.src, quoted.dst);
    Ok(Arrived::IcmpError(IcmpError { key, seq: quoted.seq, datagram_len: quoted.datagram_len, trouble }))
}

/// What Linux makes of the codes of "destination unreachable" (RFC 792, RFC 1122 section 3.2.2.1).
fn unreachable(code: u8) -> Errno {
    match code {
        0 | 6 | 9 | 11 => Errno::ENETUNREACH,
        2 => Errno::ENOPROTOOPT,
        3 => Errno::ECONNREFUSED,
        5 => Errno::EOPNOTSUPP,
        7 => Errno::EHOSTDOWN,
        8 => Errno::ENONET,
        _ => Errno::EHOSTUNREACH,
    }
}

/// The same of ICMPv6 (RFC 4443 section 3.1).
fn unreachable_v6(code: u8) -> Errno {
    match code {
        0 => Errno::ENETUNREACH,
        1 | 5 | 6 => Errno::EACCES,
        4 => Errno::ECONNREFUSED,
        _ => Errno::EHOSTUNREACH,
    }
}
