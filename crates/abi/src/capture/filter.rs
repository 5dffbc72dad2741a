//! Which packets a capture wants: a part of the language of `pcap-filter(7)`, and what only an engine knows.
//!
//! | term | packets |
//! |---|---|
//! | `host A`, `src host A`, `dst host A` | from or to address A, IPv4 or IPv6 (`src A` is short for `src host A`) |
//! | `net A/N`, `src net …`, `dst net …` | from or to an address of the network |
//! | `port N`, `src port N`, `dst port N` | from or to port N of TCP or UDP |
//! | `portrange N-M`, with `src` and `dst` too | from or to one of these ports |
//! | `tcp`, `udp`, `icmp`, `icmp6`, `arp`, `ip`, `ip6` | of that protocol; `tcp port 80` is `tcp and port 80` |
//! | `pid N` | of process N, at either end |
//! | `dropped` | that the engine dropped |
//!
//! They join with `and` (`&&`), `or` (`||`), `not` (`!`) and parentheses. As in `pcap-filter(7)`, `not` binds closest,
//! and `and` and `or` bind alike, from the left. Nothing at all wants every packet.

use core::net::IpAddr;

pub use super::parse::FilterError;

/// How deep a filter may nest, and so how deep a look at it goes.
pub(super) const DEPTH_MAX: usize = 256;

/// What a filter looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The EtherType behind any VLAN tags.
    pub ethertype: u16,
    /// Source and destination.
    pub addrs: Option<(IpAddr, IpAddr)>,
    /// The number of the protocol behind the IP header.
    pub protocol: Option<u8>,
    /// Source and destination ports.
    pub ports: Option<(u16, u16)>,
    /// The processes at its ends; 0: none.
    pub pids: [u32; 2],
    pub dropped: bool,
}

/// Which ends a term is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    Source,
    Destination,
    Either,
}

impl Ends {
    fn any<T>(self, (source, destination): (T, T), test: impl Fn(T) -> bool) -> bool {
        match self {
            Ends::Source => test(source),
            Ends::Destination => test(destination),
            Ends::Either => test(source) || test(destination),
        }
    }
}

/// A protocol that has a word of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Ip,
    Ip6,
    Arp,
    Tcp,
    Udp,
    Icmp,
    Icmp6,
}

/// A filter as it was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    All,
    /// Addresses that begin with the first `len` bits of this one.
    Net {
        ends: Ends,
        addr: IpAddr,
        len: u8,
    },
    Ports {
        ends: Ends,
        first: u16,
        last: u16,
    },
    Protocol(Named),
    Pid(u32),
    Dropped,
    Not(Box<Filter>),
    And(Box<Filter>, Box<Filter>),
    Or(Box<Filter>, Box<Filter>),
}

impl Filter {
    pub fn matches(&self, facts: &Facts) -> bool {
        match self {
            Filter::All => true,
            Filter::Net { ends, addr, len } => {
                facts.addrs.is_some_and(|addrs| ends.any(addrs, |one| is_within(one, *addr, *len)))
            }
            Filter::Ports { ends, first, last } => {
                facts.ports.is_some_and(|ports| ends.any(ports, |one| (*first..=*last).contains(&one)))
            }
            Filter::Protocol(named) => is_of(facts, *named),
            Filter::Pid(pid) => facts.pids.contains(pid),
            Filter::Dropped => facts.dropped,
            Filter::Not(inner) => !inner.matches(facts),
            Filter::And(a, b) => a.matches(facts) && b.matches(facts),
            Filter::Or(a, b) => a.matches(facts) || b.matches(facts),
        }
    }

    /// Whether it matters to it which processes are at a packet's ends.
    pub fn names_processes(&self) -> bool {
        match self {
            Filter::Pid(_) => true,
            Filter::Not(inner) => inner.names_processes(),
            Filter::And(a, b) | Filter::Or(a, b) => a.names_processes() || b.names_processes(),
            _ => false,
        }
    }

    /// How deep it nests.
    pub(super) fn depth(&self) -> usize {
        match self {
            Filter::Not(inner) => 1 + inner.depth(),
            Filter::And(a, b) | Filter::Or(a, b) => 1 + a.depth().max(b.depth()),
            _ => 1,
        }
    }
}

const ETHERTYPE_IP: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IP6: u16 = 0x86dd;

