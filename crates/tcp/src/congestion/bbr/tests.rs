//! The model by itself, one ACK at a time: what a simulated path seldom does.

use super::model::INFINITE;
use super::units::Rate;
use super::*;
use crate::rate::RateSample;
use crate::scoreboard::{Excess, Losses};

const MSS: u32 = 1000;
const RTT_US: u32 = 40_000;
const BW: u64 = 1_000_000;

struct Sender {
    bbr: Bbr,
    now: Instant,
    delivered: u64,
    cwnd: u32,
    pacing: u64,
}

impl Sender {
    fn new() -> Sender {
        Sender {
            bbr: Bbr::default(),
            now: Instant::from_millis(1_000),
            delivered: 10_000,
            cwnd: 10_000,
            pacing: 0,
        }
    }

    /// One round later: all of the window arrived, at this rate.
    fn round(&mut self, bw: u64, change: impl FnOnce(&mut Ack)) {
        self.now = self.now.after_us(u64::from(RTT_US));
        let before = self.delivered;
        self.delivered += u64::from(self.cwnd);
        let sample = RateSample {
            bw,
            delivered: self.cwnd,
            tx_in_flight: self.cwnd,
            prior_delivered: before,
            ..RateSample::default()
        };
        let mut ack = Ack {
            now: self.now,
            newly_acked: self.cwnd,
            delivered: self.delivered,
            sample,
            rtt_us: Some(RTT_US),
            sender: SenderState {
                mss: MSS,
                srtt_us: RTT_US,
                inflight: self.cwnd,
                has_sack: true,
                cwnd_limited: true,
                ..SenderState::default()
            },
            ..Ack::default()
        };
        change(&mut ack);
        let mut steered = Steered { cwnd: &mut self.cwnd, pacing: &mut self.pacing };
        self.bbr.on_ack(&ack, &mut steered);
    }

    fn restart(&mut self, app_limited: bool) {
        let mut steered = Steered { cwnd: &mut self.cwnd, pacing: &mut self.pacing };
        self.bbr.on_restart(self.now, RTT_US, self.delivered, app_limited, &mut steered);
    }

    /// In Cruise, with a model.
    fn cruising() -> Sender {
        let mut sender = Sender::new();
        for _ in 0..200 {
            sender.round(BW, |ack| ack.sender.inflight = 10 * MSS);
            if sender.bbr.state == State::Cruise {
                return sender;
            }
        }
        panic!("never in Cruise: {:?}", sender.bbr);
    }

    fn until(&mut self, state: State) {
        for _ in 0..1000 {
            if self.bbr.state == state {
                return;
            }
            self.round(BW, |ack| ack.sender.inflight = 10 * MSS);
        }
        panic!("never in {state:?}: {:?}", self.bbr);
    }
}

#[test]
fn without_a_round_trip_it_begins_with_a_guess() {
    let mut sender = Sender::new();
    sender.round(0, |ack| (ack.rtt_us, ack.sender.srtt_us) = (None, 0));
    assert_eq!(sender.bbr.min_rtt.us, INFINITE);
    // The initial window in a millisecond.
    assert_eq!(sender.pacing, 10_000_000 * 277 / 100);
    assert!(sender.cwnd >= 10 * MSS, "{}", sender.cwnd);
}

#[test]
fn drain_ends_after_three_rounds_even_if_the_queue_stays() {
    let mut sender = Sender::new();
    for _ in 0..100 {
        sender.round(BW, |ack| ack.sender.inflight = 1 << 30);
        if sender.bbr.state == State::Drain {
            break;
        }
    }
    assert_eq!(sender.bbr.state, State::Drain);
    for _ in 0..4 {
        assert_eq!(sender.bbr.state, State::Drain);
        sender.round(BW, |ack| ack.sender.inflight = 1 << 30);
    }
    assert_eq!(sender.bbr.state, State::Down);
}

#[test]
fn after_a_pause_it_starts_at_the_rate_that_it_knows() {
    let mut sender = Sender::cruising();
    sender.pacing = 1;
    sender.restart(false);
    assert_eq!(sender.pacing, 1, "no pause, only an empty pipe");
    sender.restart(true);
    assert!((BW * 95 / 100..=BW).contains(&sender.pacing), "{}", sender.pacing);
    let mut fresh = Sender::new();
    fresh.restart(true);
    assert!(fresh.bbr.started && fresh.bbr.state == State::Startup);
    // Nothing is known: the program was first.
    fresh.pacing = 1;
    fresh.restart(true);
    assert_eq!((fresh.pacing, fresh.bbr.state), (1, State::Startup));
}

