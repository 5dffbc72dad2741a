//! `toe profile`: what a datagram costs in each plane and stage on this machine, beside the figures of the IXP paper. `toe-profile`
//! measures, over memory and in a process of its own; no engine is touched.

mod page;

use crate::Failure;
use crate::spawn::{cannot_start, program};
use serde::Deserialize;
use std::fmt::Write;
use std::path::PathBuf;

/// What a datagram costs, plane by plane and stage by stage
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measured over memory, without a link and without a program, on one thread: IPv4, packets of 64 to 1500 bytes with their headers, in batches
of 32.
The sum of the stages of a plane is its total, as far as they can be told apart. The rate is that of one thread a plane, by the
paper's formula: bytes x 8 / ns. The paper's processor (an Intel IXP) is of another time; what compares is the shape: there UDP cost
eight to ten times as much for 1500 bytes as for 64, because of the checksum's reads of memory.")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page with plots: time per packet, shares by module and by plane, the paper's beside them
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
}

/// What `toe-profile` says. Times are of one packet.
#[derive(Debug, Deserialize)]
pub struct Report {
    pub rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
pub struct Row {
    pub size: u32,
    pub receive: Receive,
    pub transmit: Transmit,
    pub unreachable_ns: f64,
    pub hand_over: HandOver,
    #[serde(rename = "beside")]
    pub slowdown: f64,
}

#[derive(Debug, Deserialize)]
pub struct Receive {
    pub ethernet_ns: f64,
    pub header_ns: f64,
    pub ip_ns: f64,
    pub checksum_ns: f64,
    pub demultiplex_ns: f64,
    pub deliver_ns: f64,
    pub total_ns: f64,
    pub vouched_ns: f64,
}

#[derive(Debug, Deserialize)]
pub struct Transmit {
    pub route_ns: f64,
    pub copy_ns: f64,
    pub checksum_ns: f64,
    pub ip_ns: f64,
    pub port_ns: f64,
    pub total_ns: f64,
    pub vouched_ns: f64,
}

/// What a batch costs besides when another core takes it over.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct HandOver {
    pub put_ns: f64,
    pub take_ns: f64,
}

pub fn profile(args: &Args) -> Result<u8, Failure> {
    if args.json {
        return crate::print(&format!("{}\n", said(&[])?));
    }
    let report = measured(&[])?;
    if let Some(path) = &args.html {
        std::fs::write(path, page::page(&report))
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
    }
    crate::print(&tables(&report))
}

/// What `toe-profile` measures with these arguments.
pub fn measured<T: serde::de::DeserializeOwned>(args: &[&str]) -> Result<T, Failure> {
    serde_json::from_str(&said(args)?).map_err(|error| {
        Failure::new(format!(
            "'{MEASURES}' says what makes no sense ({error}); use it and 'toe' of one release"
        ))
    })
}

const MEASURES: &str = "toe-profile";

fn said(args: &[&str]) -> Result<String, Failure> {
    let output =
        program(MEASURES, args)?.output().map_err(|error| Failure::new(cannot_start(MEASURES, &error)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("'{MEASURES}' failed ({}): {}", output.status, said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Bytes of the paper's packets, and its µs per packet of each (its table 1).
const PAPER_SIZES: [u32; 8] = [64, 125, 250, 500, 750, 1000, 1250, 1500];
const PAPER: [(&str, [f64; 8]); 4] = [
    ("IP receive", [0.45, 0.46, 0.45, 0.46, 0.48, 0.46, 0.46, 0.46]),
    ("UDP receive", [1.53, 2.25, 3.16, 5.84, 8.34, 11.02, 13.51, 15.83]),
    ("IP transmit", [0.81, 0.81, 0.80, 0.80, 0.81, 0.81, 0.81, 0.82]),
    ("UDP transmit", [1.98, 2.64, 3.66, 6.25, 8.82, 11.47, 14.09, 16.35]),
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
    writeln!(
        out,
        "ns per packet, by plane and stage; 'vouched': where the link checks or fills in the checksum"
    )?;
    writeln!(
        out,
        "       | receive                                           | transmit                                                  | control\n\
         bytes |     IP checksum  demux deliver |     all vouched |  route   copy checksum     IP   port |     all vouched | answer"
    )?;
    for row in &report.rows {
        let (rx, tx) = (&row.receive, &row.transmit);
        write!(
            out,
            "{:>6} | {:>6.1} {:>8.1} {:>6.1} ",
            row.size, rx.ip_ns, rx.checksum_ns, rx.demultiplex_ns
        )?;
        write!(out, "{:>7.1} | {:>7.1} {:>7.1} | ", rx.deliver_ns, rx.total_ns, rx.vouched_ns)?;
        write!(out, "{:>6.1} {:>6.1} {:>8.1} ", tx.route_ns, tx.copy_ns, tx.checksum_ns)?;
        writeln!(
            out,
            "{:>6.1} {:>6.1} | {:>7.1} {:>7.1} | {:>6.1}",
            tx.ip_ns, tx.port_ns, tx.total_ns, tx.vouched_ns, row.unreachable_ns
        )?;
    }
    Ok(())
}

fn shares(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "\nGb/s of one thread a plane; shares of that plane, and of the planes, in %")?;
    writeln!(
        out,
        "bytes | receive   IP  UDP | checksum of UDP | transmit   IP  UDP | checksum of UDP | receive transmit"
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
        "\nbeside the IXP paper (its table 1): {} bytes, {} bytes, and how many times as much",
        first.size, last.size
    )?;
    for ((name, paper), (a, b)) in PAPER.into_iter().zip(of(first).into_iter().zip(of(last))) {
        let (small, large) = (paper[0], paper[7]);
        write!(out, "{name:>13} | paper {small:>5.2} µs {large:>6.2} µs {:>5.1} | ", large / small)?;
        writeln!(out, "here {a:>6.1} ns {b:>6.1} ns {:>5.1}", b / a.max(f64::MIN_POSITIVE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn report() -> Report {
        let row = r#"{"size":64,"receive":{"ethernet_ns":4,"header_ns":8,"ip_ns":20,"checksum_ns":5,"demultiplex_ns":10,
            "deliver_ns":15,"total_ns":50,"vouched_ns":45},
            "transmit":{"route_ns":10,"copy_ns":20,"checksum_ns":5,"ip_ns":10,"port_ns":5,"total_ns":64,"vouched_ns":60},
            "unreachable_ns":100,"hand_over":{"put_ns":4,"take_ns":6},"beside":1.02}"#;
        serde_json::from_str(&format!(r#"{{"rows":[{row}]}}"#)).expect("a report")
    }

    #[test]
    fn what_is_measured_is_told_beside_the_papers_figures() {
        let text = tables(&report());
        assert!(text.contains("10.24") && text.contains("8.00"), "64 bytes in 50 and in 64 ns: {text}");
        assert!(text.contains("UDP receive | paper  1.53 µs  15.83 µs  10.3 | here   30.0 ns"), "{text}");
    }
}
