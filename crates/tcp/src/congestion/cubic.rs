//! CUBIC (RFC 9438). Integers throughout, so that a run can be repeated anywhere to the byte: windows in bytes, times
//! in milliseconds.

use super::hystart::HyStart;
use super::window::Growth;
use toe_base::Instant;

/// beta of section 4.6: 0.7.
const BETA_TENTHS: u64 = 7;
/// Before the first loss the window grows by one part in so many in a round trip, at least. What the curve would do from where slow
/// start was left says nothing yet: no window is known at which the path is full, and from there it begins flat.
const UNKNOWN_GROWTH: u32 = 20;

/// State of section 4.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cubic {
    pub hystart: HyStart,
    /// W_max: the window before the last reduction, 0 before the first.
    w_max: u32,
    /// The same before the last reduction, should that turn out to be a mistake.
    w_max_before: u32,
    /// When congestion avoidance began, once it has.
    epoch: Option<Epoch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Epoch {
    start: Instant,
    last_ack: Instant,
    k_ms: u32,
    /// What the window grows towards first.
    origin: u32,
    /// W_est of section 4.3: what Reno would have by now.
    reno: u32,
    /// The part of a byte that [`Epoch::reno`] has yet to grow by, in numerators of its division.
    reno_rest: u32,
}

impl Cubic {
    /// Section 4.6, with fast convergence (section 4.7).
    pub fn reduced(&mut self, cwnd: u32, mss: u32) -> u32 {
        self.hystart.done();
        self.epoch = None;
        self.w_max_before = self.w_max;
        // Give way when the window had not got back to where it was.
        self.w_max = if cwnd + mss < self.w_max { (u64::from(cwnd) * 17 / 20) as u32 } else { cwnd };
        (u64::from(cwnd) * BETA_TENTHS / 10) as u32
    }

    /// Section 4.8.
    pub fn timed_out(&mut self) {
        self.epoch = None;
    }

    pub fn restore(&mut self) {
        self.w_max = self.w_max_before;
        self.epoch = None;
    }

    /// Congestion avoidance (sections 4.2 to 4.5).
    pub fn avoid(&mut self, cwnd: &mut u32, growth: &Growth) {
        let epoch = match &mut self.epoch {
            Some(epoch) => epoch,
            none => none.insert(Epoch::begin(*cwnd, self.w_max, growth)),
        };
        let idle_us = growth.now.since_us(epoch.last_ack);
        if idle_us > 2 * u64::from(growth.srtt_us).max(1000) {
            // Section 5.8: time in which the window was not used does not count.
            epoch.start = epoch.start.after_us(idle_us);
        }
        epoch.last_ack = growth.now;
        let reno = epoch.grow_reno(*cwnd, growth);
        let t_ms = growth.now.after_us(u64::from(growth.srtt_us)).since_us(epoch.start) / 1000;
        let target = epoch.window_at(t_ms, growth.mss).clamp(u64::from(*cwnd), u64::from(*cwnd) * 3 / 2);
        let bytes = (target - u64::from(*cwnd)) * u64::from(growth.acked) / u64::from((*cwnd).max(1));
        // Hardly any growth near the plateau, but never none (one byte in a hundred acknowledged).
        let bytes =
            bytes.max(u64::from(growth.acked) * u64::from(growth.mss) / (100 * u64::from((*cwnd).max(1))));
        let bytes = if self.w_max == 0 { bytes.max(u64::from(growth.acked / UNKNOWN_GROWTH)) } else { bytes };
        *cwnd = cwnd.saturating_add(bytes as u32).max(reno);
    }
}

impl Epoch {
    fn begin(cwnd: u32, w_max: u32, growth: &Growth) -> Epoch {
        let (k_ms, origin) = if w_max > cwnd {
            // K = cbrt((W_max - cwnd) / C) seconds, C = 0.4 and windows in segments (figure 2).
            let cubed = u64::from(w_max - cwnd) * 5 / 2 * 1_000_000_000 / u64::from(growth.mss.max(1));
            (cube_root(cubed) as u32, w_max)
        } else {
            (0, cwnd)
        };
        Epoch { start: growth.now, last_ack: growth.now, k_ms, origin, reno: cwnd, reno_rest: 0 }
    }

