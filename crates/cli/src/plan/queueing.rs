//! Estimates from the theory of queues: what irregular times cost a line with bounded queues, and how long a datagram is in it.

use super::line::Plane;

/// Rate of two servers one behind the other with room for `room` customers between them and in the second one, both with exponential times:
/// the second works as long as the queue, a birth and death process of `room` + 1 states (M/M/1/K), is not empty.
pub fn behind_each_other(first: f64, second: f64, room: u32) -> f64 {
    let ratio = first / second.max(f64::MIN_POSITIVE);
    let states = room + 1;
    let empty = if (ratio - 1.0).abs() < 1e-9 {
        1.0 / f64::from(states)
    } else {
        (1.0 - ratio) / (1.0 - ratio.powi(states.cast_signed()))
    };
    second * (1.0 - empty)
}

/// ns that a datagram spends at one of a plane's threads while `rate` datagrams a second come to them at random, each taking as long as
/// the other (M/D/1): its own time, and that of those before it.
pub fn delay_ns(plane: &Plane, rate: f64) -> f64 {
    let load = (rate / plane.rate()).min(0.999_999);
    plane.ns * (1.0 + load / (2.0 * (1.0 - load)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_cost_least_where_they_are_long_or_one_end_is_far_faster() {
        // Room for one: the second works when the first has just been done, half of the time.
        assert!((behind_each_other(1.0, 1.0, 1) - 0.5).abs() < 1e-9);
        assert!((behind_each_other(1.0, 1.0, 9) - 0.9).abs() < 1e-9);
        assert!(behind_each_other(1.0, 1.0, 99) > 0.98);
        assert!((behind_each_other(100.0, 1.0, 3) - 1.0).abs() < 1e-5);
        assert!((behind_each_other(1.0, 100.0, 3) - 1.0).abs() < 1e-5);
    }

    #[test]
    fn a_busy_thread_makes_wait() {
        let plane = Plane { stages: vec!["receive UDP"], threads: 2, ns: 100.0 };
        assert!((delay_ns(&plane, 0.0) - 100.0).abs() < 1e-9);
        // At half of its rate a datagram waits for half a time of another on average.
        assert!((delay_ns(&plane, 1e7) - 150.0).abs() < 1e-9);
        assert!(delay_ns(&plane, 1.98e7) > 5000.0);
    }
}
