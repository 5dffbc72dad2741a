//! The report as text.

use super::Report;
use crate::row::{Load, Row};
use crate::sample::{Figure, Measured, Stack};
use crate::stats::Summary;
use std::fmt::Write;
use std::time::Duration;

/// A row: a line for each stack, and one of ratios.
pub(crate) fn row(measured: &Measured) -> String {
    let mut out = String::new();
    for stack in Stack::BOTH {
        put_lines(&mut out, stack.title(), &parts(measured, stack));
    }
    put_lines(&mut out, "ratio", &ratios(measured));
    out
}

/// Columns of a line, if no single part takes more.
const WIDTH: usize = 110;
/// Columns before what a line says.
const INDENT: usize = 10;

/// `parts` behind `title`, in as many lines as they take.
fn put_lines(out: &mut String, title: &str, parts: &[String]) {
    // Writing to a String cannot fail.
    let _ = write!(out, "  {title:<8}");
    let mut column = INDENT;
    for part in parts {
        let len = part.chars().count();
        if column > INDENT && column + 2 + len > WIDTH {
            let _ = write!(out, "\n{:INDENT$}", "");
            column = INDENT;
        }
        let gap = if column > INDENT { "  " } else { "" };
        let _ = write!(out, "{gap}{part}");
        column += gap.len() + len;
    }
    out.push('\n');
}

/// The whole report.
pub(crate) fn whole(report: &Report) -> String {
    let mut out = String::new();
    let m = &report.machine;
    let _ = writeln!(
        out,
        "toe bench {}, {} UTC{}",
        m.opentoe,
        m.date,
        m.commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default()
    );
    let _ = writeln!(out, "{}, {} CPUs (used: {}), {} MiB", m.cpu, m.cpus, m.cpus_used, m.memory_mib);
    let _ = writeln!(out, "{}, Linux {}, its sockets with {}", m.system, m.kernel, m.congestion());
    let _ = writeln!(
        out,
        "{} rounds of each row (over a slow wire a round is one transfer), Linux and OpenTOE turn and turn about,\n{}; medians (min..max)",
        report.rounds,
        minutes(report.took)
    );
    if let Some(note) = m.busy_note() {
        let _ = writeln!(out, "NOTE: {note}");
    }
    if let Some(note) = report.together_note() {
        let _ = writeln!(out, "{note}");
    }
    let _ = writeln!(
        out,
        "CPU time is that of one operation: server, client, engine, all three; busy: all that processors did meanwhile"
    );
    for measured in &report.rows {
        let _ = write!(
            out,
            "\n{} (one operation: a {})\n{}",
            measured.row.name(),
            measured.row.operation(),
            row(measured)
        );
    }
    out += &super::paper::text(report);
    for row in &report.unmeasured {
        let _ =
            writeln!(out, "\n{}: {}: {}", row.name, if row.failed { "FAILED" } else { "left out" }, row.why);
    }
    if report.verdicts.iter().any(|verdict| verdict.reached.is_some()) {
        let _ = writeln!(out, "\n{:<8}{:<36}{:<46}{:>14}{:>14}", "", "target", "figure", "bound", "measured");
    }
    for verdict in report.verdicts.iter().filter(|verdict| verdict.reached.is_some()) {
        let (target, title) = (&verdict.target, verdict.target.figure.title());
        let _ = write!(out, "{:<8}{:<36}{title:<46}", verdict.word(), target.row);
        let bound = target.bound();
        // One that names another row has a line of its own.
        let (beside, below) = if bound.len() < 14 { (bound.as_str(), "") } else { ("", bound.as_str()) };
        let _ = writeln!(out, "{beside:>14}{:>14}", verdict.presented());
        let worst = verdict.row.as_ref().filter(|worst| **worst != target.row);
        let worst = worst.map(|worst| format!("({worst})"));
        for under in [Some(below.to_owned()).filter(|below| !below.is_empty()), worst].into_iter().flatten() {
            let _ = writeln!(out, "{:<8}{under}", "");
        }
    }
    out
}

/// `4 min`, `35 s`.
pub(crate) fn minutes(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}

