//! TIME-WAIT (RFC 9293 section 3.10.7.4): all that a connection needs once both ends have said their last and the last ACK may be
//! lost yet. A record of its own, small, as a busy host has many of them.
//!
//! A program that has the connection still keeps the whole record. Segments are judged here for both.

use crate::counter::{Counter, Counters};
use crate::limit::RateLimit;
use crate::reassembly::SeqRange;
use crate::segment::Segment;
use crate::state::{TcpEvent, TcpState};
use toe_base::window::{UnscaledWindow, WindowScale};
use toe_base::{Instant, SeqNum};
use toe_wire::tcp::{SackBlock, SackBlocks, TcpFlags};

/// 2 MSL: as long as Linux waits.
pub const TIME_WAIT_US: u64 = 60_000_000;
/// TIME_WAIT of a connection between two local ends: nothing wanders about there, and the last ACK cannot get lost.
pub const TIME_WAIT_LOCAL_US: u64 = 10_000;
/// RFC 6191 section 2: the clock of timestamps has surely gone on.
const REUSE_AFTER_US: u64 = 1_000_000;
/// Segments that cannot be used and bring no data are answered this often at most.
pub const STRAY_ANSWERS_US: u64 = 500_000;
const STRAY_ANSWERS_MS: u16 = (STRAY_ANSWERS_US / 1000) as u16;

/// How long TIME_WAIT lasts.
pub fn lasts_us(is_local: bool) -> u64 {
    if is_local { TIME_WAIT_LOCAL_US } else { TIME_WAIT_US }
}

/// What a whole record has that [`TimeWait::new`] takes.
#[derive(Clone, Copy, Debug)]
pub struct TimeWaitParams {
    pub is_local: bool,
    pub sack_permitted: bool,
    pub ts_recent: Option<u32>,
    pub scale: WindowScale,
    pub traffic_class: u8,
    pub until: Instant,
    /// No stray segment is answered before this.
    pub next_stray_answer: Instant,
    /// The ACK that it would send now.
    pub ack: Segment,
}

/// A connection in TIME_WAIT. Whoever has it knows its name, and what its timestamps start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWait {
    pub snd_nxt: SeqNum,
    pub rcv_nxt: SeqNum,
    ts_recent: u32,
    /// It is over then.
    pub until: Instant,
    /// The low bits of the millisecond before which no stray segment is answered. It is none of the past's that they may be taken for:
    /// TIME_WAIT is shorter than their turn, and each time that it begins anew they do.
    next_stray_answer: u16,
    window: UnscaledWindow,
    pub traffic_class: u8,
    /// The window scale, and the bits that follow.
    shape: u8,
}

const SCALE: u8 = 0xf;
const IS_LOCAL: u8 = 1 << 4;
const SACK_PERMITTED: u8 = 1 << 5;
const HAS_TIMESTAMPS: u8 = 1 << 6;
const ECE: u8 = 1 << 7;

const _: () = assert!(size_of::<TimeWait>() <= 24);

/// What it needs beside the record to judge a segment.
#[derive(Debug)]
pub struct TimeWaitContext<'a> {
    pub now: Instant,
    /// A reset does not end it (RFC 1337).
    pub rfc1337: bool,
    pub challenges: &'a mut RateLimit,
    pub counters: &'a mut Counters,
}

/// What a segment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeWaitEffect {
    Nothing,
    /// It is answered with an ACK, which tells of what came twice (RFC 2883).
    Answer(Option<SeqRange>),
    /// The connection is over: [`TimeWait::after`].
    Reset,
}