    /// W_cubic(t) of figure 1, in bytes.
    fn window_at(&self, t_ms: u64, mss: u32) -> u64 {
        let t = i128::from(t_ms.min(1 << 24)) - i128::from(self.k_ms);
        let delta = 2 * i128::from(mss) * t * t * t / 5_000_000_000;
        (i128::from(self.origin) + delta).clamp(0, i128::from(u32::MAX)) as u64
    }

    /// Section 4.3, with its alpha of 3 (1 - beta) / (1 + beta) = 9/17 throughout. The section has it become 1 where the window
    /// is back; Linux does not, and beside connections of Linux on a short path that takes twice their share.
    fn grow_reno(&mut self, cwnd: u32, growth: &Growth) -> u32 {
        let den = 17 * u64::from(cwnd.max(1));
        let rest = u64::from(self.reno_rest) + 9 * u64::from(growth.acked) * u64::from(growth.mss);
        let bytes = rest / den;
        // Windows are at most `CWND_MAX`, and 17 of those fewer than 2^32.
        self.reno_rest = (rest % den) as u32;
        self.reno = self.reno.saturating_add(bytes as u32);
        self.reno
    }
}

/// The integer cube root, by Newton's method from above.
fn cube_root(n: u64) -> u64 {
    if n < 8 {
        return u64::from(n > 0);
    }
    let mut x = 1u64 << (n.ilog2() / 3 + 1);
    loop {
        let next = (2 * x + n / (x * x)) / 3;
        if next >= x {
            return x;
        }
        x = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::SeqNum;

    #[test]
    fn the_cube_root_is_rounded_down() {
        for n in (0..1000).chain([u64::MAX / 2, 1 << 60, (1 << 60) - 1]) {
            let x = cube_root(n);
            assert!(x.pow(3) <= n && (x + 1).checked_pow(3).is_none_or(|c| c > n), "{n}: {x}");
        }
    }

    fn growth(now_ms: u64, acked: u32, mss: u32, srtt_us: u32) -> Growth {
        Growth {
            now: Instant::from_millis(now_ms),
            acked,
            mss,
            srtt_us,
            rtt_us: None,
            una: SeqNum::new(0),
            nxt: SeqNum::new(0),
        }
    }

    /// Section 4.7: who has not got back to the old window gives way by more.
    #[test]
    fn a_second_loss_before_the_old_window_lowers_the_plateau() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.reduced(100_000, 1000), 70_000);
        assert_eq!(cubic.w_max, 100_000);
        assert_eq!(cubic.reduced(80_000, 1000), 56_000);
        assert_eq!(cubic.w_max, 68_000, "(1 + 0.7) / 2 of 80,000");
        cubic.reduced(68_000, 1000);
        assert_eq!(cubic.w_max, 68_000, "it had got back");
    }

    /// Section 4.2: in one round trip the window grows by half of itself at most, and never shrinks.
    #[test]
    fn the_target_is_bounded() {
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.reduced(20_000, 1000);
        cubic.avoid(&mut cwnd, &growth(0, 1000, 1000, 10_000));
        for second in 1..100 {
            let before = cwnd;
            // An ACK of everything, once a second of a short path: the curve has gone far beyond.
            cubic.epoch.as_mut().expect("it began").last_ack = Instant::from_millis(second * 1000);
            let growth = growth(second * 1000, cwnd, 1000, 10_000);
            cubic.avoid(&mut cwnd, &growth);
            assert!(cwnd >= before && cwnd <= before + before / 2 + 1000, "{before} to {cwnd}");
        }
        assert!(cwnd > 1_000_000);
    }

    /// The curve lies below a window that has grown otherwise: it does not take it down.
    #[test]
    fn a_curve_below_the_window_leaves_it() {
        let mut cubic = Cubic::default();
        cubic.reduced(20_000, 1000);
        let mut cwnd = 14_000;
        cubic.avoid(&mut cwnd, &growth(0, 1000, 1000, 10_000));
        cwnd = 50_000;
        cubic.avoid(&mut cwnd, &growth(10, 1000, 1000, 10_000));
        assert!((50_000..50_100).contains(&cwnd), "{cwnd}");
    }

    /// Section 4.3: where Reno would have more, as on a short path, CUBIC grows like it: 9/17 of a segment a round trip, also when
    /// the window is back.
    #[test]
    fn on_a_short_path_it_is_as_fast_as_reno() {
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.reduced(20_000, 1000);
        let mut rounds_back = 0;
        for round in 0..40 {
            if cwnd < 20_000 {
                rounds_back = round + 1;
            }
            let growth = growth(round, cwnd, 1000, 1000);
            cubic.avoid(&mut cwnd, &growth);
        }
        // 6,000 bytes at 529 a round trip.
        assert!((10..=13).contains(&rounds_back), "{rounds_back} round trips to the old window");
        let more = cwnd - 20_000;
        let rounds = 40 - rounds_back as u32;
        assert!((rounds * 490..=rounds * 570).contains(&more), "{more} bytes in {rounds} round trips");
    }

    /// Slow start was left because the round trip grew: the window does not stand still until the curve gets steep.
    #[test]
    fn before_the_first_loss_a_window_grows_by_a_twentieth_in_a_round_trip() {
        let mut cubic = Cubic::default();
        let mut cwnd = 100_000;
        for round in 0..10 {
            let growth = growth(round * 50, cwnd, 1000, 50_000);
            cubic.avoid(&mut cwnd, &growth);
        }
        // 1.05 to the tenth.
        assert!((162_000..=163_000).contains(&cwnd), "{cwnd}");
        let mut after = Cubic::default();
        cwnd = after.reduced(100_000, 1000);
        for round in 0..10 {
            let growth = growth(round * 50, cwnd, 1000, 50_000);
            after.avoid(&mut cwnd, &growth);
        }
        assert!((79_000..80_000).contains(&cwnd), "the curve is known now: {cwnd}");
    }

    /// Section 5.8: a pause of the program does not count as time in which the window could have grown.
    #[test]
    fn a_pause_moves_the_curve_along() {
        let run = |pause_ms: u64| {
            let mut cubic = Cubic::default();
            let mut cwnd = cubic.reduced(100_000, 1000);
            for round in 0..20 {
                let pause = if round >= 10 { pause_ms } else { 0 };
                let growth = growth(round * 50 + pause, cwnd, 1000, 50_000);
                cubic.avoid(&mut cwnd, &growth);
            }
            cwnd
        };
        let (with, without) = (run(60_000), run(0));
        assert!(with.abs_diff(without) < 3_000, "{with} after a minute's pause, {without} without");
    }

    /// After a reduction the window is back at W_max after K seconds, flat there, and steeper before and behind.
    #[test]
    fn the_window_follows_figure_1() {
        const MSS: u32 = 1000;
        const RTT_US: u32 = 100_000;
        let mut cubic = Cubic::default();
        let w_max = 1_000_000;
        let mut cwnd = cubic.reduced(w_max, MSS);
        assert_eq!(cwnd, 700_000);
        // 0.4 (t - K)^3 = -300 segments: K = 9.09 s.
        let mut at = Vec::new();
        for round in 0..180u64 {
            let growth = growth(round * 100, cwnd, MSS, RTT_US);
            cubic.avoid(&mut cwnd, &growth);
            at.push(cwnd);
        }
        let close = |x: u32, want: u32| x.abs_diff(want) < want / 50;
        assert!(close(at[90], w_max), "{}", at[90]);
        assert!(close(at[45], 964_000), "0.4 * (4.5 - 9.09)^3 = -38.6 segments: {}", at[45]);
        assert!(close(at[179], 1_000_000 + 286_000), "{}", at[179]);
    }
}
