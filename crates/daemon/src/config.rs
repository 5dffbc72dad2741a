//! What an engine is started with: the command line merged with `toe.toml`. Read once, by `main`.
//!
//! The command line wins over the file; `--port` on the command line replaces the file's whole list of ports. Every
//! error names the place, what is wrong there and what to do.

use crate::cores::CoreList;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toe_abi::place;
use toe_base::Addr;
use toe_port::PortSpec;
use toml::Spanned;

/// The word that stands for the engine's own port in `--port local`.
const LOCAL_PORT: &str = "local";
/// Longest time that an engine can be told to spin, in µs.
const SPIN_US_MAX: u64 = 100_000;
const SPIN_US_DEFAULT: u64 = 20;
const SESSION_MEMORY_MIB_DEFAULT: u64 = 256;
/// A session's memory part: at least one largest window, at most what the interface's 40-bit offsets leave room for.
const SESSION_MEMORY_MIB: std::ops::RangeInclusive<u64> = 16..=65_536;
const MIB: u64 = 1 << 20;

/// The engine of OpenTOE: it owns TCP for the programs that attach to it. Usually started by `toe start`, which
/// explains the options, or by `toe run`.
#[derive(Debug, Default, Parser)]
#[command(name = "toed", version)]
pub struct Flags {
    /// Name of the engine.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A link: tap:NAME, packet:NAME, xdp:NAME (with ?drop=1%&reorder=1%&seed=7 to inject faults), or local.
    #[arg(long, value_name = "DRIVER:IFNAME")]
    pub port: Vec<String>,
    /// An address of the preceding --port, as 10.0.0.2/24 or fd00::2/64.
    #[arg(long, value_name = "CIDR")]
    pub addr: Vec<String>,
    /// The gateway of the preceding --port; may be given for each family.
    #[arg(long, value_name = "ADDRESS")]
    pub gateway: Vec<String>,
    /// Microseconds to look for work before sleeping; 0 sleeps at once.
    #[arg(long, value_name = "N")]
    pub spin_us: Option<u64>,
    /// Send octets of local connections through the engine.
    #[arg(long)]
    pub no_direct: bool,
    /// The cores that the engine's thread may run on, as 2 or 2,4 or 0-3.
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    /// A user id that may attach, besides root and the engine's own; everyone may when none is given.
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<u32>,
    /// Receive memory of one session, in MiB (taken as it is used).
    #[arg(long, value_name = "MIB")]
    pub receive_memory_mib: Option<u64>,
    /// Send memory of one session, in MiB (taken as it is used).
    #[arg(long, value_name = "MIB")]
    pub send_memory_mib: Option<u64>,
    /// What is logged: error, warn, info, debug, trace, or a filter such as toe_daemon=debug.
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How it is logged.
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Where it is logged, instead of the standard error output.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Directory for the socket, instead of the usual one.
    #[arg(long, value_name = "DIR", hide = true)]
    pub dir: Option<PathBuf>,
    /// Leave the terminal; say "ready" on the standard output, then log to a file.
    #[arg(long, hide = true)]
    pub detach: bool,
    /// The standard input is a pipe: end once it is closed and the last session has gone.
    #[arg(long, hide = true)]
    pub private: bool,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

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

/// Everything that was decided before the engine starts.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub ports: Vec<PortConfig>,
    /// Whether the engine serves 127.0.0.0/8 itself.
    pub local: bool,
    pub spin_us: u64,
    /// Whether octets of connections between two programs may go past the engine.
    pub direct: bool,
    /// `None`: wherever the kernel likes.
    pub cores: Option<CoreList>,
    /// `None`: everyone may attach.
    pub allow_uids: Option<Vec<u32>>,
    /// Octets of one session's receive and send part.
    pub receive_len: u64,
    pub send_len: u64,
    /// What is logged, if anything was said about it.
    pub log: Option<String>,
    pub log_format: LogFormat,
    pub log_file: Option<PathBuf>,
    pub dir: Option<PathBuf>,
    pub detach: bool,
    pub private: bool,
}

/// What is wrong with the configuration, and what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{place}: cannot read it ({error}); give the path of a readable file with --config")]
    Unreadable { place: String, error: String },
    #[error("{place}: {what}")]
    Bad { place: String, what: String },
}

