//! `toe plan`: how many threads each plane of UDP gets on so many cores, and what rate comes of it, from what the stages cost on this
//! machine ([`crate::profile`] has them measured). [`line`] plans, [`queueing`] estimates, [`verify`] sets what was run beside it.

mod line;
mod queueing;
mod verify;

use crate::Failure;
use crate::profile;
use line::{Costs, Flows, Plan};
use serde::Serialize;
use std::fmt::Write;

/// Cores on paper.
const CORES_MAX: u32 = 64;
/// Those that a table without a number shows.
const SHOWN: [u32; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// Threads for the planes of UDP, and the rate that comes of them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A datagram comes in and its text goes out again: interface and IP, then UDP on receive, UDP, then IP and interface on transmit. Each
stage's cost is measured first, as 'toe profile' does. Then two kinds of layout are planned:
  run to completion   each thread does all stages of its datagrams
  planes apart        stages on threads of their own, joined by bounded queues of batches; the best of all ways to cut the line. Each
                      spare thread goes to the plane that is slowest; no plane has a thread more than it takes to keep up
The rate is that of the slowest plane, by the paper's formula: Gb/s = bytes x 8 x threads / (us x 1000). 'irregular' is what is left of
it if batches took exponential times (queues of 8 batches a thread, M/M/1/K); 'delay' is how long a datagram is in the line at 80 % of the rate
(M/D/1 at each thread).
Assumed: hot memory and no link; one size of packets; flows spread evenly over a plane's threads ('--flows one': there is one flow, which
one thread of a plane has); threads share nothing but queues, and each has a core; more than two cores slow each other down as two do here,
and hand over between any two stages for what it costs here from receive to transmit; the control plane's part is nothing.
'--verify' runs what can be run with one and two threads and sets what was measured beside what was predicted.")]
pub struct Args {
    /// Plan for so many cores, size by size (default: a table of 1 to 64)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(CORES_MAX)))]
    cores: Option<u32>,
    /// How many flows there are
    #[arg(long, value_enum, default_value_t)]
    flows: Flows,
    /// Run the layouts for one and two threads, and print predicted beside measured
    #[arg(long, conflicts_with_all = ["cores", "flows"])]
    verify: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    flows: Flows,
    plans: Vec<Plan>,
}

pub fn plan(args: &Args) -> Result<u8, Failure> {
    if args.verify {
        let checked = verify::Checked::new(&profile::measured::<verify::Report>(&["--layouts"])?);
        return if args.json { crate::print_json(&checked) } else { crate::print(&checked.table()) };
    }
    let measured = profile::measured::<profile::Report>(&[])?;
    let costs: Vec<Costs> = measured.rows.iter().map(costs).collect();
    let cores = args.cores.map_or_else(|| (1..=CORES_MAX).collect(), |cores| vec![cores]);
    let plans = cores.iter().flat_map(|cores| costs.iter().map(|costs| Plan::new(costs, *cores, args.flows)));
    let report = Report { flows: args.flows, plans: plans.collect() };
    match (args.json, args.cores) {
        (true, _) => crate::print_json(&report),
        (false, Some(_)) => crate::print(&sizes(&report)),
        (false, None) => crate::print(&overview(&report)),
    }
}

/// A stage's part of what `toe profile` says.
fn costs(row: &profile::Row) -> Costs {
    let (rx, tx) = (&row.receive, &row.transmit);
    let tx_ip = tx.ip_ns + tx.port_ns;
    Costs {
        size: row.size,
        stages_ns: [rx.ip_ns, (rx.total_ns - rx.ip_ns).max(0.0), (tx.total_ns - tx_ip).max(0.0), tx_ip],
        put_ns: row.hand_over.put_ns,
        take_ns: row.hand_over.take_ns,
        slowdown: row.slowdown,
    }
}

/// One number of cores, size by size.
fn sizes(report: &Report) -> String {
    let mut out = String::from(
        "       | run to completion                          | planes apart\n\
         bytes | threads      M/s    Gb/s irregular  delay |      M/s    Gb/s irregular  delay | spare | threads of each plane\n",
    );
    for plan in &report.plans {
        let all = &plan.completion;
        let _ = write!(out, "{:>6} | {:>7} {} | ", plan.size, all.planes[0].threads, figures(all));
        let _ = match &plan.apart {
            Some(apart) => {
                let better = if plan.is_better_apart() { " (better)" } else { "" };
                writeln!(out, "{} | {:>5} | {}{better}", figures(apart), apart.spare, apart.allotment())
            }
            None => writeln!(out, "take two cores at least"),
        };
    }
    out + "M/s: millions of datagrams a second; irregular: the same with exponential times; delay: us at 80 %\n"
}

fn figures(line: &line::Line) -> String {
    let (rate, irregular) = (line.rate / 1e6, line.rate_irregular / 1e6);
    format!("{rate:>8.2} {:>7.2} {irregular:>9.2} {:>6.2}", line.gbit, line.delay_us)
}

/// The smallest and the largest size by cores.
fn overview(report: &Report) -> String {
    let sizes = report.plans.iter().map(|plan| plan.size);
    let (Some(smallest), Some(largest)) = (sizes.clone().min(), sizes.max()) else { return String::new() };
    let mut out = String::new();
    for size in [smallest, largest] {
        let _ = writeln!(
            out,
            "{size} bytes\ncores | to completion M/s    Gb/s | apart M/s    Gb/s | spare | threads of each plane"
        );
        for plan in report.plans.iter().filter(|plan| plan.size == size && SHOWN.contains(&plan.cores)) {
            let all = &plan.completion;
            let _ = write!(out, "{:>5} | {:>17.2} {:>7.2} | ", plan.cores, all.rate / 1e6, all.gbit);
            let _ = match &plan.apart {
                Some(apart) => {
                    let better = if plan.is_better_apart() { " (better)" } else { "" };
                    let (rate, threads) = (apart.rate / 1e6, apart.allotment());
                    writeln!(out, "{rate:>9.2} {:>7.2} | {:>5} | {threads}{better}", apart.gbit, apart.spare)
                }
                None => writeln!(out, "take two cores at least"),
            };
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Costs =
        Costs { size: 64, stages_ns: [30.0, 30.0, 100.0, 40.0], put_ns: 5.0, take_ns: 10.0, slowdown: 1.0 };

    #[test]
    fn tables_name_the_threads_of_each_plane() {
        let plans = [1, 2, 4].map(|cores| Plan::new(&ROW, cores, Flows::One));
        let report = Report { flows: Flows::One, plans: plans.to_vec() };
        let text = overview(&report);
        assert!(text.contains("take two cores") && text.contains("(better)"), "{text}");
        assert!(text.contains("| receive 1, transmit UDP 1, transmit IP 1 (better)"), "{text}");
        let text = sizes(&report);
        assert!(text.contains("    5.00    2.56"), "200 ns are 5 millions a second: {text}");
    }
}