impl TimeWait {
    pub fn new(now: Instant, params: &TimeWaitParams) -> TimeWait {
        let TimeWaitParams { ack, .. } = params;
        let bit = |on, bit| if on { bit } else { 0 };
        TimeWait {
            snd_nxt: ack.seq,
            rcv_nxt: ack.ack.unwrap_or_default(),
            ts_recent: params.ts_recent.unwrap_or_default(),
            until: params.until,
            next_stray_answer: low_ms(params.next_stray_answer.max(now)),
            window: ack.window,
            traffic_class: params.traffic_class,
            shape: params.scale.shift() & SCALE
                | bit(params.is_local, IS_LOCAL)
                | bit(params.sack_permitted, SACK_PERMITTED)
                | bit(params.ts_recent.is_some(), HAS_TIMESTAMPS)
                | bit(ack.flags.contains(TcpFlags::ECE), ECE),
        }
    }

    /// Its state once this has happened.
    pub const fn after(&self, event: TcpEvent) -> TcpState {
        TcpState::TimeWait.after(event)
    }

    pub const fn is_local(&self) -> bool {
        self.shape & IS_LOCAL != 0
    }

    pub fn ts_recent(&self) -> Option<u32> {
        (self.shape & HAS_TIMESTAMPS != 0).then_some(self.ts_recent)
    }

    /// Whether a new connection may take the name that the engine chose: timestamps will tell their segments apart (RFC 6191).
    pub fn may_be_replaced(&self, now: Instant) -> bool {
        self.ts_recent().is_some() && self.until.since_us(now).saturating_add(REUSE_AFTER_US) <= TIME_WAIT_US
    }

    /// A segment has come that begins no new life ([`is_new_life`]).
    pub fn segment_arrives(&mut self, cx: &mut TimeWaitContext<'_>, segment: &Segment) -> TimeWaitEffect {
        if segment.is_old_duplicate(self.ts_recent()) {
            cx.counters.add(Counter::DropOldTimestamp);
            return self.answer_stray(cx.now, segment, None);
        }
        if self.ts_recent().is_some()
            && segment.timestamps.is_none()
            && !segment.flags.rst()
            && !segment.flags.syn()
        {
            // RFC 7323 section 3.2: silently. A SYN is answered as any other; a peer that has started anew learns by that.
            cx.counters.add(Counter::DropNoTimestamp);
            return TimeWaitEffect::Nothing;
        }
        let scale = WindowScale::from_option(self.shape & SCALE);
        let edge = self.rcv_nxt.plus(self.window.scaled(scale).bytes());
        if !segment.is_acceptable((self.rcv_nxt, edge)) {
            cx.counters.add(Counter::DropUnacceptable);
            return self.unacceptable(cx.now, segment);
        }
        if segment.flags.rst() {
            return self.reset(cx, segment);
        }
        if segment.flags.syn() {
            return self.challenge(cx);
        }
        if segment.ack.is_none() {
            cx.counters.add(Counter::DropUnacceptable);
            return TimeWaitEffect::Nothing;
        }
        // All that was sent is acknowledged: whatever its ACK says is of no concern (Linux: tcp_timewait_state_process).
        if let (Some(recent), Some((value, _))) = (self.ts_recent(), segment.timestamps)
            && segment.seq.at_or_before(self.rcv_nxt)
            && (value.wrapping_sub(recent) as i32) >= 0
        {
            self.ts_recent = value;
        }
        // Text may be of a peer that goes on with its old connection (RFC 9293, Linux).
        if segment.seq_len() > 0 { TimeWaitEffect::Answer(None) } else { TimeWaitEffect::Nothing }
    }

    fn unacceptable(&mut self, now: Instant, segment: &Segment) -> TimeWaitEffect {
        // A reset is never answered, or two ends would answer each other for ever.
        if segment.flags.rst() {
            return TimeWaitEffect::Nothing;
        }
        if segment.flags.fin() {
            // "The only thing that can arrive in this state is a retransmission of the remote FIN": wait anew.
            if !self.holds_back(now) {
                self.next_stray_answer = low_ms(now);
            }
            self.until = now.after_us(lasts_us(self.is_local()));
        }
        self.answer_stray(now, segment, self.duplicate(segment))
    }

