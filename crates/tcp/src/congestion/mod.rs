//! Congestion control: how the window grows while nothing is lost, and how far it shrinks when something is. What is lost,
//! and the window while it is repaired, are [`super::recovery`]'s. Local connections have no path to congest and do not
//! come here.
//!
//! | to read | where |
//! |---|---|
//! | RFC 5681 slow start and congestion avoidance, with bytes counted (RFC 3465) | [`reno`] |
//! | CUBIC (RFC 9438), the default | [`cubic`] |
//! | DCTCP (RFC 8257) | [`dctcp`], [`marks`] |
//! | BBR (draft-ietf-ccwg-bbr), which steers by a model of the path instead of by losses | [`bbr`] |
//! | leaving slow start before it overshoots (RFC 9406) | [`hystart`] |
//! | how a window leaves that was not used (RFC 7661) | [`burst`] |

pub mod bbr;
pub mod burst;
pub mod cubic;
pub mod dctcp;
pub mod hystart;
pub mod marks;
pub mod models;
pub mod reno;
pub mod window;

use crate::ack_event::AckEvent;
use crate::config::AlgorithmName;
use crate::record::{Algorithm, Congestion, Particulars, ParticularsPool, PathState, Phase, Tcb};
use crate::scoreboard::Losses;
use crate::{Tcp, rate};
use bbr::{Bbr, SenderState, Steered};
use cubic::Cubic;
use hystart::HyStart;
use models::Models;
use toe_base::Instant;
use window::{CWND_MAX, Growth, initial_window};

const _: () = assert!(size_of::<Congestion>() <= 56 && (CWND_MAX as u64) << 5 < 1 << u32::BITS);
/// RFC 7661 section 4.4.3: a window that less than half of is used for so long is no longer believed.
const UNVALIDATED_MAX_US: u64 = 300_000_000;

impl Congestion {
    pub fn initial(mss: u16, algorithm: Algorithm) -> Congestion {
        Congestion { cwnd: initial_window(mss), ssthresh: u32::MAX, algorithm, ..Congestion::default() }
    }

    pub const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// `growth.acked` bytes left the network and the window was used: it grows.
    pub fn grow(&mut self, models: &mut Models, growth: &Growth) {
        if self.in_slow_start() {
            let hystart = match &mut self.algorithm {
                Algorithm::Reno(slot) => models.reno.one_mut(slot),
                Algorithm::Cubic(slot) => models.cubic.one_mut(slot).map(|cubic| &mut cubic.hystart),
                Algorithm::Dctcp(_) | Algorithm::Bbr(_) => None,
            };
            let bytes = match hystart.map(|h| h.on_ack(growth)) {
                None | Some(hystart::Pace::Full) => growth.acked,
                Some(hystart::Pace::Conservative) => growth.acked / hystart::CSS_GROWTH_DIVISOR,
                Some(hystart::Pace::Leave) => {
                    self.ssthresh = self.cwnd;
                    0
                }
            };
            self.cwnd = self.cwnd.saturating_add(bytes).min(self.ssthresh.max(self.cwnd));
        } else {
            match &mut self.algorithm {
                Algorithm::Reno(_) | Algorithm::Dctcp(_) => reno::avoid(&mut self.cwnd, growth),
                Algorithm::Cubic(slot) => {
                    if let Some(cubic) = models.cubic.one_mut(slot) {
                        cubic.avoid(&mut self.cwnd, growth);
                    }
                }
                Algorithm::Bbr(_) => {}
            }
        }
        self.cwnd = self.cwnd.min(CWND_MAX);
    }

    /// Something was lost, or the network marked it (`by_mark`): the window to go down to. `flight` is what was in the
    /// network then.
    pub fn reduced(&mut self, models: &mut Models, flight: u32, mss: u32, by_mark: bool) -> u32 {
        // RFC 7661 section 4.4.1: a window that was not used says nothing about the path. A first one needs no proof.
        let first = initial_window(u16::try_from(mss).unwrap_or(u16::MAX));
        let is_proven = self.usage.unvalidated_since.is_none();
        let used = flight.max(if is_proven { self.cwnd } else { self.cwnd.min(first) });
        let to = match &mut self.algorithm {
            Algorithm::Reno(slot) => {
                models.reno.one_mut(slot).into_iter().for_each(HyStart::done);
                // FlightSize, not the window (RFC 5681 section 3.1, equation 4).
                flight / 2
            }
            Algorithm::Cubic(slot) => {
                models.cubic.one_mut(slot).map_or(used / 2, |cubic| cubic.reduced(used, mss))
            }
            Algorithm::Dctcp(slot) => models.dctcp.one(slot).reduced(used, by_mark),
            // It has a window by its model, and none to go down to.
            Algorithm::Bbr(_) => return self.ssthresh,
        };
        to.max(2 * mss)
    }