#[test]
fn a_pause_may_end_the_probe_for_the_round_trip() {
    let mut sender = Sender::cruising();
    sender.until(State::ProbeRtt);
    sender.restart(true);
    assert_eq!(sender.bbr.state, State::ProbeRtt, "not yet");
    sender.round(BW, |ack| ack.sender.inflight = 0);
    sender.now = sender.now.after_us(300_000);
    sender.restart(true);
    assert_eq!(sender.bbr.state, State::Cruise);
}

#[test]
fn a_pause_puts_off_the_probe_for_the_round_trip() {
    let mut sender = Sender::cruising();
    sender.now = sender.now.after_us(6_000_000);
    sender.restart(true);
    sender.round(BW, |ack| ack.rtt_us = Some(2 * RTT_US));
    assert_ne!(sender.bbr.state, State::ProbeRtt, "the pause was one");
}

#[test]
fn the_probe_for_the_round_trip_leads_back_to_startup_if_the_pipe_was_not_full() {
    let mut sender = Sender::new();
    let mut bw = BW;
    for _ in 0..150 {
        // Always a little more: the pipe is never full.
        bw = (bw * 13 / 10).min(1 << 40);
        sender.round(bw, |ack| {
            ack.sender.inflight = 0;
            ack.rtt_us = Some(RTT_US + 100);
            ack.sample.app_limited = true;
        });
        if sender.bbr.state == State::ProbeRtt {
            break;
        }
    }
    assert_eq!(sender.bbr.state, State::ProbeRtt);
    for _ in 0..20 {
        sender.round(bw, |ack| {
            ack.sender.inflight = 0;
            ack.sample.app_limited = true;
        });
    }
    assert_eq!(sender.bbr.state, State::Startup);
}

/// A probe for bandwidth ends with what says that it was too much.
fn probe_ended_by(what: impl Fn(&mut Ack)) -> (State, u32) {
    let mut sender = Sender::cruising();
    sender.until(State::Up);
    sender.round(BW, what);
    (sender.bbr.state, sender.bbr.bounds.inflight_long)
}

#[test]
fn a_probe_ends_with_a_mark_a_loss_or_too_many_losses() {
    let (state, bound) = probe_ended_by(|ack| ack.marked = true);
    assert!(state == State::Down && bound < INFINITE);
    let lost = Losses { bytes: MSS, stretches: 1, excess: None };
    let (state, bound) = probe_ended_by(|ack| (ack.losses, ack.sender.has_sack) = (lost, false));
    assert!(state == State::Down && bound < INFINITE, "without SACK one loss is all that is told");
    let (state, _) = probe_ended_by(|ack| ack.losses = lost);
    assert_eq!(state, State::Up, "one loss is not too much");
    let excess = |app_limited| Some(Excess { in_flight: 50_000, app_limited });
    let (state, bound) = probe_ended_by(|ack| {
        ack.sample.lost = ack.sample.tx_in_flight;
        ack.losses = Losses { excess: excess(false), ..lost };
    });
    assert!(state == State::Down && bound == 50_000, "{bound}");
    let (state, bound) = probe_ended_by(|ack| {
        ack.sample.lost = ack.sample.tx_in_flight;
        ack.losses = Losses { excess: excess(true), ..lost };
    });
    assert!(state == State::Down && bound == INFINITE, "the program held it back: that bounds nothing");
}

/// What is left of the rate after rounds in Cruise that delivered half of it.
fn rate_after(change: impl Fn(&mut Ack)) -> Rate {
    let mut sender = Sender::cruising();
    let lost = Losses { bytes: MSS, stretches: 1, excess: None };
    for _ in 0..4 {
        sender.round(BW / 2, |ack| {
            ack.losses = lost;
            change(ack);
        });
    }
    assert_eq!(sender.bbr.state, State::Cruise);
    sender.bbr.bounds.bw_short
}

