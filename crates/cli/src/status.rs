//! `toe status`: what an engine has and what it has counted.

use crate::client::{Client, ClientError};
use crate::presented::Presented;
use crate::{Failure, locate, print, print_json};
use std::fmt::Write;
use std::path::PathBuf;
use toe_abi::attach::ReportKind;
use toe_abi::report::{StageReport, StatusReport, UseReport};

/// Show an engine's ports, sessions and counters
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The counters tell every drop by its reason. --json gives the same as one JSON object (see StatusReport in
crates/abi/src/report.rs).

--stages shows where the engine's time goes. Of some tens of rounds one is measured. For each stage: its share of the
time, how many items it moved a round, what an item cost, and what a look in vain cost.

A session's namespace is its network namespace, by the kernel's cookie, or the engine's own.

The load is the share of the last tenth of a second in which the engine had something to do. --all shows the load of
every engine in one table: what a policy with balance = \"least-loaded\" goes by.

EXAMPLES:
  toe status
  toe status --all
  toe status --stages
  toe status --name web --json | jq .counters")]
pub struct Args {
    /// Name of the engine ('default' unless given)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show all engines that you can reach, a line each
    #[arg(long, conflicts_with_all = ["name", "stages"])]
    all: bool,
    /// Show the time of each stage of the engine's rounds, and nothing else
    #[arg(long, conflicts_with = "json")]
    stages: bool,
}

pub fn status(args: &Args) -> Result<u8, Failure> {
    if args.all {
        let engines = all_engines();
        if !args.json {
            return print(&format_all(&engines));
        }
        let (reports, silent): (Vec<_>, Vec<_>) = engines.into_iter().partition(|(_, report)| report.is_ok());
        for error in silent.iter().filter_map(|(_, report)| report.as_ref().err()) {
            eprintln!("toe: {error}");
        }
        return print_json(&reports.into_iter().filter_map(|(_, report)| report.ok()).collect::<Vec<_>>());
    }
    let report: StatusReport = Client::find(args.name.as_deref())?.report(ReportKind::Status)?;
    if args.json {
        print_json(&report)
    } else if args.stages {
        print(&format_stages(&report))
    } else {
        print(&format(&report))
    }
}

/// What an engine says of itself, or why it says nothing.
type Asked = (String, Result<StatusReport, ClientError>);

/// Every engine that runs, by name.
fn all_engines() -> Vec<Asked> {
    let report = |socket: &PathBuf| Client::connect(socket)?.report(ReportKind::Status);
    let asked = locate::all_sockets().into_iter().map(|socket| (locate::name_of(&socket), report(&socket)));
    // Of those that were killed the sockets stay.
    asked.filter(|(_, report)| !matches!(report, Err(ClientError::NotRunning { .. }))).collect()
}

fn format_all(engines: &[Asked]) -> String {
    if engines.is_empty() {
        return "no engine runs; start one with 'toe start'\n".to_owned();
    }
    let width = engines.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max("engine".len());
    let mut out = format!("{:<width$}     load    flows listeners sessions  ports\n", "engine");
    for (name, report) in engines {
        // Writing to a String cannot fail.
        let _ = match report {
            Ok(r) => {
                let ports: Vec<&str> = r.ports.iter().map(|port| port.name.as_str()).collect();
                let (load, sessions, ports) = (percent(r.busy_permille), r.sessions.len(), ports.join(" "));
                writeln!(
                    out,
                    "{name:<width$} {load:>8} {:>8} {:>9} {sessions:>8}  {ports}",
                    r.flows, r.listeners
                )
            }
            Err(error) => writeln!(out, "{name:<width$} {error}"),
        };
    }
    out
}