    /// The time-out ran out: what the algorithm knew of the path is void.
    pub fn timed_out(&mut self, models: &mut Models) {
        if let Algorithm::Cubic(slot) = &self.algorithm {
            models.cubic.taken_mut(slot).into_iter().for_each(Cubic::timed_out);
        }
    }

    /// A recovery begins, after a loss or a time-out.
    pub fn recovery_begins(&mut self, models: &mut Models) {
        let is_open = matches!(self.phase, Phase::Open | Phase::Reduced);
        if let Algorithm::Bbr(slot) = &mut self.algorithm
            && let Some(bbr) = models.bbr.one_mut(slot)
        {
            bbr.recovery_begins(self.cwnd, !is_open);
        }
    }

    /// All is repaired.
    pub fn recovered(&mut self, models: &Models) {
        match &self.algorithm {
            Algorithm::Bbr(slot) => models.bbr.one(slot).recovery_ended(&mut self.cwnd),
            _ if self.phase == Phase::Recovery => self.cwnd = self.ssthresh,
            _ => {}
        }
    }
}

/// The last reduction was a mistake.
pub fn restore(tcb: &mut Tcb, path: &mut PathState, models: &mut Models) {
    let ack = bbr_ack(tcb, path, Instant::ZERO, &AckEvent::default());
    match &mut path.cc.algorithm {
        Algorithm::Cubic(slot) => models.cubic.taken_mut(slot).into_iter().for_each(Cubic::restore),
        Algorithm::Bbr(slot) => {
            if let Some(bbr) = models.bbr.one_mut(slot) {
                bbr.undo(&ack, &mut path.cc.cwnd);
            }
        }
        Algorithm::Reno(_) | Algorithm::Dctcp(_) => {}
    }
}

/// Another algorithm from now on (TCP_CONGESTION). The window stays, as Linux has it.
pub fn choose(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, name: AlgorithmName) {
    if path.cc.algorithm.name() != name {
        path.cc.algorithm.clear(&mut tcp.models);
        path.cc.algorithm = Algorithm::new(name);
        if let Some(Particulars { pacing, .. }) = tcp.particulars.taken_mut(&tcb.setup.particulars) {
            pacing.rate = u64::from(pacing.rate_max);
        }
    }
}

/// SO_MAX_PACING_RATE; 0: no limit.
pub fn limit_pacing(tcb: &mut Tcb, path: &PathState, pool: &mut ParticularsPool, bytes_per_s: u32) {
    let Some(Particulars { pacing, .. }) = pool.one_mut(&mut tcb.setup.particulars) else { return };
    pacing.rate_max = bytes_per_s;
    pacing.rate = match (&path.cc.algorithm, bytes_per_s) {
        (Algorithm::Bbr(_), 0) => pacing.rate,
        (Algorithm::Bbr(_), most) if pacing.rate > 0 => pacing.rate.min(u64::from(most)),
        (_, most) => u64::from(most),
    };
}

/// Data goes out where nothing was in the network.
pub fn restart(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) {
    if tcb.is_local || !tcb.state.is_synchronized() {
        return;
    }
    let app_limited = rate::is_app_limited(&path.rate);
    let (srtt_us, delivered) = (path.rtt.srtt_us, path.rate.delivered);
    steer(tcb, path, tcp, |bbr, steered| bbr.on_restart(now, srtt_us, delivered, app_limited, steered));
}

/// An ACK arrived: an algorithm with a model of the path sets window and pacing by it. Returns whether this is one.
pub fn follow_model(
    tcb: &mut Tcb,
    path: &mut PathState,
    tcp: &mut Tcp,
    now: Instant,
    event: &AckEvent,
) -> bool {
    let losses = tcb.sending.board.take_losses(&mut tcp.sent);
    let ack = bbr::Ack { losses, ..bbr_ack(tcb, path, now, event) };
    let Some(holds_back) = steer(tcb, path, tcp, |bbr, steered| bbr.on_ack(&ack, steered)) else {
        return false;
    };
    path.cc.cwnd = path.cc.cwnd.min(CWND_MAX);
    if holds_back {
        rate::note_app_limited(tcb, path);
    }
    true
}

