//! What an engine is started with: the command line merged with `toe.toml`. Read once, by `main`.
//!
//! The command line wins over the file; `--port` on the command line replaces the file's whole list of ports. Every
//! error names the place, what is wrong there and what to do.

mod given;
mod memory;
mod ports;
mod quota;
mod tcp;
mod users;

pub use given::ConfigError;
pub use ports::{Cidr, PortConfig};
pub use tcp::TcpValues;
pub use users::{RunAs, SeccompMode, UserConfig, UserFlags};

use crate::cores::CoreList;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use given::{Given, check_range};
use ports::{FilePort, GivenPort, check_ports, pair_ports};
use serde::Deserialize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toe_abi::discovery;
use toe_engine::{Quotas, TcpConfig};
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
    /// The help names the drivers that there are.
    #[arg(long, value_name = "DRIVER:IFNAME", help = port_help())]
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
    /// Send bytes of local connections through the engine.
    #[arg(long)]
    pub no_direct: bool,
    #[command(flatten)]
    pub tcp: TcpValues,
    /// The cores that the engine's thread may run on, as 2 or 2,4 or 0-3.
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    #[command(flatten)]
    pub users: UserFlags,
    /// Receive memory of one session, in MiB (taken as it is used).
    #[arg(long, value_name = "MIB")]
    pub receive_memory_mib: Option<u64>,
    /// Send memory of one session, in MiB (taken as it is used).
    #[arg(long, value_name = "MIB")]
    pub send_memory_mib: Option<u64>,
    /// What users may have, as user_flows=1000; see [quota] in `toe start --help`.
    #[arg(long, value_name = "NAME=N")]
    pub quota: Vec<String>,
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

fn port_help() -> String {
    let forms = toe_port::Driver::forms();
    format!("A link: {forms} (with ?drop=1%&reorder=1%&seed=7 to inject faults), or local")
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Everything that was decided before the engine starts.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub ports: Vec<PortConfig>,
    /// Whether the engine serves 127.0.0.0/8 itself.
    pub local: bool,
    pub spin_us: u64,
    /// Whether bytes of connections between two programs may go past the engine.
    pub direct: bool,
    pub tcp: TcpConfig,
    /// `None`: wherever the kernel likes.
    pub cores: Option<CoreList>,
    pub users: UserConfig,
    pub session: SessionConfig,
    /// What users may have.
    pub quotas: Quotas,
    pub log: LogConfig,
    pub process: ProcessConfig,
}

/// Bytes of one session's receive and send part.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    pub receive_len: u64,
    pub send_len: u64,
}

/// What is logged, how and where.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// `None`: nothing was said about it.
    pub filter: Option<String>,
    pub format: LogFormat,
    pub file: Option<PathBuf>,
}