impl ConfigError {
    fn on_command_line(what: impl Into<String>) -> ConfigError {
        ConfigError::Bad { place: "command line".to_owned(), what: what.into() }
    }
}

/// `toe.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileConfig {
    name: Option<Spanned<String>>,
    #[serde(default)]
    ports: Vec<FilePort>,
    local: Option<bool>,
    spin_us: Option<Spanned<u64>>,
    direct: Option<bool>,
    cores: Option<Spanned<String>>,
    allow_uids: Option<Vec<u32>>,
    receive_memory_mib: Option<Spanned<u64>>,
    send_memory_mib: Option<Spanned<u64>>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    log_file: Option<PathBuf>,
    /// For programs: read by `toe run`, and checked by `toe start`.
    #[serde(default, rename = "policy")]
    _policy: serde::de::IgnoredAny,
    #[serde(default, rename = "profiles")]
    _profiles: serde::de::IgnoredAny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePort {
    port: Spanned<String>,
    #[serde(default)]
    addr: Vec<Spanned<String>>,
    gateway: Option<Spanned<String>>,
    gateway6: Option<Spanned<String>>,
}

/// A value together with where it was given, for errors.
struct Given<T> {
    value: T,
    place: String,
}

impl<T> Given<T> {
    fn flag(value: T, flag: &str) -> Given<T> {
        Given { value, place: flag.to_owned() }
    }

    fn bad(&self, what: String) -> ConfigError {
        ConfigError::Bad { place: self.place.clone(), what }
    }
}

/// A port as given, before it was understood.
struct GivenPort {
    port: Given<String>,
    addrs: Vec<Given<String>>,
    gateways: Vec<Given<String>>,
}

impl Config {
    /// The configuration for a command line (the program's name first). Ends the process for `--help` and for flags
    /// that do not exist, as clap does.
    pub fn from_command_line(
        args: impl IntoIterator<Item = std::ffi::OsString>,
    ) -> Result<Config, ConfigError> {
        let matches = Flags::command().get_matches_from(args);
        Config::from_matches(&matches)
    }

    fn from_matches(matches: &ArgMatches) -> Result<Config, ConfigError> {
        let flags =
            Flags::from_arg_matches(matches).map_err(|e| ConfigError::on_command_line(e.to_string()))?;
        let text = match &flags.config {
            None => None,
            Some(path) => Some((path.clone(), read(path)?)),
        };
        let file = text.as_ref().map(|(path, text)| Source { path, text });
        Config::merge(flags, pair_ports(matches)?, file)
    }

    fn merge(flags: Flags, ports: Vec<GivenPort>, source: Option<Source<'_>>) -> Result<Config, ConfigError> {
        let file = source.as_ref().map(Source::parse).transpose()?.unwrap_or_default();
        let given = |span: Range<usize>| source.as_ref().map_or_else(String::new, |s| s.place(span.start));
        let number =
            |flag: Option<u64>, name: &str, file: Option<Spanned<u64>>, default: u64| match (flag, file) {
                (Some(value), _) => Given::flag(value, name),
                (None, Some(value)) => Given { place: given(value.span()), value: value.into_inner() },
                (None, None) => Given::flag(default, name),
            };
        let name = match (flags.name, file.name) {
            (Some(name), _) => Given::flag(name, "--name"),
            (None, Some(name)) => Given { place: given(name.span()), value: name.into_inner() },
            (None, None) => Given::flag(place::DEFAULT_ENGINE.to_owned(), "--name"),
        };
        let spin = number(flags.spin_us, "--spin-us", file.spin_us, SPIN_US_DEFAULT);
        let cores = match (flags.cores, file.cores) {
            (Some(list), _) => Some(Given::flag(list, "--cores")),
            (None, Some(list)) => Some(Given { place: given(list.span()), value: list.into_inner() }),
            (None, None) => None,
        };
        let memory = SESSION_MEMORY_MIB_DEFAULT;
        let receive =
            number(flags.receive_memory_mib, "--receive-memory-mib", file.receive_memory_mib, memory);
        let send = number(flags.send_memory_mib, "--send-memory-mib", file.send_memory_mib, memory);

        let ports = if ports.is_empty() {
            file.ports.into_iter().map(|port| port.given(&given)).collect()
        } else {
            ports
        };
        let (locals, links): (Vec<_>, Vec<_>) = ports.into_iter().partition(|p| p.port.value == LOCAL_PORT);
        if let Some(local) = locals.iter().find(|l| !l.addrs.is_empty() || !l.gateways.is_empty()) {
            let what =
                "the local port serves 127.0.0.0/8 and ::1 and takes no address or gateway; leave them out";
            return Err(local.port.bad(what.to_owned()));
        }
        let allow_uids = if flags.allow_uid.is_empty() { file.allow_uids } else { Some(flags.allow_uid) };
        Ok(Config {
            // An engine without a link still has one use: programs of this machine among themselves.
            local: !locals.is_empty() || file.local.unwrap_or(links.is_empty()),
            name: check_name(name)?,
            ports: check_ports(links)?,
            cores: cores.map(check_cores).transpose()?,
            spin_us: check_range(&spin, 0..=SPIN_US_MAX, "µs")?,
            direct: !flags.no_direct && file.direct.unwrap_or(true),
            allow_uids,
            receive_len: check_range(&receive, SESSION_MEMORY_MIB, "MiB")? * MIB,
            send_len: check_range(&send, SESSION_MEMORY_MIB, "MiB")? * MIB,
            log: flags.log.or(file.log),
            log_format: flags.log_format.or(file.log_format).unwrap_or_default(),
            log_file: flags.log_file.or(file.log_file),
            dir: flags.dir,
            detach: flags.detach,
            private: flags.private,
        })
    }
}

