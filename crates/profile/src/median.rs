//! What is measured of which sizes, and of what was measured what counts.

use std::hint::black_box;
use std::time::Instant;

/// Bytes of the IP packets, headers included: those of the paper (its tables 1 and 2).
pub const SIZES: [usize; 8] = [64, 125, 250, 500, 750, 1000, 1250, 1500];
/// Packets between two looks at the clock, and how often that is.
const PACKETS: usize = 400;
const ROUNDS: usize = 15;

/// Nanoseconds of each of the `packets` that a call handles.
pub fn median_ns(packets: usize, mut call: impl FnMut()) -> f64 {
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

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// What is left of `whole` without `rest`: less than nothing is noise.
pub fn left(whole: f64, rest: f64) -> f64 {
    (whole - rest).max(0.0)
}
