//! An engine does all that it can do at this moment: local segments, frames, completions. What has no room is tried
//! again a little later, as the daemon does.

use crate::checkers::sequence::Sender;
use crate::checkers::{Checker, memory, paths, timers};
use crate::frame::TcpFrame;
use crate::node::PORT;
use crate::sabotage::Sabotage;
use crate::tally::Tally;
use crate::trace::About;
use crate::world::{Seen, What, World};
use toe_engine::{ControlEvent, Counter};
use toe_wire::link::TxOffload;

/// Rounds of polling after which something never comes to rest.
const ROUNDS_MAX: u32 = 20_000;
/// The larger checks are made once in so many times.
const AUDIT_ONE_IN: u32 = 32;

impl World {
    pub fn settle(&mut self, at: usize) {
        self.nodes[at].touched = false;
        self.take_entries(at);
        for round in 0.. {
            if round == ROUNDS_MAX {
                self.verdict.fail(Checker::Timers, format!("engine {at} never comes to rest"));
                return;
            }
            if !self.poll_once(at) {
                break;
            }
            if !self.verdict.is_ok() {
                return;
            }
        }
        self.serve_requests(at);
        self.wake_sessions(at);
        self.forget_dead_sessions(at);
        self.look(at);
    }

    /// One round. Whether there may be more to do now.
    fn poll_once(&mut self, at: usize) -> bool {
        let budget = 1 + self.drivers.below(64) as usize;
        let room = self.swarm.driver.port_room as usize;
        let node = &mut self.nodes[at];
        let clock = node.clock(self.now_us);
        if let Some((session, range)) = node.memory.next_given_back(self.healed) {
            let len = (range.end - range.start) as u32;
            let event = ControlEvent::GivenBack { session, offset: range.start, len, gone: true };
            node.engine.handle_control(clock, event, &mut node.memory);
        }
        let trims = self.sabotage != Some(Sabotage::ForgetTrims);
        let is_trimmed = trims && node.engine.poll_trim(clock, &mut node.memory);
        self.tallies.add_many(Tally::Trimmed, u64::from(is_trimmed));
        let mut moved = is_trimmed && node.sees_to_trims;
        moved |= node.engine.poll_local(clock, &mut node.memory, budget) > 0;
        self.serve_requests(at);
        let node = &mut self.nodes[at];
        node.check_local_copies();
        node.outbox.room = if self.healed { usize::MAX } else { room };
        node.outbox.lend(self.network.buffer());
        let refused = node.outbox.refused;
        let sent = node.engine.poll_transmit(clock, PORT, &mut node.outbox, &mut node.memory, budget);
        node.memory.check_sent(&mut node.engine, &node.outbox.sent);
        moved |= sent > 0;
        let was_refused = node.outbox.refused - refused;
        self.serve_requests(at);
        let node = &mut self.nodes[at];
        self.tallies.add_many(Tally::PortFull, was_refused);
        moved |= node.memory.hear(&mut node.engine) > 0;
        if node.next_deadline_us() <= self.now_us && self.sabotage != Some(Sabotage::ForgetTimeouts) {
            node.engine.handle_timeout(clock, &mut node.memory);
            moved |= node.engine.view().has_transmit(PORT) || node.engine.view().has_local();
        }
        let sent: Vec<_> = std::mem::take(&mut node.outbox.sent);
        for (frame, offload) in sent {
            self.leave(at, frame, offload);
        }
        if was_refused > 0 {
            self.retry_soon(at);
            return false;
        }
        moved
    }

    /// A frame leaves an engine.
    fn leave(&mut self, at: usize, mut frame: Vec<u8>, mut offload: TxOffload) {
        if let Some(sabotage) = self.sabotage {
            spoil(sabotage, &mut frame, &mut offload);
        }
        let now_us = self.now_us;
        self.trace.event(now_us, About::node(at), "leaves", format_args!("{}", Seen(&frame)));
        self.note_reset(&frame);
        let node = &self.nodes[at];
        let has_lacked_memory = node.engine.view().counter(Counter::DropNoMemory) > 0;
        let sender = Sender { link: &node.spec, has_lacked_memory };
        let found = self.sequences.sent(&frame, offload, sender, &self.streams);
        self.verdict.check(Checker::Sequence, found);
        // The answer to a SYN of ours waits for its neighbour, and by then its listener may be gone.
        let opens = |tcp: &TcpFrame| tcp.header.flags.syn() && tcp.header.ack.is_none();
        if let Some(tcp) = TcpFrame::parse(&frame).filter(opens) {
            self.look_at_steering(at, tcp.way);
        }
        if let Some(tcp) = TcpFrame::parse(&frame).filter(|_| self.sequences.judges) {
            self.verdict.check(Checker::Storms, self.storms.sent(&tcp, now_us));
        }
        self.launch(at, frame, offload);
    }