/// How the engine lives as a process.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    pub dir: Option<PathBuf>,
    pub detach: bool,
    pub private: bool,
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
    allow_uids: Option<Vec<Spanned<users::Id>>>,
    allow_groups: Option<Vec<Spanned<users::Id>>>,
    allow_all: Option<bool>,
    user: Option<Spanned<users::Id>>,
    seccomp: Option<Spanned<String>>,
    receive_memory_mib: Option<Spanned<u64>>,
    send_memory_mib: Option<Spanned<u64>>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    log_file: Option<PathBuf>,
    #[serde(default)]
    tcp: TcpValues,
    #[serde(default)]
    quota: quota::FileQuota,
    /// For programs: read by `toe run`, and checked by `toe start`.
    #[serde(default, rename = "policy")]
    _policy: serde::de::IgnoredAny,
    #[serde(default, rename = "profiles")]
    _profiles: serde::de::IgnoredAny,
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
        let given = |span: Range<usize>| source.as_ref().map_or_else(String::new, |s| s.origin(span.start));
        let number =
            |flag: Option<u64>, name: &str, file: Option<Spanned<u64>>, default: u64| match (flag, file) {
                (Some(value), _) => Given::flag(value, name),
                (None, Some(value)) => Given { origin: given(value.span()), value: value.into_inner() },
                (None, None) => Given::flag(default, name),
            };
        let spin = number(flags.spin_us, "--spin-us", file.spin_us, SPIN_US_DEFAULT);
        let word = |flag: Option<String>, name: &str, file: Option<Spanned<String>>| match (flag, file) {
            (Some(value), _) => Some(Given::flag(value, name)),
            (None, file) => file.map(|v| Given { origin: given(v.span()), value: v.into_inner() }),
        };
        let name = word(flags.name, "--name", file.name)
            .unwrap_or_else(|| Given::flag(discovery::DEFAULT_ENGINE.to_owned(), "--name"));
        let cores = word(flags.cores, "--cores", file.cores);
        let tcp = tcp::check(flags.tcp, file.tcp, &given)?;
        let memory = SESSION_MEMORY_MIB_DEFAULT;
        let receive =
            number(flags.receive_memory_mib, "--receive-memory-mib", file.receive_memory_mib, memory);
        let send = number(flags.send_memory_mib, "--send-memory-mib", file.send_memory_mib, memory);

        // The command line comes last, and wins.
        let mut quotas = file.quota.given(given);
        for flag in &flags.quota {
            quotas.push(quota::from_flag(flag)?);
        }
        let in_file = || file.ports.into_iter().map(|port| port.given(&given)).collect();
        let ports = if ports.is_empty() { in_file() } else { ports };
        let (has_local, links) = without_local(ports)?;
        let in_file = users::FileUsers {
            allow_uids: file.allow_uids,
            allow_groups: file.allow_groups,
            allow_all: file.allow_all,
            user: file.user,
            seccomp: file.seccomp,
        };
        let users = users::check(flags.users, in_file, &given)?;
        Ok(Config {
            // An engine without a link still has one use: programs of this machine among themselves.
            local: has_local || file.local.unwrap_or(links.is_empty()),
            name: check_name(name)?,
            ports: check_ports(links)?,
            cores: cores.map(check_cores).transpose()?,
            spin_us: check_range(&spin, 0..=SPIN_US_MAX, "µs")?,
            direct: !flags.no_direct && file.direct.unwrap_or(true),
            tcp,
            users,
            session: SessionConfig {
                receive_len: check_range(&receive, SESSION_MEMORY_MIB, "MiB")? * MIB,
                send_len: check_range(&send, SESSION_MEMORY_MIB, "MiB")? * MIB,
            },
            quotas: quota::check(&quotas, memory::available())?,
            log: LogConfig {
                filter: flags.log.or(file.log),
                format: flags.log_format.or(file.log_format).unwrap_or_default(),
                file: flags.log_file.or(file.log_file),
            },
            process: ProcessConfig { dir: flags.dir, detach: flags.detach, private: flags.private },
        })
    }
}

/// Whether the engine's own port is among these, and the others.
fn without_local(ports: Vec<GivenPort>) -> Result<(bool, Vec<GivenPort>), ConfigError> {
    let (locals, links): (Vec<_>, Vec<_>) = ports.into_iter().partition(|p| p.port.value == LOCAL_PORT);
    match locals.iter().find(|local| !local.addrs.is_empty() || !local.gateways.is_empty()) {
        Some(local) => Err(local.port.bad(
            "the local port serves 127.0.0.0/8 and ::1 and takes no address or gateway; leave them out"
                .to_owned(),
        )),
        None => Ok((!locals.is_empty(), links)),
    }
}

/// The configuration file as text, for the lines in errors.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// `toe.toml:LINE` of a byte of the file.
    fn origin(&self, at: usize) -> String {
        let before = self.text.get(..at).unwrap_or(self.text);
        format!("{}:{}", self.path.display(), before.matches('\n').count() + 1)
    }

    fn parse(&self) -> Result<FileConfig, ConfigError> {
        toml::from_str(self.text).map_err(|error| {
            let origin = self.origin(error.span().map_or(0, |span| span.start));
            let hint = "; see `toe start --help` for what can stand there";
            ConfigError::Bad { origin, what: format!("{}{hint}", error.message().trim()) }
        })
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error: std::io::Error| ConfigError::Unreadable {
        origin: path.display().to_string(),
        error: error.to_string(),
    };
    std::fs::read_to_string(path).map_err(unreadable)
}

fn check_name(name: Given<String>) -> Result<String, ConfigError> {
    if discovery::is_valid_name(&name.value) {
        return Ok(name.value);
    }
    let max = discovery::NAME_LEN_MAX;
    Err(name.bad(format!(
        "{:?} cannot be a name; use up to {max} letters, digits, '-', '_' and '.', not starting with '.'",
        name.value
    )))
}

fn check_cores(given: Given<String>) -> Result<CoreList, ConfigError> {
    given.value.parse().map_err(|error: crate::cores::BadCoreList| given.bad(error.to_string()))
}

#[cfg(test)]
mod tests;