    /// What came twice.
    fn duplicate(&self, segment: &Segment) -> Option<SeqRange> {
        let start = segment.seq.plus(u32::from(segment.flags.syn()));
        let end = start.plus(segment.len + u32::from(segment.flags.fin())).earlier(self.rcv_nxt);
        let is_told = self.shape & SACK_PERMITTED != 0 && segment.len + u32::from(segment.flags.fin()) > 0;
        (is_told && start.before(self.rcv_nxt)).then_some(SeqRange { start, end })
    }

    fn reset(&mut self, cx: &mut TimeWaitContext<'_>, segment: &Segment) -> TimeWaitEffect {
        if segment.seq != self.rcv_nxt {
            return self.challenge(cx);
        }
        if cx.rfc1337 {
            // RFC 1337 section 3 (F1): TIME_WAIT ends by its timer alone, so that what the old connection has under way cannot
            // come to a new one of the same 4-tuple.
            cx.counters.add(Counter::TimeWaitResets);
            return TimeWaitEffect::Nothing;
        }
        TimeWaitEffect::Reset
    }

    /// Whether no stray segment is answered now.
    pub fn holds_back(&self, now: Instant) -> bool {
        let left = self.next_stray_answer.wrapping_sub(low_ms(now));
        left > 0 && left <= STRAY_ANSWERS_MS
    }

    fn answer_stray(
        &mut self,
        now: Instant,
        segment: &Segment,
        duplicate: Option<SeqRange>,
    ) -> TimeWaitEffect {
        if segment.flags.syn() || segment.seq_len() == 0 {
            if self.holds_back(now) {
                return TimeWaitEffect::Nothing;
            }
            self.next_stray_answer = low_ms(now.after_us(STRAY_ANSWERS_US));
        }
        TimeWaitEffect::Answer(duplicate)
    }

    /// RFC 5961 section 7.
    fn challenge(&mut self, cx: &mut TimeWaitContext<'_>) -> TimeWaitEffect {
        if self.holds_back(cx.now) || !cx.challenges.allows(cx.now) {
            cx.counters.add(Counter::ChallengeAcksHeldBack);
            return TimeWaitEffect::Nothing;
        }
        cx.counters.add(Counter::ChallengeAcks);
        self.next_stray_answer = low_ms(cx.now.after_us(STRAY_ANSWERS_US));
        TimeWaitEffect::Answer(None)
    }

    /// The ACK that tells the peer where this end stands; `timestamp`: the one of now, which counts where they are in use.
    pub fn ack(&self, timestamp: u32, duplicate: Option<SeqRange>) -> Segment {
        let mut sack = SackBlocks::NONE;
        if let Some(SeqRange { start, end }) = duplicate {
            sack.push(SackBlock { left: start, right: end });
        }
        Segment {
            flags: TcpFlags::NONE.with_if(TcpFlags::ECE, self.shape & ECE != 0),
            window: self.window,
            sack,
            timestamps: self.ts_recent().map(|recent| (timestamp, recent)),
            ..Segment::reset(self.snd_nxt, Some(self.rcv_nxt))
        }
    }
}

/// A SYN that may start the 4-tuple anew while the old connection is in TIME_WAIT (RFC 9293 section 3.10.7.4, RFC 6191).
pub fn is_new_life(rcv_nxt: SeqNum, ts_recent: Option<u32>, segment: &Segment) -> bool {
    if !segment.flags.syn() || segment.ack.is_some() || segment.flags.rst() {
        return false;
    }
    let is_later = segment.seq.after(rcv_nxt);
    match (ts_recent, segment.timestamps) {
        // Timestamps decide where both have them; numbers only between two of the same tick.
        (Some(recent), Some((value, _))) => match value.wrapping_sub(recent) as i32 {
            0 => is_later,
            ticks => ticks > 0,
        },
        _ => is_later,
    }
}