fn format(report: &StatusReport) -> String {
    let mut out = String::new();
    let r = report;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "engine '{}': process {}, version {}, host interface {}, up {}",
        r.name,
        r.pid,
        r.version,
        r.interface_version,
        duration(r.uptime_secs)
    );
    let _ = writeln!(
        out,
        "load {}, {} flows, {} listeners, {} sessions, {} of receive memory in use",
        percent(r.busy_permille),
        r.flows,
        r.listeners,
        r.sessions.len(),
        bytes(r.receive_memory_used)
    );
    let _ = writeln!(
        out,
        "congestion control {} and ECN {} unless a program says otherwise, Fast Open {}",
        r.congestion, r.ecn, r.fast_open
    );
    for port in &r.ports {
        let _ = writeln!(out, "\nport {} {}", port.id, port.name);
        let _ = writeln!(out, "  {} mtu {} at {}", port.mac, port.mtu, port.addrs.join(", "));
        if let Some(trouble) = &port.trouble {
            let _ = writeln!(out, "  {trouble}");
        }
        let _ = writeln!(out, "  in  {:>12} frames {:>10}", port.rx_frames, bytes(port.rx_bytes));
        let _ = writeln!(out, "  out {:>12} frames {:>10}", port.tx_frames, bytes(port.tx_bytes));
    }
    if !r.sessions.is_empty() {
        let _ = writeln!(out, "\nsession      pid   uid    flows listeners     memory namespace program");
    }
    for s in &r.sessions {
        let memory = bytes(s.receive_memory_used);
        let netns = netns(s.netns);
        let _ = writeln!(
            out,
            "{:>7} {:>8} {:>5} {:>8} {:>9} {memory:>10} {netns:>9} {}",
            s.id,
            s.pid,
            s.uid,
            s.flows,
            s.listeners,
            Presented(&s.program)
        );
    }
    out += &format_users(r);
    if !r.counters.is_empty() {
        let _ = writeln!(out, "\ncounters");
    }
    let width = r.counters.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in &r.counters {
        let remedy = remedy(name).map_or(String::new(), |remedy| format!("  {remedy}"));
        let _ = writeln!(out, "  {name:<width$} {value:>14}{remedy}");
    }
    out
}

/// What can be done about what a counter counts.
fn remedy(counter: &str) -> Option<&'static str> {
    Some(match counter {
        "drop_bad_tcp_checksum" | "drop_bad_udp_checksum" => {
            "a veth leaves checksums out: 'ethtool -K PEER tx off' at its other end"
        }
        "drop_no_receive_memory" => "more by --quota memory_mib=N",
        "drop_flow_table_full" => "fewer connections, or another engine",
        "drop_over_quota" | "over_quota" => "see 'refused' above; more by --quota",
        "drop_backlog_full" | "drop_accept_queue_full" => {
            "a longer backlog (listen), or a server that accepts sooner"
        }
        "listeners_nobody_takes_from" => {
            "new connections there are the kernel's: a process that accepts may not attach (--allow-uid), or runs without the layer"
        }
        "neighbour_failures" => "nobody answers at that address: check --addr, --gateway and the link",
        "drop_other_vlan" => "frames of a VLAN: packet: on the kernel's interface for it, or tap:NAME?vlan=N",
        _ => return None,
    })
}

/// A line for what there is, and one for each user with what he has of it; what nobody has is left out.
fn format_users(report: &StatusReport) -> String {
    let mut out = String::new();
    let presented = |name: &str, n: u64| if name.ends_with("_memory") { bytes(n) } else { n.to_string() };
    for account in &report.users {
        let parts = account.parts.iter().map(|(name, UseReport { used, refused })| {
            let refused = if *refused > 0 { format!(" ({refused} refused)") } else { String::new() };
            format!("{name} {}{refused}", presented(name, *used))
        });
        let parts: Vec<String> = parts.collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{:>7} {:>9} {}", account.uid, netns(account.netns), parts.join(", "));
    }
    if out.is_empty() {
        return out;
    }
    let used = report.quotas.iter().filter(|(_, quota)| quota.used > 0).map(|(name, quota)| {
        let cap = quota.user.map_or(String::new(), |user| format!(", {} a user", presented(name, user)));
        format!("{name} {} of {}{cap}", presented(name, quota.used), presented(name, quota.total))
    });
    let used: Vec<String> = used.collect();
    format!("\n   user     netns has (in all: {})\n{out}", used.join("; "))
}

/// A network namespace: the engine's own, another by its cookie, or all those of a user beyond a few.
fn netns(cookie: Option<u64>) -> String {
    match cookie {
        None => "own".to_owned(),
        Some(u64::MAX) => "others".to_owned(),
        Some(cookie) => cookie.to_string(),
    }
}

fn format_stages(report: &StatusReport) -> String {
    let stages = &report.stages;
    let all_ns: u64 = stages.iter().map(|s| s.ns + s.empty_ns).sum();
    let of = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let mut out = format!("engine '{}': {} rounds\n\n", report.name, report.rounds);
    out += "stage         time     items items/round  ns/item ticks/item  rounds in vain  ns/round in vain\n";
    for s in stages {
        let StageReport { stage, items, rounds, ns, ticks, empty_rounds, empty_ns } = s;
        let share = 100.0 * of(ns + empty_ns, all_ns);
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{stage:<12} {share:>4.1}% {items:>9} {:>11.1} {:>8.0} {:>10.0} {empty_rounds:>15} {:>17.0}",
            of(*items, *rounds),
            of(*ns, *items),
            of(*ticks, *items),
            of(*empty_ns, *empty_rounds),
        );
    }
    out
}

/// The share of its time in which an engine has something to do.
fn percent(permille: u32) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