fn is_of(facts: &Facts, named: Named) -> bool {
    let ip = |ethertype, protocol| facts.ethertype == ethertype && facts.protocol == Some(protocol);
    match named {
        Named::Ip => facts.ethertype == ETHERTYPE_IP,
        Named::Ip6 => facts.ethertype == ETHERTYPE_IP6,
        Named::Arp => facts.ethertype == ETHERTYPE_ARP,
        Named::Tcp => ip(ETHERTYPE_IP, 6) || ip(ETHERTYPE_IP6, 6),
        Named::Udp => ip(ETHERTYPE_IP, 17) || ip(ETHERTYPE_IP6, 17),
        Named::Icmp => ip(ETHERTYPE_IP, 1),
        Named::Icmp6 => ip(ETHERTYPE_IP6, 58),
    }
}

fn is_within(addr: IpAddr, net: IpAddr, len: u8) -> bool {
    match (addr, net) {
        (IpAddr::V4(addr), IpAddr::V4(net)) => {
            let differs = u32::from(addr) ^ u32::from(net);
            differs.checked_shr(32 - u32::from(len.min(32))).is_none_or(|high| high == 0)
        }
        (IpAddr::V6(addr), IpAddr::V6(net)) => {
            let differs = u128::from(addr) ^ u128::from(net);
            differs.checked_shr(128 - u32::from(len.min(128))).is_none_or(|high| high == 0)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(from: &str, to: &str) -> Facts {
        let (from, to): (core::net::SocketAddr, core::net::SocketAddr) =
            (from.parse().expect("address"), to.parse().expect("address"));
        Facts {
            ethertype: if from.is_ipv4() { ETHERTYPE_IP } else { ETHERTYPE_IP6 },
            addrs: Some((from.ip(), to.ip())),
            protocol: Some(6),
            ports: Some((from.port(), to.port())),
            pids: [41, 0],
            dropped: false,
        }
    }

    fn wants(text: &str, facts: &Facts) -> bool {
        Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).matches(facts)
    }

    #[test]
    fn terms_look_at_the_ends_they_name() {
        let packet = tcp("10.1.2.3:40000", "10.9.9.9:80");
        for text in [
            "",
            "tcp",
            "ip",
            "host 10.1.2.3",
            "host 10.9.9.9",
            "src 10.1.2.3",
            "dst host 10.9.9.9",
            "net 10.1.0.0/16",
            "src net 10.0.0.0/8",
            "port 80",
            "dst port 80",
            "src port 40000",
            "portrange 1-80",
            "pid 41",
            "tcp port 80",
            "tcp dst port 80",
            "net 0.0.0.0/0",
        ] {
            assert!(wants(text, &packet), "{text}");
        }
        for text in [
            "udp",
            "ip6",
            "arp",
            "icmp",
            "icmp6",
            "host 10.1.2.4",
            "dst 10.1.2.3",
            "src host 10.9.9.9",
            "net 10.2.0.0/16",
            "dst net 10.1.0.0/16",
            "port 81",
            "src port 80",
            "portrange 81-90",
            "pid 40",
            "dropped",
            "udp port 80",
            "host ::1",
            "net ::/0",
        ] {
            assert!(!wants(text, &packet), "{text}");
        }
        let six = tcp("[2001:db8::1]:1", "[2001:db8::2]:2");
        assert!(wants("ip6 and tcp and net 2001:db8::/32 and dst host 2001:db8::2", &six));
        assert!(!wants("net 2001:db9::/32 or ip", &six));
    }

    #[test]
    fn words_between_terms_bind_as_in_pcap_filter() {
        let packet = tcp("10.1.2.3:40000", "10.9.9.9:80");
        assert!(wants("not port 81 and tcp", &packet));
        assert!(wants("!(port 80 and udp) && host 10.1.2.3", &packet));
        // Alike, and from the left: (port 80 or port 81) and udp.
        assert!(!wants("port 80 or port 81 and udp", &packet));
        assert!(wants("port 80 or (port 81 and udp)", &packet));
        assert!(!wants("not not not tcp", &packet));
    }

    #[test]
    fn what_has_no_ports_matches_no_port() {
        let arp = Facts { ethertype: ETHERTYPE_ARP, ..Facts::default() };
        assert!(wants("arp", &arp) && wants("not port 80", &arp) && !wants("port 80", &arp));
        assert!(!wants("not arp", &arp) && !wants("host 10.0.0.1", &arp));
        assert!(wants("dropped and arp", &Facts { dropped: true, ..arp }));
    }
}