/// The configuration file as text, for the lines in errors.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// `toe.toml:LINE` of an octet of the file.
    fn place(&self, at: usize) -> String {
        let before = self.text.get(..at).unwrap_or(self.text);
        format!("{}:{}", self.path.display(), before.matches('\n').count() + 1)
    }

    fn parse(&self) -> Result<FileConfig, ConfigError> {
        toml::from_str(self.text).map_err(|error| {
            let place = self.place(error.span().map_or(0, |span| span.start));
            let hint = "; see `toe start --help` for what can stand there";
            ConfigError::Bad { place, what: format!("{}{hint}", error.message().trim()) }
        })
    }
}

impl FilePort {
    fn given(self, place: &dyn Fn(Range<usize>) -> String) -> GivenPort {
        let given = |value: Spanned<String>| Given { place: place(value.span()), value: value.into_inner() };
        GivenPort {
            port: given(self.port),
            addrs: self.addr.into_iter().map(given).collect(),
            gateways: self.gateway.into_iter().chain(self.gateway6).map(given).collect(),
        }
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error: std::io::Error| ConfigError::Unreadable {
        place: path.display().to_string(),
        error: error.to_string(),
    };
    std::fs::read_to_string(path).map_err(unreadable)
}

/// Gives each `--addr` and `--gateway` to the `--port` before it.
fn pair_ports(matches: &ArgMatches) -> Result<Vec<GivenPort>, ConfigError> {
    let mut flags: Vec<(usize, &str, String)> = Vec::new();
    for name in ["port", "addr", "gateway"] {
        let values = matches.get_many::<String>(name).into_iter().flatten().cloned();
        let places = matches.indices_of(name).into_iter().flatten();
        flags.extend(places.zip(values).map(|(place, value)| (place, name, value)));
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

fn check_name(name: Given<String>) -> Result<String, ConfigError> {
    if place::is_valid_name(&name.value) {
        return Ok(name.value);
    }
    let max = place::NAME_LEN_MAX;
    Err(name.bad(format!(
        "{:?} cannot be a name; use up to {max} letters, digits, '-', '_' and '.', not starting with '.'",
        name.value
    )))
}

fn check_cores(given: Given<String>) -> Result<CoreList, ConfigError> {
    given.value.parse().map_err(|error: crate::cores::BadCoreList| given.bad(error.to_string()))
}

fn check_range(
    given: &Given<u64>,
    range: std::ops::RangeInclusive<u64>,
    unit: &str,
) -> Result<u64, ConfigError> {
    if range.contains(&given.value) {
        return Ok(given.value);
    }
    let (min, max) = (range.start(), range.end());
    Err(given.bad(format!("{} is out of range; give {min} to {max} {unit}", given.value)))
}

fn check_ports(given: Vec<GivenPort>) -> Result<Vec<PortConfig>, ConfigError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn from_flags(line: &str) -> Result<Config, ConfigError> {
        let matches = Flags::command().try_get_matches_from(line.split_whitespace()).expect("flags exist");
        Config::from_matches(&matches)
    }

    fn from_file(text: &str) -> Result<Config, ConfigError> {
        let source = Source { path: Path::new("toe.toml"), text };
        Config::merge(Flags::default(), Vec::new(), Some(source))
    }

    fn message(result: Result<Config, ConfigError>) -> String {
        result.expect_err("an error").to_string()
    }

    #[test]
    fn an_address_belongs_to_the_port_before_it() {
        let config = from_flags(
            "toed --port packet:veth0 --addr 10.0.0.2/24 --addr 10.1.0.2/16 --gateway 10.0.0.1 \
             --port tap:tap0 --addr 192.168.7.2/30 --port local",
        )
        .expect("good");
        assert!(config.local);
        assert_eq!(config.ports.len(), 2);
        let addrs = |i: usize| config.ports[i].addrs.iter().map(Cidr::to_string).collect::<Vec<_>>();
        assert_eq!(addrs(0), ["10.0.0.2/24", "10.1.0.2/16"]);
        assert_eq!(addrs(1), ["192.168.7.2/30"]);
        assert_eq!(config.ports[0].gateways, [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))]);
        assert!(config.ports[1].gateways.is_empty());
    }