fn low_ms(at: Instant) -> u16 {
    at.tcp_timestamp_ms() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const NXT: SeqNum = SeqNum::new(1000);

    struct World {
        wait: TimeWait,
        challenges: RateLimit,
        counters: Counters,
    }

    impl World {
        fn new(now: Instant) -> World {
            let ack = Segment {
                flags: TcpFlags::NONE,
                window: UnscaledWindow(100),
                ..Segment::reset(NXT, Some(NXT))
            };
            let params = TimeWaitParams {
                is_local: false,
                sack_permitted: true,
                ts_recent: None,
                scale: WindowScale::from_option(3),
                traffic_class: 0x10,
                until: now.after_us(TIME_WAIT_US),
                next_stray_answer: Instant::ZERO,
                ack,
            };
            let wait = TimeWait::new(now, &params);
            World { wait, challenges: RateLimit::new([7; 16], 1000), counters: Counters::default() }
        }

        fn arrives(&mut self, ms: u64, segment: Segment) -> TimeWaitEffect {
            let World { wait, challenges, counters } = self;
            let now = Instant::from_millis(ms);
            wait.segment_arrives(&mut TimeWaitContext { now, rfc1337: false, challenges, counters }, &segment)
        }
    }

    fn segment(seq: SeqNum) -> Segment {
        Segment { flags: TcpFlags::NONE, ..Segment::reset(seq, Some(NXT)) }
    }

    #[test]
    fn a_stray_is_answered_again_after_half_a_second_however_long_it_takes() {
        let mut world = World::new(Instant::from_millis(100));
        let (stray, fin) = (segment(NXT.minus(5)), Segment { flags: TcpFlags::FIN, ..segment(NXT.minus(1)) });
        let told = Some(SeqRange { start: NXT.minus(1), end: NXT });
        assert_eq!(world.arrives(200, stray), TimeWaitEffect::Answer(None));
        assert_eq!(world.arrives(699, stray), TimeWaitEffect::Nothing);
        assert_eq!(world.arrives(700, stray), TimeWaitEffect::Answer(None));
        // The low bits of the millisecond are those of the one before which none was answered.
        let turn = 1 << 16;
        for ms in [50_000, 100_000, 800 + turn] {
            assert_eq!(world.arrives(ms, fin), TimeWaitEffect::Answer(told));
        }
        assert_eq!(world.wait.until, Instant::from_millis(800 + turn + 60_000), "it has begun anew");
        assert_eq!(world.arrives(900 + turn, stray), TimeWaitEffect::Answer(None));
        assert_eq!(world.arrives(900 + turn, stray), TimeWaitEffect::Nothing);
    }

    #[test]
    fn its_ack_tells_where_it_stands() {
        let mut world = World::new(Instant::ZERO);
        let old = Segment { len: 10, ..segment(NXT.minus(10)) };
        let TimeWaitEffect::Answer(duplicate) = world.arrives(1, old) else { panic!("an answer") };
        let ack = world.wait.ack(77, duplicate);
        assert_eq!(
            (ack.seq, ack.ack, ack.window, ack.timestamps),
            (NXT, Some(NXT), UnscaledWindow(100), None)
        );
        assert_eq!(ack.sack.as_slice(), [SackBlock { left: NXT.minus(10), right: NXT }]);
        // What is in its window is acknowledged too, and nothing was twice there.
        let new = Segment { len: 10, ..segment(NXT.plus(700)) };
        assert_eq!(world.arrives(2, new), TimeWaitEffect::Answer(None));
        assert_eq!(
            world.arrives(3, Segment { flags: TcpFlags::RST, ..segment(NXT.plus(700)) }),
            TimeWaitEffect::Answer(None)
        );
        assert_eq!(world.arrives(4, Segment { flags: TcpFlags::RST, ..segment(NXT) }), TimeWaitEffect::Reset);
        assert_eq!(world.wait.after(TcpEvent::Reset), TcpState::Closed);
    }
}
