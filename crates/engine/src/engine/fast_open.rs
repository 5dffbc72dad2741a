//! Fast Open (RFC 7413): bytes of the program in a SYN that goes out, and bytes for the program in one that comes in.
//! Called by whoever opens a connection ([`super::host`], [`super::syn`]), and with what the peer answers.

use super::Edit;
use crate::control::fast_open as cookies;
use crate::control::fast_open::{Check, Heard, Known};
use crate::control::listen::Listeners;
use crate::control::listener_idx::ListenerIdx;
use crate::counter::Counter;
use crate::parts::{Records, TcpPlanes};
use crate::store::FlowStore;
use crate::work::{Path, RxWork};
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant};
use toe_tcp::fast_open;
use toe_tcp::memory::HostMemory;
use toe_tcp::record::SynText;
use toe_tcp::segment::Segment;
use toe_tcp::state::TcpState;
use toe_wire::tcp::FastOpenCookie;

/// How a SYN with the option, or without, is taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// The program may have the connection at once.
    pub early: bool,
    /// The peer gets this cookie.
    pub gives: Option<FastOpenCookie>,
}

impl Records<'_> {
    // ---- connecting ----

    /// A connection is about to be made, whose program has bytes for its SYN or will soon. Between two local ends a SYN
    /// takes no time.
    pub(super) fn open_fast(&mut self, now: Instant, idx: Edit<'_>) {
        let flow = self.flows.get_mut(idx);
        if flow.conn.path == Path::Local || !self.tcp.config.fast_open.client() {
            return;
        }
        let openings = &mut self.tcp.openings;
        match self.peers.servers.known(&flow.conn.key, now) {
            Known::Cookie(cookie, mss) => fast_open::wait_for_bytes(&mut flow.tcb, openings, cookie, mss),
            Known::Nothing => fast_open::ask(&mut flow.tcb, openings),
            Known::Blocked => {}
        }
    }

    /// The SYN-ACK to a SYN of ours.
    pub(super) fn fast_open_answered(&mut self, now: Instant, idx: Edit<'_>, syn_ack: &Segment) {
        let flow = self.flows.get_mut(idx);
        let (key, taken) = (flow.conn.key, flow.tcb.handshake.fast_open.syn_text == SynText::Taken);
        let state = self.tcp.openings.one(&flow.tcb.handshake.fast_open.opening);
        flow.tcb.status.traffic.acked +=
            u64::from(flow.tcb.snd.una.distance_from(flow.tcb.handshake.iss.plus(1)));
        flow.tcb.status.traffic.received =
            u64::from(flow.tcb.data_nxt().distance_from(flow.tcb.handshake.irs.plus(1)));
        if state.option.is_none() {
            // What was not asked for counts for nothing.
            return;
        }
        if state.sent == 0 {
            self.tcp.openings.vacate(&mut flow.tcb.handshake.fast_open.opening);
        } else {
            let counter = if taken { Counter::FastOpenSent } else { Counter::FastOpenRefused };
            self.counters.add(counter);
        }
        let heard = Heard {
            cookie: syn_ack.fast_open.filter(|cookie| !cookie.is_request()),
            mss: syn_ack.mss,
            refused: state.sent > 0 && !taken,
            was_lost: state.was_lost && !taken,
        };
        self.peers.servers.heard(&key, &heard, now);
    }

    /// Time passed without an answer.
    pub(super) fn fast_open_timeout(&mut self, now: Instant, idx: FlowIdx) {
        let flow = self.flows.get(idx);
        let key = flow.conn.key;
        let is_open = flow.tcb.state.is_synchronized();
        if fast_open::is_unanswered(&flow.tcb, &mut self.tcp.openings) {
            self.counters.add(Counter::FastOpenLost);
            self.peers.servers.lost(&key, now);
            if is_open {
                self.peers.servers.swallowed(now);
            }
        }
    }

    /// A connection has ended.
    pub(super) fn fast_open_ended(&mut self, idx: Edit<'_>, errno: Errno) {
        let flow = self.flows.get(*idx);
        let (key, heard) = (flow.conn.key, flow.tcb.timers.heard);
        // By what an ICMP error says: of any other end the state has told already.
        let is_icmp = flow.tcb.state == TcpState::SynSent && !errno.is_ok();
        if is_icmp && self.tcp.openings.one(&flow.tcb.handshake.fast_open.opening).option.is_some() {
            self.peers.servers.lost(&key, heard);
        }
        let was_reset = matches!(errno, Errno::ECONNRESET | Errno::ECONNREFUSED);
        self.listeners.leave_fast_open_queue(self.flows, idx, was_reset.then_some(heard));
    }
}

impl<H: HostMemory> TcpPlanes<'_, H> {
    // ---- listening ----

    /// What a SYN for a listener gets (sections 4.2.1 and 4.2.2).
    pub(super) fn take_fast_open(&mut self, idx: ListenerIdx, work: &RxWork<'_>) -> Taken {
        let Some(offered) = work.rx.segment.fast_open else { return Taken::default() };
        if !self.records.tcp.config.fast_open.server() {
            return Taken::default();
        }
        let Some(listener) = self.records.listeners.get_mut(idx) else { return Taken::default() };
        if !listener.fast_open.has_room(self.now) {
            if listener.fast_open.limit > 0 {
                self.records.counters.add(Counter::FastOpenQueueFull);
            }
            return Taken::default();
        }
        // It may be the copy of one that was answered with a SYN cookie, and then the ACK of that is on its way, perhaps with the same
        // bytes: the handshake tells.
        let is_copy_perhaps = self.now < listener.queue.cookies_until;
        let secret = &self.secret;
        let gives = Some(cookies::make(secret, &work.key, self.now));
        match cookies::check(secret, &work.key, &offered, self.now) {
            Check::Good | Check::Old if is_copy_perhaps => Taken { early: false, gives },
            Check::Good => Taken { early: true, gives: None },
            Check::Old => Taken { early: true, gives },
            Check::Bad => {
                let counter =
                    if offered.is_request() { Counter::FastOpenAsked } else { Counter::FastOpenBadCookie };
                self.records.counters.add(counter);
                Taken { early: false, gives }
            }
        }
    }
}

impl Listeners {
    /// The listener's place is another's, or will be: the connection's end was a reset at `reset_at`.
    pub(super) fn leave_fast_open_queue(
        &mut self,
        flows: &mut FlowStore,
        idx: Edit<'_>,
        reset_at: Option<Instant>,
    ) {
        let listener = flows.change_aside(idx, |aside| aside.early_at.take());
        if let Some(listener) = listener.and_then(|idx| self.get_mut(idx)) {
            listener.fast_open.left(reset_at);
        }
    }
}
