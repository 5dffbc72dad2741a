//! What a datagram costs in each stage: the engine's UDP and IP over memory instead of a link, in a process of its own (`toed --profile`, which
//! `toe profile` runs and sets beside the figures of the IXP paper).
//!
//! Stages are told apart by what is left when one is left out, so that nothing is in the way of what is measured: no counter, no clock. Of some
//! rounds each the median counts.

mod batches;
mod harness;
pub mod layouts;
mod median;
mod planes;

use median::SIZES;
pub use planes::{Receive, Row, Transmit};
use serde::Serialize;

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

#[cfg(test)]
mod tests {
    use super::median::left;
    use super::*;

    #[test]
    fn stages_add_up_to_no_more_than_the_whole() {
        let row = planes::row(1500);
        let Receive { ip_ns, total_ns, .. } = row.receive;
        assert!(ip_ns > 0.0 && total_ns > 0.0 && row.transmit.total_ns > 0.0 && row.unreachable_ns > 0.0);
        assert_eq!((left(3.0, 2.0), left(2.0, 3.0)), (1.0, 0.0));
    }
}