    #[test]
    fn a_port_may_have_addresses_and_a_gateway_of_each_family() {
        let both = ["10.0.0.1", "fe80::1"].map(|text| text.parse::<IpAddr>().expect("an address"));
        let flags =
            "toed --port tap:t0 --addr 10.0.0.2/24 --addr fd00::2/64 --gateway 10.0.0.1 --gateway fe80::1";
        let file = "[[ports]]\nport = \"tap:t0\"\naddr = [\"10.0.0.2/24\", \"fd00::2/64\"]\n\
                    gateway = \"10.0.0.1\"\ngateway6 = \"fe80::1\"\n";
        for config in [from_flags(flags).expect("good"), from_file(file).expect("good")] {
            assert_eq!(config.ports[0].gateways, both);
            assert_eq!(config.ports[0].addrs[1].to_string(), "fd00::2/64");
        }
    }

    #[test]
    fn without_a_link_the_local_port_is_there() {
        let config = from_flags("toed").expect("good");
        assert!(config.local && config.ports.is_empty());
        assert_eq!(config.name, "default");
        assert_eq!((config.receive_len, config.send_len), (256 << 20, 256 << 20));
        assert!(!from_flags("toed --port packet:v0 --addr 10.0.0.2/24").expect("good").local);
    }

    #[test]
    fn a_shared_port_has_the_kernels_addresses() {
        let config = from_flags("toed --port xdp:eth1 --port packet:v0 --addr 10.0.0.2/24").expect("good");
        assert!(config.ports[0].addrs.is_empty() && config.ports[0].spec.driver.shares_address());
    }

    #[test]
    fn the_way_past_the_engine_can_be_closed_by_either() {
        assert!(from_flags("toed").expect("good").direct);
        assert!(!from_flags("toed --no-direct").expect("good").direct);
        assert!(!from_file("direct = false\n").expect("good").direct);
    }

