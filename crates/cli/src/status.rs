//! `toe status`: what an engine has and what it has counted.

use crate::client::Client;
use crate::{Failure, locate, print, print_json};
use std::fmt::Write;
use std::path::PathBuf;
use toe_abi::attach::ReportKind;
use toe_abi::report::{StageReport, StatusReport};

/// Show an engine's ports, sessions and counters
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The counters tell every drop by its reason. --json gives the same as one JSON object (see StatusReport in
crates/abi/src/report.rs).

--stages shows where the engine's time goes. Of some tens of rounds one is measured. For each stage: its share of the
time, how many items it moved a round, what an item cost, and what a look in vain cost.

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
        let reports = all_reports();
        return if args.json { print_json(&reports) } else { print(&format_all(&reports)) };
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

/// Of every engine that answers, by name.
fn all_reports() -> Vec<StatusReport> {
    let report = |socket: PathBuf| Client::connect(&socket)?.report(ReportKind::Status);
    locate::all_sockets().into_iter().filter_map(|socket| report(socket).ok()).collect()
}

fn format_all(reports: &[StatusReport]) -> String {
    let width = reports.iter().map(|r| r.name.len()).max().unwrap_or(0).max("engine".len());
    let mut out = format!("{:<width$}     load    flows listeners sessions  ports\n", "engine");
    for r in reports {
        let ports: Vec<&str> = r.ports.iter().map(|port| port.name.as_str()).collect();
        let (load, sessions) = (percent(r.busy_permille), r.sessions.len());
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:<width$} {load:>8} {:>8} {:>9} {sessions:>8}  {}",
            r.name,
            r.flows,
            r.listeners,
            ports.join(" ")
        );
    }
    if reports.is_empty() { "no engine runs; start one with 'toe start'\n".to_owned() } else { out }
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
        octets(r.receive_memory_used)
    );
    let _ = writeln!(
        out,
        "congestion control {} and ECN {} unless a program says otherwise, Fast Open {}",
        r.congestion, r.ecn, r.fast_open
    );
    for port in &r.ports {
        let _ = writeln!(out, "\nport {} {}", port.id, port.name);
        let _ = writeln!(out, "  {} mtu {} at {}", port.mac, port.mtu, port.addrs.join(", "));
        let _ = writeln!(out, "  in  {:>12} frames {:>10}", port.rx_frames, octets(port.rx_bytes));
        let _ = writeln!(out, "  out {:>12} frames {:>10}", port.tx_frames, octets(port.tx_bytes));
    }
    if !r.sessions.is_empty() {
        let _ = writeln!(out, "\nsession      pid   uid    flows listeners     memory program");
    }
    for s in &r.sessions {
        let memory = octets(s.receive_memory_used);
        let _ = writeln!(
            out,
            "{:>7} {:>8} {:>5} {:>8} {:>9} {memory:>10} {}",
            s.id, s.pid, s.uid, s.flows, s.listeners, s.program
        );
    }
    if !r.counters.is_empty() {
        let _ = writeln!(out, "\ncounters");
    }
    let width = r.counters.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in &r.counters {
        let _ = writeln!(out, "  {name:<width$} {value:>14}");
    }
    out
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

fn octets(n: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut shown = format!("{n} B");
    for (power, unit) in units.iter().enumerate() {
        let scale = 1u64 << (10 * (power + 1));
        if n >= scale {
            shown = format!("{:.1} {unit}", n as f64 / scale as f64);
        }
    }
    shown
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
    use toe_abi::report::{PortReport, SessionReport};

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
    fn all_engines_are_a_line_each() {
        let report = |name: &str, flows, busy_permille| StatusReport {
            name: name.to_owned(),
            flows,
            busy_permille,
            ..StatusReport::default()
        };
        let text = format_all(&[report("a", 12, 1000), report("longer-name", 3, 5)]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["a", "100.0", "%", "12", "0", "0"]);
        assert_eq!(rows[2], ["longer-name", "0.5", "%", "3", "0", "0"]);
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
                rx_bytes: 3 << 20,
                ..PortReport::default()
            }],
            sessions: vec![SessionReport {
                id: 1,
                pid: 42,
                program: "nginx".to_owned(),
                ..Default::default()
            }],
            receive_memory_used: 65_536,
            counters: [("drop_no_flow".to_owned(), 3)].into(),
            ..StatusReport::default()
        };
        let text = format(&report);
        for wanted in [
            "engine 'web': process 7",
            "up 1 h 1 min",
            "64.0 KiB of receive memory",
            "port 0 packet:veth0",
            "3.0 MiB",
            "nginx",
            "drop_no_flow",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
    }
}
