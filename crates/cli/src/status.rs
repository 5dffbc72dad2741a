//! `toe status`: what an engine has and what it has counted.

use crate::client::Client;
use crate::{Failure, print, print_json};
use std::fmt::Write;
use toe_abi::attach::ReportKind;
use toe_abi::report::StatusReport;

/// Show an engine's ports, sessions and counters
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The counters tell every drop by its reason. --json gives the same as one JSON object (see StatusReport in
crates/abi/src/report.rs).

EXAMPLES:
  toe status
  toe status --name web --json | jq .counters")]
pub struct Args {
    /// Name of the engine ('default' unless given)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn status(args: &Args) -> Result<u8, Failure> {
    let report: StatusReport = Client::find(args.name.as_deref())?.report(ReportKind::Status)?;
    if args.json { print_json(&report) } else { print(&format(&report)) }
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
        "{} flows, {} listeners, {} sessions, {} of receive memory in use",
        r.flows,
        r.listeners,
        r.sessions.len(),
        octets(r.receive_memory_used)
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
