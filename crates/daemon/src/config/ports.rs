//! The links of an engine and their addresses: what was given, checked.

use super::given::{ConfigError, Given};
use clap::ArgMatches;
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use toe_base::Addr;
use toe_port::PortSpec;
use toml::Spanned;

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub addr: IpAddr,
    pub prefix_len: u8,
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix_len)
    }
}

/// One link and its addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    pub spec: PortSpec,
    pub addrs: Vec<Cidr>,
    /// One of each family at most.
    pub gateways: Vec<IpAddr>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilePort {
    port: Spanned<String>,
    #[serde(default)]
    addr: Vec<Spanned<String>>,
    gateway: Option<Spanned<String>>,
    gateway6: Option<Spanned<String>>,
}

/// A port as given, before it was understood.
pub(super) struct GivenPort {
    pub(super) port: Given<String>,
    pub(super) addrs: Vec<Given<String>>,
    pub(super) gateways: Vec<Given<String>>,
}

impl FilePort {
    pub(super) fn given(self, origin: &dyn Fn(Range<usize>) -> String) -> GivenPort {
        let given =
            |value: Spanned<String>| Given { origin: origin(value.span()), value: value.into_inner() };
        GivenPort {
            port: given(self.port),
            addrs: self.addr.into_iter().map(given).collect(),
            gateways: self.gateway.into_iter().chain(self.gateway6).map(given).collect(),
        }
    }
}

/// Gives each `--addr` and `--gateway` to the `--port` before it.
pub(super) fn pair_ports(matches: &ArgMatches) -> Result<Vec<GivenPort>, ConfigError> {
    let mut flags: Vec<(usize, &str, String)> = Vec::new();
    for name in ["port", "addr", "gateway"] {
        let values = matches.get_many::<String>(name).into_iter().flatten().cloned();
        let places = matches.indices_of(name).into_iter().flatten();
        flags.extend(places.zip(values).map(|(origin, value)| (origin, name, value)));
    }
    flags.sort();
    let mut ports: Vec<GivenPort> = Vec::new();
    for (_, flag, value) in flags {
        let given = Given::flag(value, &format!("--{flag}"));
        match (flag, ports.last_mut()) {
            ("port", _) => ports.push(GivenPort { port: given, addrs: Vec::new(), gateways: Vec::new() }),
            ("addr", Some(port)) => port.addrs.push(given),
            ("gateway", Some(port)) => port.gateways.push(given),
            (_, _) => {
                return Err(given.bad(format!(
                    "{} belongs to no port; put it after the --port that it is for",
                    given.value
                )));
            }
        }
    }
    Ok(ports)
}

pub(super) fn check_ports(given: Vec<GivenPort>) -> Result<Vec<PortConfig>, ConfigError> {
    let mut ports: Vec<PortConfig> = Vec::new();
    for port in given {
        let spec: PortSpec =
            port.port.value.parse().map_err(|e: toe_port::SpecError| port.port.bad(e.to_string()))?;
        if let Some(other) = ports.iter().find(|p| p.spec.interface == spec.interface) {
            return Err(port.port.bad(if other.spec.driver == spec.driver {
                format!("{spec} is given twice; give all its addresses to one")
            } else {
                format!("{spec} is on the interface of {}; leave one of them out", other.spec)
            }));
        }
        if spec.driver.shares_address() {
            if let Some(given) = port.addrs.first().or(port.gateways.first()) {
                return Err(given.bad(format!(
                    "{spec} has the addresses and routes that the kernel has on the interface; leave {} out, and set them \
                     with ip(8) if they are missing",
                    given.value
                )));
            }
            ports.push(PortConfig { spec, addrs: Vec::new(), gateways: Vec::new() });
            continue;
        }
        let addrs = port.addrs.iter().map(parse_cidr).collect::<Result<Vec<_>, _>>()?;
        if addrs.is_empty() {
            return Err(port.port.bad(format!(
                "{spec} has no address; add one that the kernel does not use itself, such as --addr 10.0.0.2/24 or --addr fd00::2/64"
            )));
        }
        let gateways = parse_gateways(&port.gateways, &addrs)?;
        ports.push(PortConfig { spec, addrs, gateways });
    }
    if ports.len() > usize::from(u8::MAX) {
        return Err(ConfigError::on_command_line("too many ports; an engine has at most 255"));
    }
    Ok(ports)
}

fn parse_cidr(given: &Given<String>) -> Result<Cidr, ConfigError> {
    let bad =
        |why: &str| given.bad(format!("{:?} {why}; write it as 10.0.0.2/24 or fd00::2/64", given.value));
    let (addr, prefix) = given.value.split_once('/').ok_or_else(|| bad("has no prefix length"))?;
    let addr: IpAddr = addr.parse().map_err(|_| bad("is no IP address"))?;
    let prefix_len: u8 = prefix.parse().map_err(|_| bad("has no number after the '/'"))?;
    let known = Addr::from(addr);
    if prefix_len > known.bits() {
        return Err(bad(&format!("has a prefix longer than {}", known.bits())));
    }
    let is_mapped = addr.is_ipv6() && known.is_v4();
    let is_broadcast = addr == IpAddr::V4(Ipv4Addr::BROADCAST);
    if is_mapped || is_broadcast || known.is_unspecified() || known.is_multicast() || known.is_loopback() {
        return Err(bad("cannot be a link's address"));
    }
    Ok(Cidr { addr, prefix_len })
}

fn parse_gateways(given: &[Given<String>], addrs: &[Cidr]) -> Result<Vec<IpAddr>, ConfigError> {
    let mut gateways: Vec<IpAddr> = Vec::new();
    for given in given {
        let gateway = parse_gateway(given, addrs)?;
        if gateways.iter().any(|known| known.is_ipv4() == gateway.is_ipv4()) {
            return Err(
                given.bad(format!("the port has a gateway already; leave {gateway} out, or the other"))
            );
        }
        gateways.push(gateway);
    }
    Ok(gateways)
}

fn parse_gateway(given: &Given<String>, addrs: &[Cidr]) -> Result<IpAddr, ConfigError> {
    let gateway: IpAddr = given.value.parse().map_err(|_| {
        given.bad(format!("{:?} is no IP address; write a gateway as 10.0.0.1 or fd00::1", given.value))
    })?;
    let known = Addr::from(gateway);
    // The link of a port that speaks IPv6 has such addresses, whether one is named here or not.
    let speaks_v6 = addrs.iter().any(|cidr| cidr.addr.is_ipv6());
    if known.is_link_local() && speaks_v6 {
        return Ok(gateway);
    }
    let in_network = |cidr: &Cidr| {
        let addr = Addr::from(cidr.addr);
        let same_family = addr.is_v4() == known.is_v4();
        same_family && addr.network(cidr.prefix_len) == known.network(cidr.prefix_len) && addr != known
    };
    if addrs.iter().any(in_network) {
        return Ok(gateway);
    }
    Err(given.bad(format!("{gateway} is in no network of this port's addresses; give one that is")))
}
