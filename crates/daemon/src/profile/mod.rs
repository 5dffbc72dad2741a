//! What a datagram costs in each stage: the engine's UDP and IP over memory instead of a link, in a process of its own (`toed --profile`, which
//! `toe profile` runs and sets beside the figures of the IXP paper).
//!
//! Stages are told apart by what is left when one is left out, so that nothing is in the way of what is measured: no counter, no clock. Of some
//! rounds each the median counts.

mod batches;
mod harness;
pub mod layouts;
mod planes;

use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Bytes of the IP packets, headers included: those of the paper (its tables 1 and 2).
const SIZES: [usize; 8] = [64, 125, 250, 500, 750, 1000, 1250, 1500];
/// Packets between two looks at the clock, and how often that is.
const PACKETS: usize = 400;
const ROUNDS: usize = 15;

/// Nanoseconds of one packet in each stage.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Receive {
    /// Of `ip_ns`: the Ethernet header, and the IP header with its checksum. The rest: whose the addresses are, and the UDP header.
    pub ethernet_ns: f64,
    pub header_ns: f64,
    /// Interface and IP: Ethernet, IP and the UDP header.
    pub ip_ns: f64,
    pub checksum_ns: f64,
    /// Whose it is.
    pub demultiplex_ns: f64,
    /// Into the memory of who has it.
    pub deliver_ns: f64,
    pub total_ns: f64,
    /// The same where the link has looked at the checksum.
    pub vouched_ns: f64,
}

/// The same of what goes out.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Transmit {
    /// The record is read, and its route found.
    pub route_ns: f64,
    /// Its bytes are copied behind a UDP header.
    pub copy_ns: f64,
    pub checksum_ns: f64,
    /// IP and Ethernet header.
    pub ip_ns: f64,
    /// From the queue to the port.
    pub port_ns: f64,
    pub total_ns: f64,
    /// The same where the link fills in the checksum.
    pub vouched_ns: f64,
}

/// One size of packets.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Bytes of the IP packet.
    pub size: usize,
    pub receive: Receive,
    pub transmit: Transmit,
    /// Control plane: a datagram of an unknown port comes in and its answer goes out.
    pub unreachable_ns: f64,
    /// Of planes on threads of their own: what a batch costs besides, and how many times as long a plane takes while another core is at
    /// work, too. Nothing and 1 where there is one core only.
    pub hand_over: layouts::HandOver,
    pub beside: f64,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub rows: Vec<Row>,
}

/// Each size is measured so often, far enough apart that what disturbs one does not disturb all.
const PASSES: usize = 5;

/// Measures for some seconds. Of each size the pass counts that was disturbed least.
pub fn measure() -> Report {
    let total = |row: &Row| row.receive.total_ns + row.transmit.total_ns;
    let mut rows = SIZES.map(planes::row);
    for _ in 1..PASSES {
        for best in &mut rows {
            let again = planes::row(best.size);
            if total(&again) < total(best) {
                *best = again;
            }
        }
    }
    Report { rows: rows.into() }
}

/// Nanoseconds of each of the `packets` that a call handles.
fn median_ns(packets: usize, mut call: impl FnMut()) -> f64 {
    let calls = PACKETS.div_ceil(packets);
    let mut rounds = [0.0; ROUNDS];
    for round in &mut rounds {
        let before = Instant::now();
        for _ in 0..calls {
            call();
            black_box(());
        }
        *round = before.elapsed().as_nanos() as f64 / (calls * packets) as f64;
    }
    median(&mut rounds)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// What is left of `whole` without `rest`: less than nothing is noise.
fn left(whole: f64, rest: f64) -> f64 {
    (whole - rest).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_add_up_to_no_more_than_the_whole() {
        let row = planes::row(1500);
        let Receive { ip_ns, total_ns, .. } = row.receive;
        assert!(ip_ns > 0.0 && total_ns > 0.0 && row.transmit.total_ns > 0.0 && row.unreachable_ns > 0.0);
        assert_eq!((left(3.0, 2.0), left(2.0, 3.0)), (1.0, 0.0));
    }
}
