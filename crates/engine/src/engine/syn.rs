//! SYNs for listeners, and how little a flood of them may cost (RFC 4987).
//!
//! A SYN takes a record as long as its listener has room for connections that are not open yet, and the engine, too. Beyond
//! that it is answered with a cookie ([`crate::control::cookie`]) and forgotten; the ACK that brings the cookie back
//! makes the record. Where the program does not accept, SYNs are dropped, and ACKs that would complete a handshake too, as
//! Linux does: the peer sends again.

use super::Edit;
use crate::control::cookie;
use crate::control::cookie::Offer;
use crate::control::listener_idx::ListenerIdx;
use crate::counter::Counter;
use crate::flow::isn::{initial_sequence_number, timestamp_offset};
use crate::flow::record::Flow;
use crate::flow::tenancy::TenancyEvent;
use crate::hostif::users::Resource;
use crate::parts::{Records, TcpPlanes};
use crate::work::{Lone, Path, RxWork};
use toe_base::limits::RECEIVE_WINDOW_MAX;
use toe_base::window::{UnscaledWindow, WindowScale, WindowSize};
use toe_base::{FlowIdx, Instant, SeqNum};
use toe_tcp::config::SynCookies;
use toe_tcp::memory::HostMemory;
use toe_tcp::open::OpenParams;
use toe_tcp::record::{Deferral, Opening, SynText};
use toe_tcp::segment::{RxSegment, Segment};
use toe_tcp::state::TcpState;
use toe_tcp::{ecn, fast_open, open, output};
use toe_wire::tcp::{SackBlocks, TcpFlags};