fn parts(measured: &Measured, stack: Stack) -> Vec<String> {
    let of = |figure| measured.summary(stack, figure);
    let mut parts = Vec::new();
    if let Some(rate) = of(Figure::Rate) {
        parts.push(format!("{:>30}", spread(rate, unit(&measured.row))));
    }
    for (name, figure) in [("lost", Figure::Lost), ("of its peak", Figure::Kept)] {
        parts.extend(of(figure).map(|share| format!("{name} {:>6.2} %", share.median)));
    }
    for (name, figure) in [("p50", Figure::P50), ("p99", Figure::P99), ("p99.9", Figure::P999)] {
        parts.extend(of(figure).map(|time| format!("{name} {:>8}", microseconds(time.median))));
    }
    let cpu = [
        ("server", Figure::ServerCpu),
        ("client", Figure::ClientCpu),
        ("engine", Figure::EngineCpu),
        ("all", Figure::TotalCpu),
        ("busy", Figure::MachineCpu),
        ("thread", Figure::ThreadCpu),
    ];
    for (name, figure) in cpu {
        parts.extend(of(figure).map(|time| format!("{name} {:>8}", microseconds(time.median))));
    }
    let idle = [("KiB each", Figure::ConnectionMemory), ("KiB of slab each", Figure::ConnectionSlab)];
    for (name, figure) in idle {
        parts.extend(of(figure).map(|kib| format!("{} {name}", spread(kib, ""))));
    }
    if matches!(measured.row.load, Load::Idle { .. }) {
        parts.extend(of(Figure::CpuPercent).map(|share| format!("{:.2} % CPU", share.median)));
    }
    parts.extend(of(Figure::Memory).map(|kib| format!("{:>6.1} MiB", kib.median / 1024.0)));
    parts
}

fn ratios(measured: &Measured) -> Vec<String> {
    let names = [
        ("rate", Figure::Rate),
        ("p50", Figure::P50),
        ("p99", Figure::P99),
        ("server CPU", Figure::ServerCpu),
        ("all CPU", Figure::TotalCpu),
        ("busy", Figure::MachineCpu),
        ("thread's CPU", Figure::ThreadCpu),
        ("memory each", Figure::ConnectionMemory),
    ];
    let presented = names
        .iter()
        .filter_map(|(name, figure)| measured.ratio(*figure).map(|ratio| format!("{name} {ratio:.2} x")));
    let mut parts = presented.collect::<Vec<_>>();
    let own = measured.summary(Stack::Toe, Figure::ServerCpu).map(|own| own.median * 1000.0);
    if let Some((null, own)) = measured.null_ns.zip(own) {
        parts.push(format!("server CPU over an empty handler {:.0} ns (it takes {null:.0})", own - null));
    }
    parts
}

/// A rate with its unit, short: `8.46 M/s`.
pub(super) fn rate(row: &Row, rate: f64) -> String {
    let (number, prefix) = match rate {
        r if r < 10_000.0 => (r, ""),
        r if r < 1e6 => (r / 1e3, "k"),
        r => (r / 1e6, "M"),
    };
    match (row.load, prefix) {
        (Load::Stream { .. } | Load::File(_), _) => format!("{rate:.0}{}", unit(row)),
        (_, "") => format!("{number:.0}{}", unit(row)),
        _ => format!("{number:.2} {prefix}{}", unit(row)),
    }
}

/// A time as short as can be, for axes: `100 us`.
pub(super) fn time(us: f64) -> String {
    let (number, unit) = match us {
        us if us < 1000.0 => (us, "us"),
        us if us < 1e6 => (us / 1000.0, "ms"),
        us => (us / 1e6, "s"),
    };
    // Two digits behind the point at most, and none that say nothing.
    format!("{} {unit}", (number * 100.0).round() / 100.0)
}

fn unit(row: &Row) -> &'static str {
    match row.load {
        Load::Stream { .. } | Load::File(_) => " MiB/s",
        _ => "/s",
    }
}

fn spread(summary: Summary, unit: &str) -> String {
    let Summary { median, min, max } = summary;
    match median {
        m if m < 100.0 => format!("{median:.2}{unit} ({min:.2}..{max:.2})"),
        _ => format!("{median:.0}{unit} ({min:.0}..{max:.0})"),
    }
}

pub(crate) fn microseconds(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0} ns", us * 1000.0),
        us if us < 10.0 => format!("{us:.2} us"),
        us if us < 1000.0 => format!("{us:.1} us"),
        us => format!("{:.2} ms", us / 1000.0),
    }
}