#[test]
fn the_model_comes_down_for_much_loss_or_a_mark_and_not_for_little() {
    let part = |of: u32| move |ack: &mut Ack| ack.sample.lost = ack.sample.tx_in_flight / of;
    assert_eq!(rate_after(part(100)), Rate::INFINITE, "1 %");
    assert!(rate_after(part(20)) < Rate::from_bytes(BW * 3 / 4), "5 %");
    assert!(rate_after(|ack| (ack.marked, ack.sample.lost) = (true, 0)) < Rate::from_bytes(BW * 3 / 4));
    let without_sack = |ack: &mut Ack| (ack.sender.has_sack, ack.sample.lost) = (false, 1);
    assert!(rate_after(without_sack) < Rate::from_bytes(BW * 3 / 4));
}

#[test]
fn startup_ends_with_losses() {
    for (has_sack, events, in_recovery, ends) in
        [(true, 6, true, true), (true, 1, true, false), (false, 1, true, true), (true, 6, false, false)]
    {
        let mut sender = Sender::new();
        sender.round(BW, |_| {});
        for round in 2..5 {
            sender.round(BW * round, |ack| {
                ack.sender.has_sack = has_sack;
                ack.sender.in_recovery = in_recovery;
                ack.sample.lost = 10 * MSS;
                ack.losses = Losses { bytes: 10 * MSS, stretches: events, excess: None };
            });
        }
        assert_eq!(sender.bbr.full_bw.reached, ends, "SACK: {has_sack}, {events} losses");
    }
    let mut sender = Sender::new();
    for round in 1..5 {
        sender.round(BW * round, |ack| {
            ack.sender.in_recovery = true;
            ack.losses = Losses { bytes: 1, stretches: 9, excess: None };
        });
    }
    assert!(!sender.bbr.full_bw.reached, "many losses, and little of what was sent");
}

#[test]
fn a_loss_that_was_none_is_taken_back() {
    let ack = Ack { sender: SenderState { mss: MSS, ..SenderState::default() }, ..Ack::default() };
    // In Startup.
    let mut sender = Sender::new();
    sender.round(BW, |_| {});
    sender.bbr.recovery_begins(sender.cwnd, false);
    sender.bbr.state = State::Drain;
    sender.bbr.undo(&ack, &mut sender.cwnd);
    assert_eq!(sender.bbr.state, State::Startup);
    // In a probe for bandwidth.
    let mut sender = Sender::cruising();
    sender.until(State::Up);
    sender.bbr.recovery_begins(sender.cwnd, false);
    let (cwnd, bound) = (sender.cwnd, sender.bbr.bounds.inflight_long);
    sender.round(BW, |ack| ack.marked = true);
    sender.cwnd = 4 * MSS;
    sender.bbr.undo(&ack, &mut sender.cwnd);
    assert_eq!((sender.bbr.state, sender.cwnd, sender.bbr.bounds.inflight_long), (State::Up, cwnd, bound));
    // Where the state is the same, it stays; so it does in a probe for the round trip, and where nothing is to be gone on with.
    sender.bbr.recovery_begins(sender.cwnd, false);
    sender.bbr.undo(&ack, &mut sender.cwnd);
    assert_eq!(sender.bbr.state, State::Up);
    sender.bbr.state = State::ProbeRtt;
    sender.bbr.undo(&ack, &mut sender.cwnd);
    assert_eq!(sender.bbr.state, State::ProbeRtt);
    let mut sender = Sender::cruising();
    sender.bbr.recovery_begins(sender.cwnd, false);
    sender.bbr.state = State::Down;
    sender.bbr.undo(&ack, &mut sender.cwnd);
    assert_eq!(sender.bbr.state, State::Down);
}

#[test]
fn samples_that_tell_nothing_leave_the_bandwidth() {
    let mut sender = Sender::cruising();
    let known = sender.bbr.max_bw();
    sender.round(0, |_| {});
    sender.round(BW / 2, |ack| ack.sample.app_limited = true);
    assert_eq!(sender.bbr.max_bw(), known);
    // A cycle without a sample does not forget the last one's.
    sender.bbr.max_bw[1] = Rate::ZERO;
    sender.bbr.advance_max_bw();
    assert_eq!(sender.bbr.max_bw(), known.max(sender.bbr.max_bw[0]));
}
