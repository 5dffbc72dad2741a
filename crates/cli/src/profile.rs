//! `toe profile`: what a datagram costs in each plane and stage on this machine, beside the figures of the IXP paper. `toed` measures, over
//! memory and in a process of its own; no engine is touched.

use crate::Failure;
use crate::spawn::toed;
use serde::Deserialize;
use std::fmt::Write;

/// What a datagram costs, plane by plane and stage by stage
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measured over memory, without a link and without a program, on one thread: IPv4, packets of 64 to 1500 octets with their headers.
The sum of the stages of a plane is its total, as far as they can be told apart. The rate is that of one thread a plane, by the
paper's formula: octets x 8 / ns. The paper's processor (an Intel IXP) is of another time; what compares is the shape: there UDP cost
eight to ten times as much for 1500 octets as for 64, because of the checksum's reads of memory.")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Report {
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    size: u32,
    receive: Receive,
    transmit: Transmit,
    unreachable_ns: f64,
}

#[derive(Debug, Deserialize)]
struct Receive {
    ip_ns: f64,
    checksum_ns: f64,
    demultiplex_ns: f64,
    deliver_ns: f64,
    total_ns: f64,
}

#[derive(Debug, Deserialize)]
struct Transmit {
    route_ns: f64,
    copy_ns: f64,
    checksum_ns: f64,
    ip_ns: f64,
    port_ns: f64,
    total_ns: f64,
}

pub fn profile(args: &Args) -> Result<u8, Failure> {
    let output = toed(&["--profile".into()])?
        .output()
        .map_err(|error| Failure::new(format!("cannot start 'toed': {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("'toed --profile' failed ({}): {}", output.status, said.trim())));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Report = serde_json::from_str(&text).map_err(|error| {
        Failure::new(format!(
            "'toed' says what makes no sense ({error}); use 'toe' and 'toed' of one release"
        ))
    })?;
    if args.json { crate::print(&format!("{text}\n")) } else { crate::print(&tables(&report)) }
}

/// The paper's µs per packet of 64 and of 1500 octets (its table 1).
const PAPER: [(&str, f64, f64); 4] = [
    ("IP receive", 0.45, 0.46),
    ("UDP receive", 1.53, 15.83),
    ("IP transmit", 0.81, 0.81),
    ("UDP transmit", 1.98, 16.35),
];

fn tables(report: &Report) -> String {
    let mut out = String::new();
    // A string takes all that is written to it.
    let _ = costs(&mut out, report)
        .and_then(|()| shares(&mut out, report))
        .and_then(|()| beside(&mut out, report));
    out
}

fn costs(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "ns per packet, by plane and stage")?;
    writeln!(
        out,
        "       | receive                                   | transmit                                          | control\n\
         octets |     IP checksum  demux deliver |     all |  route   copy checksum     IP   port |     all | answer"
    )?;
    for row in &report.rows {
        let (rx, tx) = (&row.receive, &row.transmit);
        write!(
            out,
            "{:>6} | {:>6.1} {:>8.1} {:>6.1} ",
            row.size, rx.ip_ns, rx.checksum_ns, rx.demultiplex_ns
        )?;
        write!(out, "{:>7.1} | {:>7.1} | ", rx.deliver_ns, rx.total_ns)?;
        write!(out, "{:>6.1} {:>6.1} {:>8.1} ", tx.route_ns, tx.copy_ns, tx.checksum_ns)?;
        writeln!(
            out,
            "{:>6.1} {:>6.1} | {:>7.1} | {:>6.1}",
            tx.ip_ns, tx.port_ns, tx.total_ns, row.unreachable_ns
        )?;
    }
    Ok(())
}

fn shares(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "\nGb/s of one thread a plane; shares of that plane, and of the planes, in %")?;
    writeln!(
        out,
        "octets | receive   IP  UDP | checksum of UDP | transmit   IP  UDP | checksum of UDP | receive transmit"
    )?;
    let share = |part: f64, whole: f64| 100.0 * part / whole.max(f64::MIN_POSITIVE);
    for row in &report.rows {
        let (rx, tx) = (&row.receive, &row.transmit);
        let rate = |ns: f64| f64::from(row.size) * 8.0 / ns.max(f64::MIN_POSITIVE);
        let (rx_ip, tx_ip) = (share(rx.ip_ns, rx.total_ns), share(tx.ip_ns, tx.total_ns));
        let (rx_udp, tx_udp) = (rx.total_ns - rx.ip_ns, tx.total_ns - tx.ip_ns);
        write!(out, "{:>6} | {:>7.2} {rx_ip:>4.0} {:>4.0} | ", row.size, rate(rx.total_ns), 100.0 - rx_ip)?;
        write!(out, "{:>15.0} | ", share(rx.checksum_ns, rx_udp))?;
        write!(out, "{:>8.2} {tx_ip:>4.0} {:>4.0} | ", rate(tx.total_ns), 100.0 - tx_ip)?;
        write!(out, "{:>15.0} | ", share(tx.checksum_ns, tx_udp))?;
        let both = rx.total_ns + tx.total_ns;
        writeln!(out, "{:>7.0} {:>8.0}", share(rx.total_ns, both), share(tx.total_ns, both))?;
    }
    Ok(())
}

fn beside(out: &mut String, report: &Report) -> std::fmt::Result {
    let (Some(first), Some(last)) = (report.rows.first(), report.rows.last()) else { return Ok(()) };
    let of = |row: &Row| {
        let (rx, tx) = (&row.receive, &row.transmit);
        [rx.ip_ns, rx.total_ns - rx.ip_ns, tx.ip_ns, tx.total_ns - tx.ip_ns]
    };
    writeln!(
        out,
        "\nbeside the IXP paper (its table 1): {} octets, {} octets, and how many times as much",
        first.size, last.size
    )?;
    for ((name, small, large), (a, b)) in PAPER.into_iter().zip(of(first).into_iter().zip(of(last))) {
        write!(out, "{name:>13} | paper {small:>5.2} µs {large:>6.2} µs {:>5.1} | ", large / small)?;
        writeln!(out, "here {a:>6.1} ns {b:>6.1} ns {:>5.1}", b / a.max(f64::MIN_POSITIVE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_told_beside_the_papers_figures() {
        let row = r#"{"size":64,"receive":{"ip_ns":20,"checksum_ns":5,"demultiplex_ns":10,"deliver_ns":15,"total_ns":50},
            "transmit":{"route_ns":10,"copy_ns":20,"checksum_ns":5,"ip_ns":10,"port_ns":5,"total_ns":64},
            "unreachable_ns":100}"#;
        let report: Report = serde_json::from_str(&format!(r#"{{"rows":[{row}]}}"#)).expect("a report");
        let text = tables(&report);
        assert!(text.contains("10.24") && text.contains("8.00"), "64 octets in 50 and in 64 ns: {text}");
        assert!(text.contains("UDP receive | paper  1.53 µs  15.83 µs  10.3 | here   30.0 ns"), "{text}");
    }
}