    fn note_reset(&mut self, frame: &[u8]) {
        let Some(tcp) = TcpFrame::parse(frame).filter(|tcp| tcp.header.flags.rst()) else { return };
        let streams = [tcp.way, tcp.way.back()].map(|way| self.sequences.stream(way));
        for id in streams.into_iter().flatten() {
            self.conns.list[id.conn as usize].was_reset = true;
        }
    }

    pub fn retry_soon(&mut self, at: usize) {
        let when_us = self.now_us + 1 + u64::from(self.drivers.below(100));
        if self.nodes[at].retry_at_us <= self.now_us || self.nodes[at].retry_at_us == u64::MAX {
            self.nodes[at].retry_at_us = when_us;
            self.schedule(when_us, What::Retry { node: at });
        }
    }

    /// Programs that were told something notice it, at once or a little later.
    fn wake_sessions(&mut self, at: usize) {
        let mut woken = self.nodes[at].memory.take_woken();
        while woken != 0 {
            let id = woken.trailing_zeros() as usize;
            woken &= woken - 1;
            let Some(session) = self.nodes[at].session_by_id(id) else { continue };
            if std::mem::replace(&mut self.nodes[at].sessions[session].wake_scheduled, true) {
                continue;
            }
            let late = if self.healed { 0 } else { self.swarm.wake_us };
            let when_us = self.now_us + u64::from(self.drivers.below(late + 1));
            self.schedule(when_us, What::Serve { node: at, session });
        }
        let refused = std::mem::take(&mut self.nodes[at].memory.refused);
        self.tallies.add_many(Tally::RingFull, refused);
        if self.nodes[at].engine.view().has_blocked_completions() {
            self.retry_soon(at);
        }
    }

    fn forget_dead_sessions(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        for session in node.sessions.iter_mut().filter(|s| !s.alive && !s.forgotten) {
            session.forgotten = node.engine.forget_session(session.id);
        }
    }

    /// The checks of every moment, and now and then the larger ones.
    fn look(&mut self, at: usize) {
        let node = &self.nodes[at];
        let clock = node.clock(self.now_us);
        let is_quiet = !node.engine.view().has_transmit(PORT) && !node.engine.view().has_local();
        self.verdict.check(Checker::Timers, timers::nothing_is_due(&node.engine, clock));
        self.check_channels(at);
        self.pass_some_direct(at);
        let node = &self.nodes[at];
        if is_quiet && self.drivers.one_in(AUDIT_ONE_IN) {
            self.verdict.check(Checker::Timers, timers::no_silent_stall(&node.engine));
            self.verdict.check(Checker::Memory, memory::counts_agree(node));
            self.verdict.check(Checker::Paths, paths::are_sane(&node.engine));
            let found = self.nodes[at].check_reports(clock);
            self.verdict.check(Checker::Reports, found);
            self.check_steered_twins(at);
        }
    }
}

/// Makes a leaving frame wrong.
fn spoil(sabotage: Sabotage, frame: &mut [u8], offload: &mut TxOffload) {
    let Some(tcp) = TcpFrame::parse(frame) else { return };
    if tcp.is_empty() {
        return;
    }
    let mut header = tcp.header;
    match sabotage {
        Sabotage::FlipAcknowledgement => header.ack = header.ack.map(|ack| ack.plus(100)),
        Sabotage::AcknowledgeLess => header.ack = header.ack.map(|ack| ack.minus(1)),
        Sabotage::ShiftSequence => header.seq = header.seq.minus(1),
        Sabotage::WrongChecksum => {
            frame[tcp.tcp_at + 16] ^= 1;
            return;
        }
        _ => return,
    }
    header.emit(&mut frame[tcp.tcp_at..]);
    tcp.store_checksum(frame);
    offload.checksum = None;
}
