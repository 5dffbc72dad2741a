//! The planner itself: stages with measured costs become a line of planes, and threads are allotted to them. Pure arithmetic; `mod.rs` says what
//! is measured and prints what comes of it.

use super::queueing;
use serde::Serialize;

/// The stages of a datagram that comes in and whose text goes out again, in its order: the paper's four planes.
pub const STAGES: [&str; 4] = ["receive IP", "receive UDP", "transmit UDP", "transmit IP"];
const COUNT: usize = STAGES.len();
/// Batches in a queue for each thread that takes from it (`toe-profile` measures with as many).
const QUEUE_BATCHES: u32 = 8;

/// What was measured for packets of one size, in ns a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Bytes of the IP packet.
    pub size: u32,
    pub stages_ns: [f64; COUNT],
    /// A datagram's part of handing a batch on, and of taking it over.
    pub put_ns: f64,
    pub take_ns: f64,
    /// How many times as long a stage takes while other cores are at work.
    pub slowdown: f64,
}

/// How many flows the traffic has: a flow's datagrams stay in order, so one thread of a plane has all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Flows {
    #[default]
    Many,
    One,
}

/// Stages that one thread does one after the other, on so many threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plane {
    pub stages: Vec<&'static str>,
    pub threads: u32,
    /// Of one datagram, on one thread.
    pub ns: f64,
}

impl Plane {
    /// Datagrams a second.
    pub fn rate(&self) -> f64 {
        f64::from(self.threads) * 1e9 / self.ns.max(f64::MIN_POSITIVE)
    }
}

/// Planes one behind the other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    pub planes: Vec<Plane>,
    /// Cores that are left over.
    pub spare: u32,
    /// Datagrams a second: the slowest plane's.
    pub rate: f64,
    /// The paper's formula of it: bytes x 8 x threads / (µs x 10^3).
    pub gbit: f64,
    /// Datagrams a second if batches took times as irregular as exponential ones: the bounded queues then run full and empty.
    pub rate_irregular: f64,
    /// µs that a datagram is in it at 80 % of the rate, arrivals at random.
    pub delay_us: f64,
}

/// Both kinds of layout for one size and one number of cores.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    pub size: u32,
    pub cores: u32,
    /// Each thread does all stages.
    pub completion: Line,
    /// The best of those with planes on threads of their own; one core has none.
    pub apart: Option<Line>,
}

impl Plan {
    pub fn new(costs: &Costs, cores: u32, flows: Flows) -> Plan {
        let apart = (1..1_u32 << (COUNT - 1)).filter_map(|cuts| line(costs, cuts, cores, flows));
        // Of equals the one with more left over.
        let better = |a: &Line, b: &Line| a.rate.total_cmp(&b.rate).then(a.spare.cmp(&b.spare));
        Plan {
            size: costs.size,
            cores,
            completion: completion(costs, cores, flows),
            apart: apart.max_by(better),
        }
    }

    /// Whether planes on threads of their own carry more.
    pub fn is_better_apart(&self) -> bool {
        self.apart.as_ref().is_some_and(|apart| apart.rate > self.completion.rate)
    }
}

fn completion(costs: &Costs, cores: u32, flows: Flows) -> Line {
    let threads = if flows == Flows::One { 1 } else { cores };
    let slower = if threads > 1 { costs.slowdown } else { 1.0 };
    let ns = costs.stages_ns.iter().sum::<f64>() * slower;
    Line::new(costs.size, vec![Plane { stages: STAGES.to_vec(), threads, ns }], cores)
}

/// The line that is cut behind each stage whose bit is set in `cuts`. None: there are fewer cores than planes.
fn line(costs: &Costs, cuts: u32, cores: u32, flows: Flows) -> Option<Line> {
    let mut planes = planes(costs, cuts);
    let spare = cores.checked_sub(planes.len() as u32)?;
    if flows == Flows::Many {
        allot(&mut planes, spare);
    }
    Some(Line::new(costs.size, planes, cores))
}

/// Its planes, a thread each.
fn planes(costs: &Costs, cuts: u32) -> Vec<Plane> {
    let (mut planes, mut stages, mut ns) = (Vec::new(), Vec::new(), 0.0);
    for (n, stage) in STAGES.into_iter().enumerate() {
        stages.push(stage);
        ns += costs.stages_ns[n] * costs.slowdown;
        let is_last = n + 1 == COUNT;
        if is_last || cuts & (1 << n) != 0 {
            let take_ns = if planes.is_empty() { 0.0 } else { costs.take_ns };
            let put_ns = if is_last { 0.0 } else { costs.put_ns };
            let ns = std::mem::take(&mut ns) + take_ns + put_ns;
            planes.push(Plane { stages: std::mem::take(&mut stages), threads: 1, ns });
        }
    }
    planes
}

/// The receive plane on one thread and the transmit plane on another.
pub fn two_planes(costs: &Costs) -> Line {
    Line::new(costs.size, planes(costs, 0b010), 2)
}

/// Gives each spare thread to the plane that is slowest then. What is more than the slowest plane can use is taken back: no plane has a
/// thread more than it takes to keep up, and what one is faster yet the bounded queue behind it holds back.
fn allot(planes: &mut [Plane], spare: u32) {
    let slowest =
        |planes: &[Plane]| (0..planes.len()).min_by(|a, b| planes[*a].rate().total_cmp(&planes[*b].rate()));
    for _ in 0..spare {
        if let Some(n) = slowest(planes) {
            planes[n].threads += 1;
        }
    }
    let Some(rate) = slowest(planes).map(|n| planes[n].rate()) else { return };
    for plane in planes {
        let needed = (rate * plane.ns / 1e9 - 1e-9).ceil().max(1.0);
        plane.threads = plane.threads.min(needed as u32);
    }
}