fn bytes(n: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut presented = format!("{n} B");
    for (power, unit) in units.iter().enumerate() {
        let scale = 1u64 << (10 * (power + 1));
        if n >= scale {
            presented = format!("{:.1} {unit}", n as f64 / scale as f64);
        }
    }
    presented
}

fn duration(secs: u64) -> String {
    match (secs / 86_400, secs / 3600 % 24, secs / 60 % 60, secs % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, _, _) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_abi::report::{AccountReport, PortReport, QuotaReport, SessionReport};

    #[test]
    fn stages_read_well() {
        let receive = StageReport {
            stage: "receive".to_owned(),
            items: 40,
            rounds: 10,
            ns: 30_000,
            ticks: 90_000,
            empty_rounds: 100,
            empty_ns: 10_000,
        };
        let idle = StageReport { stage: "local".to_owned(), ..StageReport::default() };
        let report = StatusReport {
            name: "web".to_owned(),
            rounds: 3410,
            stages: vec![receive, idle],
            ..StatusReport::default()
        };
        let text = format_stages(&report);
        let row = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a row");
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(row("receive"), ["receive", "100.0%", "40", "4.0", "750", "2250", "100", "100"]);
        assert_eq!(row("local"), ["local", "0.0%", "0", "0.0", "0", "0", "0", "0"]);
        assert!(text.starts_with("engine 'web': 3410 rounds\n"), "{text}");
    }

    #[test]
    fn users_are_shown_with_what_they_have_and_did_not_get() {
        let flows = QuotaReport { used: 12, total: 65536, user: Some(10) };
        let memory = QuotaReport { used: 3 << 20, total: 2 << 30, user: None };
        let account = AccountReport {
            uid: 1000,
            netns: Some(4711),
            parts: [
                ("flows".to_owned(), UseReport { used: 10, refused: 7 }),
                ("receive_memory".to_owned(), UseReport { used: 3 << 20, refused: 0 }),
            ]
            .into(),
            engine_us: 5,
        };
        let report = StatusReport {
            quotas: [("flows".to_owned(), flows), ("receive_memory".to_owned(), memory)].into(),
            users: vec![account],
            ..StatusReport::default()
        };
        let text = format_users(&report);
        let wanted = "\n   user     netns has (in all: flows 12 of 65536, 10 a user; receive_memory 3.0 MiB of 2.0 GiB)\n   \
                      1000      4711 flows 10 (7 refused), receive_memory 3.0 MiB\n";
        assert_eq!(text, wanted);
        assert_eq!(format_users(&StatusReport::default()), "");
    }

    #[test]
    fn all_engines_are_a_line_each() {
        let report = |name: &str, flows, busy_permille| StatusReport {
            name: name.to_owned(),
            flows,
            busy_permille,
            ..StatusReport::default()
        };
        let asked = |report: StatusReport| (report.name.clone(), Ok(report));
        let refused = ("other".to_owned(), Err(ClientError::Refused("too many".to_owned())));
        let text = format_all(&[asked(report("a", 12, 1000)), asked(report("longer-name", 3, 5)), refused]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["a", "100.0", "%", "12", "0", "0"]);
        assert_eq!(rows[2], ["longer-name", "0.5", "%", "3", "0", "0"]);
        assert!(
            text.lines().last().is_some_and(|line| line.starts_with("other ") && line.contains("too many"))
        );
        assert!(format_all(&[]).contains("toe start"));
    }

    #[test]
    fn a_report_reads_well() {
        let report = StatusReport {
            name: "web".to_owned(),
            pid: 7,
            version: "0.1.0".to_owned(),
            interface_version: 1,
            uptime_secs: 3700,
            ports: vec![PortReport {
                name: "packet:veth0".to_owned(),
                mac: "02:00:00:00:00:01".to_owned(),
                mtu: 1500,
                addrs: vec!["10.0.0.2/24".to_owned()],
                trouble: Some("the interface is gone".to_owned()),
                rx_bytes: 3 << 20,
                ..PortReport::default()
            }],
            sessions: vec![SessionReport {
                id: 1,
                pid: 42,
                program: "nginx".to_owned(),
                netns: Some(4711),
                ..Default::default()
            }],
            receive_memory_used: 65_536,
            counters: [("drop_no_flow".to_owned(), 3), ("drop_bad_tcp_checksum".to_owned(), 2)].into(),
            ..StatusReport::default()
        };
        let text = format(&report);
        for wanted in [
            "engine 'web': process 7",
            "up 1 h 1 min",
            "64.0 KiB of receive memory",
            "port 0 packet:veth0",
            "3.0 MiB",
            "4711 nginx",
            "drop_no_flow",
            "drop_bad_tcp_checksum              2  a veth leaves",
            "the interface is gone",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
    }
}