    #[test]
    fn errors_on_the_command_line_say_what_to_do() {
        for (line, wanted) in [
            ("toed --addr 10.0.0.2/24", "put it after the --port"),
            ("toed --port packet:v0", "has no address"),
            ("toed --port packet:v0 --addr 10.0.0.2", "write it as 10.0.0.2/24"),
            ("toed --port packet:v0 --addr 10.0.0.2/33", "longer than 32"),
            ("toed --port packet:v0 --addr 127.0.0.2/8", "cannot be"),
            ("toed --port packet:v0 --addr fd00::2/129", "longer than 128"),
            ("toed --port packet:v0 --addr ::ffff:10.0.0.2/24", "cannot be"),
            ("toed --port packet:v0 --addr fd00::2", "write it as"),
            ("toed --port packet:v0 --addr 10.0.0.2/24 --gateway fe80::1", "in no network"),
            ("toed --port packet:v0 --addr fd00::2/64 --gateway fd00::1 --gateway fe80::1", "already"),
            ("toed --port packet:v0 --addr 10.0.0.2/24 --gateway 10.0.1.1", "in no network"),
            ("toed --port packet:v0 --addr 10.0.0.2/24 --port packet:v0 --addr 10.0.0.3/24", "given twice"),
            ("toed --port packet:v0 --addr 10.0.0.2/24 --port xdp:v0", "leave one of them out"),
            ("toed --port local --addr 10.0.0.2/24", "takes no address"),
            ("toed --port xdp:v0 --addr 10.0.0.2/24", "leave 10.0.0.2/24 out"),
            ("toed --port xdp:v0 --gateway 10.0.0.1", "leave 10.0.0.1 out"),
            ("toed --name a/b", "cannot be a name"),
            ("toed --spin-us 999999999", "out of range"),
            ("toed --cores 3-1", "runs backwards; write the cores as taskset does"),
        ] {
            let text = message(from_flags(line));
            assert!(text.contains(wanted), "{line}: {text}");
        }
    }

    #[test]
    fn a_file_says_the_same_as_flags() {
        let config = from_file(
            "name = \"web\"\nlocal = true\nspin_us = 5\ncores = \"0-2\"\nallow_uids = [33]\nreceive_memory_mib = 64\n\
             log = \"debug\"\nlog_format = \"json\"\n\n[[ports]]\nport = \"packet:veth0?drop=1%\"\n\
             addr = [\"10.0.0.2/24\"]\ngateway = \"10.0.0.1\"\n",
        )
        .expect("good");
        assert_eq!((config.name.as_str(), config.spin_us, config.local), ("web", 5, true));
        assert_eq!(config.cores.map(|cores| cores.to_string()).as_deref(), Some("0,1,2"));
        assert_eq!(config.allow_uids, Some(vec![33]));
        assert_eq!(config.receive_len, 64 << 20);
        assert_eq!(config.log_format, LogFormat::Json);
        assert_eq!(config.ports.len(), 1);
    }

    #[test]
    fn errors_in_a_file_name_the_line() {
        for (text, line, wanted) in [
            ("name = \"web\"\nspinn_us = 3\n", 2, "spinn_us"),
            ("name = \"web\"\n\nspin_us = \"x\"\n", 3, "invalid type"),
            ("\nname = \"a b\"\n", 2, "cannot be a name"),
            (
                "[[ports]]\nport = \"packet:v0\"\naddr = [\n  \"10.0.0.2/24\",\n  \"10.0.0/24\",\n]\n",
                5,
                "no IP address",
            ),
            ("[[ports]]\nport = \"carrier-pigeon:v0\"\naddr = [\"10.0.0.2/24\"]\n", 2, "carrier-pigeon"),
            ("receive_memory_mib = 1\n", 1, "out of range"),
            ("= 3\n", 1, ""),
        ] {
            let text_of_error = message(from_file(text));
            assert!(text_of_error.starts_with(&format!("toe.toml:{line}: ")), "{text:?}: {text_of_error}");
            assert!(text_of_error.contains(wanted), "{text:?}: {text_of_error}");
        }
    }

    #[test]
    fn the_command_line_wins() {
        let source = Source {
            path: Path::new("toe.toml"),
            text: "name = \"file\"\n[[ports]]\nport = \"packet:a\"\naddr = [\"10.0.0.2/24\"]\n",
        };
        let matches = Flags::command()
            .try_get_matches_from(["toed", "--name", "flag", "--port", "packet:b", "--addr", "10.1.0.2/24"])
            .expect("flags exist");
        let flags = Flags::from_arg_matches(&matches).expect("flags");
        let ports = pair_ports(&matches).expect("pairs");
        let config = Config::merge(flags, ports, Some(source)).expect("good");
        assert_eq!(config.name, "flag");
        assert_eq!(config.ports.len(), 1);
        assert_eq!(config.ports[0].spec.interface, "b");
    }

    #[test]
    fn a_missing_file_is_named() {
        let text = message(from_flags("toed --config /nonexistent/toe.toml"));
        assert!(text.starts_with("/nonexistent/toe.toml: cannot read it"), "{text}");
    }
}
