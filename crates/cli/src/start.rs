//! `toe start`: starts an engine in the background, or becomes one.

use crate::client::Client;
use crate::{Failure, spawn};
use clap::ArgMatches;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use toe_abi::attach::ReportKind;
use toe_abi::report::{PortReport, StatusReport};

/// Start an engine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES:
  toe start                                     an engine for programs of this machine among themselves
  toe start --port packet:veth0 --addr 10.0.0.2/24 --gateway 10.0.0.1
  toe start --port xdp:eth1                     beside the kernel, at the addresses that eth1 has
  toe start --name web --port tap:tap0 --addr 192.168.7.2/24 --port packet:eth1 --addr 10.1.0.2/16 --port local
  toe start --port 'packet:veth0?drop=1%&reorder=1%&seed=7' --addr 10.0.0.2/24      with injected faults
  toe start --config toe.toml

PORTS:
  packet:IFNAME   an interface (AF_PACKET); needs root or CAP_NET_RAW
  tap:NAME        a TAP interface, made if it is missing; needs root or CAP_NET_ADMIN. tap:NAME?vlan=12: its frames are of a VLAN
  xdp:IFNAME      an interface and the addresses, routes and neighbours that the kernel has there (AF_XDP); needs root or
                  CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF
  local           127.0.0.0/8 among programs of this engine; needs nothing, and is there when no port is given
Each --addr and --gateway belongs to the --port before it. The addresses are the engine's: the kernel must not have
them too. An xdp port takes neither: what is for the engine's programs comes to the engine, all else stays the
kernel's. The engine's traffic does not pass the kernel's firewall. If its peer is the other end of a veth, run
`ethtool -K PEER tx off` there: a veth leaves checksums out, and the engine drops what has none
(drop_bad_tcp_checksum in `toe status`).

