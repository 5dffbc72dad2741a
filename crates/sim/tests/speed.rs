//! What a link gives, streams get: in virtual time, so that a busy machine changes nothing.

use toe_sim::scenes::{Shared, streams_share_a_link};
use toe_sim::swarm::{Bottleneck, LinkFaults};

const MBIT_PER_S: u32 = 100;

fn link(loss_ppm: u32) -> LinkFaults {
    let bottleneck = Bottleneck { mbit_per_s: MBIT_PER_S, queue_us: 20_000 };
    LinkFaults { loss_ppm, delay_us: 5_000, bottleneck: Some(bottleneck), ..LinkFaults::default() }
}

/// How many times as long a stream took as its bytes alone take on the link.
#[track_caller]
fn slowness(congestion: &'static str, loss_ppm: u32, bytes: u64) -> f64 {
    let scene = Shared { link: link(loss_ppm), congestion, bytes, streams: 1 };
    let (took_us, _) = streams_share_a_link(&scene);
    let alone_us = bytes * 8 / u64::from(MBIT_PER_S);
    took_us as f64 / alone_us as f64
}

#[test]
fn a_hundred_megabytes_take_as_long_as_their_link_needs() {
    for congestion in ["cubic", "reno", "bbr"] {
        let times = slowness(congestion, 0, 100 << 20);
        assert!(times < 1.15, "{congestion}: {times:.2} times as long");
    }
}

#[test]
fn a_little_loss_costs_little() {
    for congestion in ["cubic", "reno", "bbr"] {
        let times = slowness(congestion, 1_000, 20 << 20);
        assert!(times < 1.3, "{congestion}: {times:.2} times as long");
    }
}

#[test]
fn streams_that_share_a_link_get_like_parts() {
    for congestion in ["cubic", "reno", "bbr"] {
        let scene = Shared { link: link(0), congestion, bytes: 30 << 20, streams: 4 };
        let (_, came) = streams_share_a_link(&scene);
        let (least, most) = (came.iter().min().expect("four"), came.iter().max().expect("four"));
        assert!(least * 3 > *most, "{congestion}: {came:?}");
    }
}