impl<H: HostMemory> TcpPlanes<'_, H> {
    /// A SYN for a listener, or for nobody (RFC 9293 section 3.10.7.2).
    /// `beyond`: the 4-tuple had a connection before, whose numbers ended there (RFC 9293 section 3.4.1, RFC 1122 section
    /// 4.2.2.13).
    pub(super) fn syn_arrives(&mut self, work: &RxWork<'_>, beyond: Option<SeqNum>) {
        let Some(listener_idx) = self.records.listeners.find(work.key.scope, work.key.local) else {
            self.records.nobodys(self.now, work);
            return;
        };
        let Some(listener) = self.records.listeners.get(listener_idx) else { return };
        if listener.queue.is_full() {
            self.records.counters.add(Counter::DropAcceptQueueFull);
            return;
        }
        let user = listener.user;
        if self.records.hostif.sessions.users().may_take(user, Resource::Flows, 1).is_err() {
            self.records.hostif.refuse_syn(self.records.counters, user);
            return;
        }
        let has_room = self.records.listeners.has_room_for_half_open(self.records.flows, listener);
        let cookies = self.records.tcp.config.syn_cookies;
        if !has_room && cookies == SynCookies::Off {
            self.records.counters.add(Counter::DropBacklogFull);
            return;
        }
        if !has_room || cookies == SynCookies::Always && work.path != Path::Local {
            self.send_cookie(listener_idx, work);
            return;
        }
        let iss = initial_sequence_number(&self.secret, &work.key, self.now);
        let iss = beyond.map_or(iss, |beyond| iss.later(beyond));
        let params = self.passive_params(work, iss);
        let mut flow = Flow::new(work.key, work.path, open::passive(&params, &work.rx.segment));
        flow.conn.tenancy.apply(TenancyEvent::CameIn(listener_idx));
        flow.conn.sharing = listener.holders.sharing();
        let deferral = listener.defers_until(self.now).map(|until| Deferral { until, is_heard: false });
        let fast = self.take_fast_open(listener_idx, work);
        // Where there is no planes its peer sends it again.
        let Ok(idx) = self.records.insert_flow(user, flow) else { return };
        self.edit(idx, |planes, idx| {
            let opening = Opening { option: fast.gives, deferral, ..Opening::default() };
            fast_open::open_so(
                &mut planes.records.flows.get_mut(idx).tcb,
                &mut planes.records.tcp.openings,
                opening,
            );
            planes.records.counters.add(Counter::PassiveOpens);
            if fast.early {
                planes.came_early(idx, listener_idx, work);
            } else {
                planes.records.listeners.count_half_open(listener_idx);
            }
        });
    }

    fn passive_params(&self, work: &RxWork<'_>, iss: SeqNum) -> OpenParams {
        OpenParams {
            is_local: work.path == Path::Local,
            is_v4: work.key.is_v4(),
            iss,
            timestamp_offset: timestamp_offset(&self.secret, &work.key),
            mss: self.records.ip.path_mss(work.path, work.key.remote.addr),
            tcp: self.records.tcp.config,
            now: self.now,
        }
    }

    /// Answers a SYN and forgets it.
    fn send_cookie(&mut self, listener: ListenerIdx, work: &RxWork<'_>) {
        // Programs of this engine flood nobody but each other, and send again.
        let Path::Port { port, neighbour } = work.path else {
            self.records.counters.add(Counter::DropBacklogFull);
            return;
        };
        let syn = &work.rx.segment;
        let mss = self.records.ip.path_mss(work.path, work.key.remote.addr);
        let theirs = open::mss_offered(work.key.is_v4(), syn).min(mss);
        let iss = cookie::make(&self.secret, &work.key, syn.seq, theirs, self.now);
        let timestamps = syn.timestamps.map(|(value, _)| {
            let ecn = ecn::answers(self.records.tcp.config.ecn, syn);
            let offer = Offer { window_scale: syn.window_scale, sack: syn.sack_permitted, ecn };
            // The clock that the connection will have.
            let offset = timestamp_offset(&self.secret, &work.key);
            (offer.into_timestamp(self.now.tcp_timestamp_ms().wrapping_add(offset)), value)
        });
        // Only what the ACK will bring back can be agreed on.
        let is_retained = timestamps.is_some();
        let answer = Segment {
            seq: iss,
            ack: Some(syn.seq.plus(1)),
            flags: TcpFlags::SYN
                .with_if(TcpFlags::ECE, is_retained && ecn::answers(self.records.tcp.config.ecn, syn)),
            window: UnscaledWindow(u16::MAX),
            mss: Some(mss),
            window_scale: syn.window_scale.filter(|_| is_retained).map(|_| own_scale()),
            sack_permitted: is_retained && syn.sack_permitted,
            sack: SackBlocks::NONE,
            timestamps,
            fast_open: None,
            urgent: None,
            len: 0,
        };
        if let Some(listener) = self.records.listeners.get_mut(listener) {
            listener.queue.cookies_until = self.now.after_us(cookie::BELIEVED_FOR_US);
        }
        self.records.counters.add(Counter::CookiesSent);
        let answer = Lone { key: work.key, segment: answer, traffic_class: 0 };
        self.records.ip.send_lone(self.records.counters, self.now, port, neighbour, answer);
    }

    /// A segment of no connection may be the ACK of a SYN-ACK that was sent and forgotten; then it makes the connection.
    /// `false`: it is not, and is nobody's.
    pub(super) fn cookie_arrives(&mut self, work: &RxWork<'_>) -> bool {
        let segment = &work.rx.segment;
        let Some(ack) = segment.ack.filter(|_| !segment.flags.syn() && !segment.flags.rst()) else {
            return false;
        };
        let Some(listener_idx) = self.records.listeners.find(work.key.scope, work.key.local) else {
            return false;
        };
        let Some(listener) =
            self.records.listeners.get(listener_idx).filter(|l| self.now < l.queue.cookies_until)
        else {
            return false;
        };
        let is_too_many = listener.queue.is_full()
            && !self.records.listeners.has_room_for_half_open(self.records.flows, listener);
        let Some((irs, mss)) = self.read_cookie(work, ack.minus(1)) else {
            self.records.counters.add(Counter::CookiesBad);
            // What follows an ACK that is still to come, or was turned away, is no stranger's: its peer sends it again. Peers that
            // have heard nothing yet send nothing behind that but data and FIN.
            let (secret, number) = (&self.secret, ack.minus(1));
            return (segment.len > 0 || segment.flags.fin())
                && !self.records.peers.spent_cookies.is_spent(secret, &work.key, number)
                && cookie::may_follow(secret, &work.key, segment.seq, number, self.now);
        };
        self.records.counters.add(Counter::CookiesGood);
        let ends = (ack.minus(1), irs, mss);
        let made = (!is_too_many).then(|| self.open_by_cookie(listener_idx, work, ends));
        let Some(idx) = made.flatten() else {
            self.records.counters.add(Counter::DropAcceptQueueFull);
            return true;
        };
        // Its peer may have nothing to send: without a place in the line it would never be heard of again.
        if self.records.must_wait_for_accept(idx, segment) {
            self.records.counters.add(Counter::DropAcceptQueueFull);
            return true;
        }
        // The time that it echoes holds other things in its low bits.
        let timestamps = segment.timestamps.map(|(value, _)| (value, 0));
        let segment = Segment { timestamps, seq: irs.plus(1), ..*segment };
        let work = RxWork { rx: RxSegment { segment, ..work.rx }, ..*work };
        self.edit(idx, |planes, idx| planes.flow_receives(idx, &work));
        true
    }

    /// A SYN was answered with a cookie, and when it came again with a record; but the peer answers the first.
    pub(super) fn answers_earlier_cookie(&self, idx: FlowIdx, work: &RxWork<'_>) -> bool {
        let (flow, segment) = (self.records.flows.get(idx), &work.rx.segment);
        if flow.tcb.state != TcpState::SynReceived
            || segment.flags.syn()
            || segment.flags.rst()
            || flow.tcb.handshake.fast_open.early
        {
            return false;
        }
        let Some(listener) = flow.conn.tenancy.listener().and_then(|idx| self.records.listeners.get(idx))
        else {
            return false;
        };
        let strange = segment
            .ack
            .filter(|ack| *ack != flow.tcb.handshake.iss.plus(1) && self.now < listener.queue.cookies_until);
        strange.is_some_and(|ack| self.read_cookie(work, ack.minus(1)).is_some())
    }

    /// The number of the peer's SYN, and its MSS, if `cookie` is one and has made no connection yet.
    fn read_cookie(&self, work: &RxWork<'_>, cookie: SeqNum) -> Option<(SeqNum, u16)> {
        let (secret, segment) = (&self.secret, &work.rx.segment);
        let check = |irs| cookie::check(secret, &work.key, irs, cookie, self.now).map(|mss| (irs, mss));
        // A keepalive has the number before the next one: of a peer whose ACK was turned away it may be all that comes.
        let is_empty = segment.len == 0 && !segment.flags.fin();
        let found = check(segment.seq.minus(1)).or_else(|| check(segment.seq).filter(|_| is_empty))?;
        (!self.records.peers.spent_cookies.is_spent(secret, &work.key, cookie)).then_some(found)
    }

    /// The record that the SYN would have made, its SYN-ACK sent.
    fn open_by_cookie(
        &mut self,
        listener: ListenerIdx,
        work: &RxWork<'_>,
        (iss, irs, mss): (SeqNum, SeqNum, u16),
    ) -> Option<FlowIdx> {
        let params = self.passive_params(work, iss);
        let offer = work.rx.segment.timestamps.map(|(_, echo)| Offer::from_timestamp(echo));
        let syn = Segment {
            seq: irs,
            ack: None,
            flags: TcpFlags::SYN.with_if(TcpFlags::ECE | TcpFlags::CWR, offer.is_some_and(|offer| offer.ecn)),
            mss: Some(mss),
            window_scale: offer.and_then(|offer| offer.window_scale),
            sack_permitted: offer.is_some_and(|offer| offer.sack),
            sack: SackBlocks::NONE,
            urgent: None,
            len: 0,
            ..work.rx.segment
        };
        let mut flow = Flow::new(work.key, work.path, open::passive(&params, &syn));
        flow.conn.tenancy.apply(TenancyEvent::CameIn(listener));
        let listens = self.records.listeners.get(listener)?;
        flow.conn.sharing = listens.holders.sharing();
        let user = listens.user;
        let idx = self.records.insert_flow(user, flow).ok()?;
        self.records.peers.spent_cookies.spend(&self.secret, &work.key, iss);
        self.records.edit(idx, |records, idx| {
            records.listeners.count_half_open(listener);
            records.counters.add(Counter::PassiveOpens);
            records.note_syn_ack_sent(self.now, idx);
        });
        Some(idx)
    }

    /// The program may have a connection whose SYN brought a good cookie, and the bytes that came with it.
    fn came_early(&mut self, idx: Edit<'_>, listener_idx: ListenerIdx, work: &RxWork<'_>) {
        self.records.counters.add(Counter::FastOpenReceived);
        self.records.listeners.arrivals += 1;
        let flow = self.records.flows.get_mut(idx);
        flow.conn.tenancy.apply(TenancyEvent::Opened { number: self.records.listeners.arrivals });
        flow.tcb.handshake.fast_open.early = true;
        self.records.flows.change_aside(idx, |aside| aside.early_at = Some(listener_idx));
        let mut memory = self.records.memory();
        let (flow, mut cx) = memory.receiving(self.now, idx, self.host);
        if fast_open::take_syn_text(&mut flow.tcb, &mut cx, &work.rx) {
            flow.tcb.handshake.fast_open.syn_text = SynText::Taken;
        }
        flow.tcb.status.traffic.received =
            u64::from(flow.tcb.data_nxt().distance_from(flow.tcb.handshake.irs.plus(1)));
        if let Some(listener) = self.records.listeners.get_mut(listener_idx) {
            listener.fast_open.came();
            listener.queue.waiting.push_back(*idx);
        }
        self.records.accepting(self.now, self.host).hand_out(listener_idx);
    }
}

impl Records<'_> {
    /// The SYN-ACK went out before there was a record.
    fn note_syn_ack_sent(&mut self, now: Instant, idx: Edit<'_>) {
        let Some(tx) = self.next_unit(now, *idx) else { return };
        let (flow, path) = self.flows.with_path_mut(idx);
        output::commit(&mut flow.tcb, path, self.tcp, now, &tx);
        // When, nobody knows, so that its ACK tells nothing of the round trip (Karn).
        flow.tcb.sending.board.forget_when_sent(&mut self.tcp.sent);
    }
}

/// The window scale that every connection of ours has.
fn own_scale() -> WindowScale {
    WindowScale::to_cover(WindowSize::new(RECEIVE_WINDOW_MAX))
}