impl Line {
    fn new(size: u32, planes: Vec<Plane>, cores: u32) -> Line {
        let threads: u32 = planes.iter().map(|plane| plane.threads).sum();
        let rate = planes.iter().map(Plane::rate).fold(f64::INFINITY, f64::min);
        let rate_irregular = planes.iter().skip(1).fold(planes[0].rate(), |rate, plane| {
            queueing::behind_each_other(rate, plane.rate(), (QUEUE_BATCHES + 1) * plane.threads)
        });
        let delay_us = planes.iter().map(|plane| queueing::delay_ns(plane, 0.8 * rate)).sum::<f64>() / 1e3;
        let gbit = f64::from(size) * 8.0 * rate / 1e9;
        Line { planes, spare: cores.saturating_sub(threads), rate, gbit, rate_irregular, delay_us }
    }

    /// "receive IP 1, receive UDP 3, transmit 4"
    pub fn allotment(&self) -> String {
        let named = |plane: &Plane| format!("{} {}", name(&plane.stages), plane.threads);
        self.planes.iter().map(named).collect::<Vec<_>>().join(", ")
    }
}

fn name(stages: &[&str]) -> String {
    match stages {
        ["receive IP", "receive UDP", "transmit UDP", "transmit IP"] => "all".to_owned(),
        ["receive IP", "receive UDP"] => "receive".to_owned(),
        ["transmit UDP", "transmit IP"] => "transmit".to_owned(),
        ["receive IP", "receive UDP", rest] => format!("receive+{rest}"),
        [first, "transmit UDP", "transmit IP"] => format!("{first}+transmit"),
        _ => stages.join("+"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's costs of 64 bytes in ns, with no cost of handing over.
    const PAPER: Costs = Costs {
        size: 64,
        stages_ns: [450.0, 1530.0, 1980.0, 810.0],
        put_ns: 0.0,
        take_ns: 0.0,
        slowdown: 1.0,
    };

    #[test]
    fn the_rate_is_the_papers_formula() {
        // Its table 2: 64 bytes, 4 threads of UDP.
        let rate = |ns, threads| {
            let line = Line::new(64, vec![Plane { stages: vec!["receive UDP"], threads, ns }], threads);
            line.gbit
        };
        assert!((rate(1530.0, 4) - 1.34).abs() < 0.005 && (rate(1980.0, 4) - 1.03).abs() < 0.005);
        let one = Plan::new(&PAPER, 1, Flows::Many);
        assert!((one.completion.rate - 1e9 / 4770.0).abs() < 1.0 && one.apart.is_none());
    }

    #[test]
    fn no_plane_has_a_thread_more_than_it_takes_to_keep_up() {
        for cores in 2..=64 {
            let plan = Plan::new(&PAPER, cores, Flows::Many);
            let apart = plan.apart.expect("two cores do");
            let threads: u32 = apart.planes.iter().map(|plane| plane.threads).sum();
            assert_eq!(threads + apart.spare, cores);
            for plane in &apart.planes {
                assert!(plane.rate() >= apart.rate);
                let with_one_less = plane.rate() * f64::from(plane.threads - 1) / f64::from(plane.threads);
                assert!(with_one_less < apart.rate, "{cores} cores: {plane:?} outruns {}", apart.rate);
            }
        }
    }

    #[test]
    fn no_allotment_of_the_same_planes_carries_more() {
        let ns = [460.0, 1990.0, 1620.0];
        let mut planes: Vec<_> =
            ns.iter().map(|ns| Plane { stages: vec!["receive IP"], threads: 1, ns: *ns }).collect();
        allot(&mut planes, 13);
        let best = planes.iter().map(Plane::rate).fold(f64::INFINITY, f64::min);
        for first in 1..=14_u32 {
            for second in 1..=15 - first {
                let threads = [first, second, 16 - first - second];
                let rate = |n: usize| f64::from(threads[n]) * 1e9 / ns[n];
                assert!(rate(0).min(rate(1)).min(rate(2)) <= best + 1e-6, "{threads:?}");
            }
        }
    }

    #[test]
    fn one_flow_is_faster_in_planes_and_many_are_not() {
        let costs = Costs { put_ns: 20.0, take_ns: 30.0, ..PAPER };
        for cores in [2, 4, 64] {
            assert!(Plan::new(&costs, cores, Flows::One).is_better_apart(), "{cores}");
            assert!(!Plan::new(&costs, cores, Flows::Many).is_better_apart(), "{cores}");
        }
        let one = Plan::new(&costs, 64, Flows::One);
        // A fourth plane would not make the slowest of three faster.
        assert_eq!((one.completion.spare, one.apart.map(|line| line.planes.len())), (63, Some(3)));
    }

    #[test]
    fn cores_that_slow_each_other_down_are_counted() {
        let costs = Costs { slowdown: 1.25, ..PAPER };
        let rate = |cores| Plan::new(&costs, cores, Flows::Many).completion.rate;
        assert!((rate(2) / rate(1) - 1.6).abs() < 1e-9);
    }
}