FILE (--config); the command line wins, and --port replaces the file's ports:
  name = \"web\"
  local = true
  spin_us = 20                   # µs to look for work before sleeping
  direct = true                  # bytes of connections between two programs may go past the engine
  cores = \"2,4\"                  # where the engine's thread runs; anywhere when left out
  allow_uids = [33, \"www-data\"]  # who may attach besides root and whoever starts it, by number or name
  allow_groups = [\"staff\"]
  allow_all = false
  user = \"opentoe\"               # whom it runs as when root starts it
  seccomp = \"errno\"              # what a system call gets that it does not need; or \"strict\", \"audit\", \"off\"
  receive_memory_mib = 256       # per session, taken as it is used
  send_memory_mib = 256
  log = \"info\"                   # or a filter such as \"toe_daemon=debug\"
  log_format = \"text\"            # or \"json\"
  log_file = \"/var/log/toed.log\" # else NAME.log beside the socket
  [tcp]
  congestion = \"cubic\"         # or \"reno\", \"dctcp\", \"bbr\"; a program may choose another (TCP_CONGESTION)
  ecn = \"passive\"              # when the peer asks; or \"off\"; or \"on\": ask, too
  fast_open = \"client\"         # or \"off\", \"server\" (listeners that set TCP_FASTOPEN), \"both\"
  syn_cookies = \"on\"           # when a listener has no room for a SYN; or \"off\", \"always\"
  rfc1337 = \"off\"              # or \"on\": a reset does not end TIME_WAIT (RFC 1337)
  [quota]                        # beside the rule that one user may have 8 times what is free, for each kind of thing:
  memory_mib = 2000            # memory for received data, of all users (a quarter of the machine's or the cgroup's unless given)
  user_memory_mib = 500        # of any one user; as much as the rule says when left out, as the following
  user_sessions = 50           # attached processes
  user_flows = 20000           # connections
  user_listeners = 500         # of TCP and of virtual interfaces
  [[ports]]
  port = \"packet:veth0\"
  addr = [\"10.0.0.2/24\"]
  gateway = \"10.0.0.1\"
The tables [policy] and [profiles.NAME] of the same file are for programs: see 'toe run --help'.")]
pub struct Args {
    /// Name of the engine ('default' unless given)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A link of the engine; can be given several times
    #[arg(long, value_name = "DRIVER:IFNAME")]
    port: Vec<String>,
    /// An address of the --port before it, with its prefix length; can be given several times
    #[arg(long, value_name = "CIDR")]
    addr: Vec<String>,
    /// The gateway of the --port before it
    #[arg(long, value_name = "ADDRESS")]
    gateway: Vec<String>,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Stay in the foreground and log to the terminal
    #[arg(long)]
    foreground: bool,
    /// Microseconds to look for work before sleeping: more answers sooner when there are cores to spare, 0 sleeps at once
    /// (20 unless given)
    #[arg(long, value_name = "N")]
    spin_us: Option<u64>,
    /// Send bytes of local connections through the engine, not from program to program through memory that the two
    /// share: to measure the engine itself, to see all traffic in its counters, or where two programs of one user must
    /// not share memory
    #[arg(long)]
    no_direct: bool,
    /// Congestion control of connections whose program chooses none (TCP_CONGESTION): reno, cubic, dctcp or bbr (cubic
    /// unless given)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Explicit congestion notification: off, passive (when the peer asks) or on (ask, too) (passive unless given)
    #[arg(long, value_name = "MODE")]
    ecn: Option<String>,
    /// TCP Fast Open: off, client (programs that connect), server (listeners that set TCP_FASTOPEN) or both (client unless
    /// given)
    #[arg(long, value_name = "MODE")]
    fast_open: Option<String>,
    /// SYNs are answered with cookies and forgotten: on (when a listener has no room), off or always (on unless given)
    #[arg(long, value_name = "MODE")]
    syn_cookies: Option<String>,
    /// A reset does not end TIME_WAIT (RFC 1337): off or on (off unless given)
    #[arg(long, value_name = "MODE")]
    rfc1337: Option<String>,
    /// The cores that the engine's thread may run on, as taskset writes them: 2 or 2,4 or 0-3 or 0-6:2 (any unless given)
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// A user, by number or name, who may attach besides root and you; can be given several times. A program that root runs
    /// on the engine and that becomes another user needs no such leave
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<String>,
    /// A group, by number or name, whose members may attach; can be given several times
    #[arg(long, value_name = "GID")]
    allow_group: Vec<String>,
    /// Every user of this machine may attach
    #[arg(long)]
    allow_all: bool,
    /// Whom the engine runs as once it has opened its links, if root starts it: a user by number or name ('opentoe' if
    /// there is one, else the number 1884573509)
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// What a system call gets that the engine does not need: errno (it fails), strict (the engine is killed), audit (the
    /// kernel logs it) or off (errno unless given)
    #[arg(long, value_name = "MODE")]
    seccomp: Option<String>,
    /// Receive memory of one session in MiB
    #[arg(long, value_name = "MIB")]
    receive_memory_mib: Option<u64>,
    /// Send memory of one session in MiB
    #[arg(long, value_name = "MIB")]
    send_memory_mib: Option<u64>,
    /// What users may have, as --quota user_flows=1000; can be given several times, with the names of [quota] above
    #[arg(long, value_name = "NAME=N")]
    quota: Vec<String>,
    /// What is logged: a level, or a filter such as toe_daemon=debug
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// How it is logged: text or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Where it is logged
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

pub fn start(args: &Args, matches: Option<&ArgMatches>) -> Result<u8, Failure> {
    if let Some(config) = &args.config {
        crate::policy::check(config)?;
    }
    let toed_args = toed_args(args, matches);
    if args.foreground {
        let mut command = spawn::program("toed", &toed_args)?;
        let error = command.stdin(Stdio::inherit()).exec();
        return Err(Failure::new(format!("cannot start 'toed': {error}")));
    }
    let started = spawn::start(&toed_args, false)?;
    let status: StatusReport = Client::connect(&started.socket)?.report(ReportKind::Status)?;
    let ports: Vec<String> =
        status.ports.iter().map(|port| format!("  {} at {}", port.name, port.addrs.join(", "))).collect();
    let mut text = format!(
        "engine '{}' runs (process {}, socket {})\n",
        started.name,
        status.pid,
        started.socket.display()
    );
    for port in ports {
        text += &(port + "\n");
    }
    text += &status.ports.iter().filter_map(checksums).collect::<String>();
    crate::print(&text)
}

/// What must be done at the other end of a veth, where nothing would tell why nothing comes.
fn checksums(port: &PortReport) -> Option<String> {
    let interface = port.name.strip_prefix("xdp:")?.split('?').next()?;
    port.is_veth.then(|| {
        format!(
            "  {interface} is a veth: if its other end is the kernel's, run 'ethtool -K PEER tx off' there, or what it sends has no \
             checksum and is dropped (drop_bad_tcp_checksum in 'toe status')\n"
        )
    })
}

/// The arguments for `toed`: ports, addresses and gateways in the order in which they were given, because that is
/// what joins them; `toed` checks them.
fn toed_args(args: &Args, matches: Option<&ArgMatches>) -> Vec<OsString> {
    let mut ordered: Vec<(usize, &str, &String)> = Vec::new();
    for (id, flag) in [("port", "--port"), ("addr", "--addr"), ("gateway", "--gateway")] {
        let Some(matches) = matches else { continue };
        let places = matches.indices_of(id).into_iter().flatten();
        let values = matches.get_many::<String>(id).into_iter().flatten();
        ordered.extend(places.zip(values).map(|(place, value)| (place, flag, value)));
    }
    ordered.sort();
    let mut out: Vec<OsString> = Vec::new();
    let mut put = |flag: &str, value: OsString| {
        let mut joined = OsString::from(flag);
        joined.push("=");
        joined.push(value);
        out.push(joined);
    };
    for (_, flag, value) in ordered {
        put(flag, value.into());
    }
    let texts = [
        ("--name", &args.name),
        ("--log", &args.log),
        ("--log-format", &args.log_format),
        ("--cores", &args.cores),
        ("--congestion", &args.congestion),
        ("--ecn", &args.ecn),
        ("--fast-open", &args.fast_open),
        ("--syn-cookies", &args.syn_cookies),
        ("--rfc1337", &args.rfc1337),
        ("--user", &args.user),
        ("--seccomp", &args.seccomp),
    ];
    texts.into_iter().for_each(|(flag, value)| value.iter().for_each(|v| put(flag, v.into())));
    let paths = [("--config", &args.config), ("--log-file", &args.log_file)];
    paths.into_iter().for_each(|(flag, value)| value.iter().for_each(|v| put(flag, v.into())));
    let numbers = [
        ("--spin-us", args.spin_us),
        ("--receive-memory-mib", args.receive_memory_mib),
        ("--send-memory-mib", args.send_memory_mib),
    ];
    numbers.into_iter().for_each(|(flag, value)| value.iter().for_each(|v| put(flag, v.to_string().into())));
    args.quota.iter().for_each(|quota| put("--quota", quota.into()));
    args.allow_uid.iter().for_each(|uid| put("--allow-uid", uid.into()));
    args.allow_group.iter().for_each(|gid| put("--allow-group", gid.into()));
    if args.allow_all {
        out.push("--allow-all".into());
    }
    if args.no_direct {
        out.push("--no-direct".into());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Subcommands};
    use clap::{CommandFactory, FromArgMatches};

    fn args_for(line: &str) -> Vec<String> {
        let matches = Cli::command().try_get_matches_from(line.split_whitespace()).expect("flags exist");
        let Ok(Cli { command: Subcommands::Start(args) }) = Cli::from_arg_matches(&matches) else {
            panic!("toe start is understood")
        };
        let args = toed_args(&args, matches.subcommand_matches("start"));
        args.into_iter().map(|arg| arg.into_string().expect("text")).collect()
    }

    #[test]
    fn addresses_stay_behind_their_ports() {
        let line = "toe start --port packet:a --addr 10.0.0.2/24 --gateway 10.0.0.1 --name web --port tap:b \
                    --addr 10.1.0.2/24 --addr 10.2.0.2/24";
        assert_eq!(
            args_for(line),
            [
                "--port=packet:a",
                "--addr=10.0.0.2/24",
                "--gateway=10.0.0.1",
                "--port=tap:b",
                "--addr=10.1.0.2/24",
                "--addr=10.2.0.2/24",
                "--name=web",
            ]
        );
    }

    #[test]
    fn everything_else_is_handed_on() {
        let line = "toe start --spin-us 5 --no-direct --allow-uid 33 --allow-uid 0 --allow-group staff --allow-all \
                    --user opentoe --seccomp audit --log debug --log-format json --log-file /x --cores 0-1 \
                    --congestion bbr --ecn on --fast-open both --syn-cookies off --rfc1337 on --quota user_flows=9";
        let args = args_for(line);
        for wanted in [
            "--spin-us=5",
            "--no-direct",
            "--allow-uid=33",
            "--allow-uid=0",
            "--allow-group=staff",
            "--allow-all",
            "--user=opentoe",
            "--seccomp=audit",
            "--log=debug",
            "--log-file=/x",
            "--cores=0-1",
            "--congestion=bbr",
            "--ecn=on",
            "--fast-open=both",
            "--syn-cookies=off",
            "--quota=user_flows=9",
            "--rfc1337=on",
        ] {
            assert!(args.iter().any(|arg| arg == wanted), "{wanted} in {args:?}");
        }
    }
}
