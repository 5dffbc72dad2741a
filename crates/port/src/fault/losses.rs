//! Which frames are lost: each by itself, or several in a row (the model of Gilbert: a link that is now good, now bad, and
//! loses everything while it is bad). Asked by [`super::lane::Lane`], once a frame.

use super::plan::{FaultRates, Rate};

/// One less than this is the largest draw.
const SCALE: u64 = 1 << 32;

/// The losses of one direction.
#[derive(Debug)]
pub(super) struct Losses {
    drop: Rate,
    /// The mean number of frames lost in a row; 0 when each is lost by itself.
    burst: u32,
    is_bad: bool,
}

impl Losses {
    pub(super) fn new(rates: &FaultRates) -> Losses {
        Losses { drop: rates.drop, burst: rates.burst, is_bad: false }
    }

    /// Whether the next frame is lost. `draw` is any of all 32-bit numbers alike.
    pub(super) fn next(&mut self, draw: u32) -> bool {
        if self.burst == 0 {
            return draw % 1_000_000 < self.drop.ppm();
        }
        // Bad for `burst` frames on average, and good for so many that the share of bad ones is `drop`.
        let (bad, good) = (u64::from(self.drop.ppm()), 1_000_000 - u64::from(self.drop.ppm()));
        let burst = u64::from(self.burst);
        let turns_bad = (bad * SCALE).checked_div(burst * good).unwrap_or(SCALE);
        let stays_bad = if good == 0 { SCALE } else { SCALE - SCALE / burst };
        let limit = if self.is_bad { stays_bad } else { turns_bad };
        self.is_bad = u64::from(draw) < limit;
        self.is_bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    const FRAMES: u32 = 2_000_000;

    /// How many of [`FRAMES`] frames are lost, and in how many rows.
    fn lost(ppm: u32, burst: u32) -> (u32, u32) {
        let rates = FaultRates { drop: Rate::from_ppm(ppm), burst, ..FaultRates::default() };
        let mut losses = Losses::new(&rates);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (mut count, mut rows, mut before) = (0, 0, false);
        for _ in 0..FRAMES {
            let now = losses.next(rng.next_u32());
            count += u32::from(now);
            rows += u32::from(now && !before);
            before = now;
        }
        (count, rows)
    }

    #[test]
    fn as_many_are_lost_in_bursts_as_one_by_one() {
        for ppm in [1_000, 10_000, 50_000] {
            let want = f64::from(FRAMES) * f64::from(ppm) / 1e6;
            for burst in [0, 4, 10] {
                let (count, _) = lost(ppm, burst);
                let ratio = f64::from(count) / want;
                assert!((0.75..1.25).contains(&ratio), "{ppm} ppm, burst {burst}: {count} of {want}");
            }
        }
    }

    #[test]
    fn bursts_are_as_long_as_asked() {
        for burst in [1, 4, 10] {
            let (count, rows) = lost(50_000, burst);
            let mean = f64::from(count) / f64::from(rows);
            // A burst may follow another at once, so rows are a little longer.
            assert!((0.95..1.2).contains(&(mean / f64::from(burst))), "burst {burst}: rows of {mean}");
        }
        let (count, rows) = lost(50_000, 0);
        assert!(f64::from(count) / f64::from(rows) < 1.1, "{count} lost in {rows} rows");
    }

    #[test]
    fn the_ends_of_the_scale() {
        assert_eq!(lost(0, 5).0, 0);
        assert_eq!(lost(1_000_000, 5).0, FRAMES);
        assert_eq!(lost(1_000_000, 1).0, FRAMES);
    }
}
