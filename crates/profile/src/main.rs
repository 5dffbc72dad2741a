//! `toe-profile`: what a datagram costs in each stage of the engine's UDP and IP, over memory instead of a link, as JSON. `toe profile` runs it
//! and sets the figures of the IXP paper beside it; `toe plan` predicts layouts from it.
//!
//! Stages are told apart by what is left when one is left out, so that nothing is in the way of what is measured: no counter, no clock. Of some
//! rounds each the median counts.

#![forbid(unsafe_code)]

mod batches;
mod harness;
mod layouts;
mod median;
mod planes;

use clap::Parser;
use median::SIZES;
use serde::Serialize;

/// Measures what a datagram costs in each stage, and prints it as JSON. 'toe profile' shows it as tables and plots
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// With the planes put on threads, as 'toe plan --verify' wants it
    #[arg(long)]
    layouts: bool,
}

fn main() -> serde_json::Result<()> {
    let out = std::io::stdout();
    if Args::parse().layouts {
        serde_json::to_writer(out, &layouts::measure())
    } else {
        serde_json::to_writer(out, &measure())
    }
}

#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<planes::Row>,
}

/// Each size is measured so often, far enough apart that what disturbs one does not disturb all.
const PASSES: usize = 5;

/// Measures for some seconds. Of each size the pass counts that was disturbed least.
fn measure() -> Report {
    let total = |row: &planes::Row| row.receive.total_ns + row.transmit.total_ns;
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

#[cfg(test)]
mod tests {
    use super::median::left;
    use super::planes::{self, Receive};

    #[test]
    fn stages_add_up_to_no_more_than_the_whole() {
        let row = planes::row(1500);
        let Receive { ip_ns, total_ns, .. } = row.receive;
        assert!(ip_ns > 0.0 && total_ns > 0.0 && row.transmit.total_ns > 0.0 && row.unreachable_ns > 0.0);
        assert_eq!((left(3.0, 2.0), left(2.0, 3.0)), (1.0, 0.0));
    }
}