fn steer<T>(
    tcb: &mut Tcb,
    path: &mut PathState,
    tcp: &mut Tcp,
    act: impl FnOnce(&mut Bbr, &mut Steered<'_>) -> T,
) -> Option<T> {
    let Algorithm::Bbr(slot) = &mut path.cc.algorithm else { return None };
    let bbr = tcp.models.bbr.one_mut(slot)?;
    let pacing = &mut tcp.particulars.one_mut(&mut tcb.setup.particulars)?.pacing;
    let mut steered = Steered { cwnd: &mut path.cc.cwnd, pacing: &mut pacing.rate };
    let result = act(bbr, &mut steered);
    if pacing.rate_max > 0 {
        pacing.rate = pacing.rate.min(u64::from(pacing.rate_max));
    }
    Some(result)
}

fn bbr_ack(tcb: &Tcb, path: &PathState, now: Instant, event: &AckEvent) -> bbr::Ack {
    let mss = u32::from(tcb.snd.mss);
    let sender = SenderState {
        mss,
        srtt_us: path.rtt.srtt_us,
        inflight: tcb.pipe(path),
        has_sack: tcb.has_sack(),
        cwnd_limited: path.cc.usage.pipe_ack() + 2 * mss > path.cc.cwnd,
        in_recovery: matches!(path.cc.phase, Phase::Recovery | Phase::Loss),
        salt: tcb.snd.una.raw(),
    };
    bbr::Ack {
        now,
        newly_acked: event.delivered,
        delivered: path.rate.delivered,
        sample: event.sample,
        losses: Losses::default(),
        // The phase has begun with this ACK: a round trip with marks counts once.
        marked: event.ece && path.cc.phase == Phase::Reduced && path.cc.recover == tcb.snd.nxt,
        rtt_us: event.rtt_us,
        sender,
    }
}

/// Starts a new round trip when the last one's data is acknowledged, and looks whether the window is used at all.
pub fn note_usage(tcb: &mut Tcb, path: &mut PathState, pool: &mut ParticularsPool, now: Instant) {
    let follows_model = path.cc.follows_model();
    let usage = &mut path.cc.usage;
    if tcb.snd.una.before(usage.round_end) {
        return;
    }
    usage.most_before = usage.most;
    usage.most = 0;
    usage.round_end = tcb.snd.nxt;
    if !follows_model {
        burst::ends(tcb, path, pool);
    }
    let usage = &mut path.cc.usage;
    if usage.pipe_ack() >= path.cc.cwnd / 2 || follows_model {
        usage.unvalidated_since = None;
        return;
    }
    let since = *usage.unvalidated_since.get_or_insert(now);
    if now.since_us(since) >= UNVALIDATED_MAX_US {
        let_go_of_half(tcb, path);
    }
}

/// A connection may send. Where nothing is out no ACK has looked whether the window was used.
pub fn wake(tcb: &mut Tcb, path: &mut PathState, pool: &mut ParticularsPool, now: Instant) {
    if tcb.snd.nxt != tcb.snd.una || path.cc.follows_model() {
        return;
    }
    let usage = &path.cc.usage;
    let unused_us = now.since_us(usage.unvalidated_since.unwrap_or(tcb.timers.heard));
    if unused_us >= UNVALIDATED_MAX_US {
        let_go_of_half(tcb, path);
        path.cc.usage.unvalidated_since = Some(now);
    }
    burst::begins(tcb, path, pool, now);
}

/// RFC 7661 section 4.4.3: half of the window was not used for too long.
fn let_go_of_half(tcb: &mut Tcb, path: &mut PathState) {
    let initial = initial_window(tcb.snd.mss);
    path.cc.ssthresh = path.cc.ssthresh.max(path.cc.cwnd / 4 * 3);
    path.cc.cwnd = (path.cc.cwnd / 2).max(initial.min(path.cc.cwnd));
    path.cc.usage.unvalidated_since = None;
}

/// Whether the window is what limits the sender: one that is not used does not grow (RFC 7661 section 4.4, RFC 9438
/// section 5.8).
pub fn is_limiting(tcb: &Tcb, path: &PathState) -> bool {
    let used = path.cc.usage.pipe_ack();
    if path.cc.in_slow_start() {
        // Half of it is not more than a window of half the size would have let go (Linux: tcp_is_cwnd_limited).
        used > path.cc.cwnd / 2
    } else {
        // Partial segments are held back, so a window can be full without being reached.
        used + 2 * u32::from(tcb.snd.mss) > path.cc.cwnd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcb(name: AlgorithmName) -> (Tcb, PathState) {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        tcb.snd.mss = 1000;
        path.cc = Congestion::initial(1000, Algorithm::new(name));
        (tcb, path)
    }

    /// RFC 6928 section 2.
    #[test]
    fn the_first_window_is_ten_segments_and_no_more_than_so_many_bytes() {
        assert_eq!([536, 1460, 4000, 8960].map(initial_window), [5_360, 14_600, 14_600, 17_920]);
    }

    #[test]
    fn a_limit_to_pacing_holds_for_a_model_too() {
        for name in [AlgorithmName::Cubic, AlgorithmName::Bbr] {
            let ((mut tcb, mut path), mut tcp) = (tcb(name), tcp());
            let is_model = path.cc.follows_model();
            limit_pacing(&mut tcb, &path, &mut tcp.particulars, 5_000);
            assert_eq!(*rate(&mut tcb, &mut tcp), 5_000, "{name:?}");
            *rate(&mut tcb, &mut tcp) = 9_000;
            limit_pacing(&mut tcb, &path, &mut tcp.particulars, 8_000);
            assert_eq!(*rate(&mut tcb, &mut tcp), 8_000, "{name:?}");
            restart_with_model(&mut tcb, &mut path, &mut tcp);
            let before = *rate(&mut tcb, &mut tcp);
            assert!(before <= 8_000, "{name:?}");
            limit_pacing(&mut tcb, &path, &mut tcp.particulars, 0);
            let after = if is_model { before } else { 0 };
            assert_eq!(*rate(&mut tcb, &mut tcp), after, "{name:?}: the model's own stays");
        }
    }

    fn tcp() -> Tcp {
        Tcp::new(1, [0; 16], crate::config::TcpConfig::default())
    }

    fn rate<'a>(tcb: &mut Tcb, tcp: &'a mut Tcp) -> &'a mut u64 {
        &mut tcp.particulars.one_mut(&mut tcb.setup.particulars).expect("a place").pacing.rate
    }

    fn restart_with_model(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp) {
        tcb.is_local = false;
        tcb.state = crate::state::TcpState::Established;
        restart(tcb, path, tcp, Instant::from_millis(1));
    }

    #[test]
    fn another_algorithm_begins_anew_and_the_same_goes_on() {
        let ((mut tcb, mut path), mut tcp) = (tcb(AlgorithmName::Bbr), tcp());
        restart_with_model(&mut tcb, &mut path, &mut tcp);
        assert_eq!(tcp.models.used(), 1);
        *rate(&mut tcb, &mut tcp) = 7_000;
        choose(&mut tcb, &mut path, &mut tcp, AlgorithmName::Bbr);
        assert_eq!(*rate(&mut tcb, &mut tcp), 7_000);
        choose(&mut tcb, &mut path, &mut tcp, AlgorithmName::Reno);
        assert_eq!((*rate(&mut tcb, &mut tcp), path.cc.algorithm.name()), (0, AlgorithmName::Reno));
        assert_eq!(tcp.models.used(), 0);
    }

    /// A mark counts once in a round trip: with the ACK that the phase begins with.
    #[test]
    fn a_model_hears_of_marks_once_a_round_trip() {
        let (tcb, mut path) = tcb(AlgorithmName::Bbr);
        let event = AckEvent { ece: true, ..AckEvent::default() };
        let marked = |path: &PathState| bbr_ack(&tcb, path, Instant::ZERO, &event).marked;
        assert!(!marked(&path));
        path.cc.phase = Phase::Reduced;
        assert!(marked(&path));
        path.cc.recover = tcb.snd.nxt.minus(1);
        assert!(!marked(&path));
    }

    /// RFC 7661 sections 4.3 and 4.4.1.
    #[test]
    fn a_window_that_half_of_is_used_is_a_validated_one_and_another_goes_down_by_what_was_used() {
        for (used, to) in [(50_000, 70_000), (40_000, 28_000)] {
            let (mut tcb, mut path) = tcb(AlgorithmName::Cubic);
            path.cc.cwnd = 100_000;
            path.cc.usage.sent(used);
            note_usage(&mut tcb, &mut path, &mut ParticularsPool::of_smallest(1), Instant::from_millis(1));
            assert_eq!(path.cc.usage.unvalidated_since.is_none(), used >= 50_000);
            assert_eq!(
                path.cc.reduced(&mut Models::new(1), used, 1000, false),
                to,
                "{used} bytes were in flight"
            );
        }
    }
}
