//! One connection as the far end sees it: numbers of scripts, which count from the initial sequence numbers, to those on
//! the wire and back.

use crate::packet::{ACK, CWR, ECE, FIN, PSH, RST, SYN, Segment, TcpOption, URG};
use crate::pattern::{self, Stream};
use crate::script::{AckSpec, ConnName, Cookie, Ecn, SegmentSpec, Span, StampSpec, Want};
use crate::stack::{LISTEN_PORT, far_port};

/// The far end's timestamp clock at the script's start, in milliseconds.
const FAR_CLOCK_MS: u32 = 10_000_000;

#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) name: ConnName,
    pub(super) stack_port: u16,
    far_isn: u32,
    /// Known with the stack's first SYN.
    pub(super) stack_isn: Option<u32>,
    /// The next number of each side, counted from its initial one.
    far_nxt: i64,
    stack_nxt: i64,
    window: u16,
    /// Both SYNs, as far as they came, have the option: (far end, stack).
    stamps: (bool, bool),
    scales: (bool, Option<u8>),
    /// The stack's clock: first and latest.
    clock: Option<(u32, u32)>,
    cookie: Option<Vec<u8>>,
    /// The far end's clock: what it showed, and when since the script's start.
    far_clock: (u32, u64),
    /// The stack's latest segment, if it was a SYN with another number than the first.
    latest_syn: Option<u32>,
    /// Bytes that the program has given to the stack, and taken from it.
    pub(super) written: u32,
    pub(super) read: u32,
}

impl Conn {
    pub(super) fn new(name: ConnName, far_isn: u32) -> Conn {
        Conn {
            name,
            stack_port: LISTEN_PORT,
            far_isn,
            stack_isn: None,
            far_nxt: 0,
            stack_nxt: 0,
            window: u16::MAX,
            stamps: (false, false),
            scales: (false, None),
            clock: None,
            cookie: None,
            far_clock: (FAR_CLOCK_MS, 0),
            latest_syn: None,
            written: 0,
            read: 0,
        }
    }

    /// Another connection of the same 4-tuple, from the stack's latest SYN on or from its next.
    pub(super) fn new_life(&mut self) {
        *self = Conn {
            stack_isn: self.latest_syn,
            stack_nxt: i64::from(self.latest_syn.is_some()),
            far_clock: self.far_clock,
            far_nxt: self.far_nxt,
            window: self.window,
            clock: self.clock,
            cookie: self.cookie.take(),
            stack_port: self.stack_port,
            ..Conn::new(self.name, self.far_isn)
        };
    }

    pub(super) fn seq_of_stack(&self, segment: &Segment) -> i64 {
        relative(segment.seq, self.stack_isn.unwrap_or(segment.seq))
    }

    pub(super) fn ack_of_stack(&self, segment: &Segment) -> i64 {
        relative(segment.ack, self.far_isn)
    }

    pub(super) fn far_relative(&self, number: u32) -> i64 {
        relative(number, self.far_isn)
    }

    pub(super) fn stack_seq(&self, number: i64) -> u32 {
        self.stack_isn.unwrap_or(0).wrapping_add(number as u32)
    }

    /// Milliseconds of the stack's clock since its first timestamp.
    pub(super) fn clock_of_stack(&self, value: u32) -> i64 {
        self.clock.map_or(0, |(first, _)| relative(value, first))
    }

    /// The window in bytes.
    pub(super) fn room(&self, segment: &Segment) -> i64 {
        let shift = match self.scales {
            (true, Some(shift)) if !segment.has(SYN) => shift.min(14),
            _ => 0,
        };
        i64::from(segment.window) << shift
    }

    /// Takes note of a segment that the stack sent, before it is compared.
    pub(super) fn note_sent(&mut self, segment: &Segment) {
        self.stack_port = segment.src_port;
        let is_other = self.stack_isn.is_some_and(|isn| isn != segment.seq);
        self.latest_syn = (segment.has(SYN) && is_other).then_some(segment.seq);
        if segment.has(SYN) && self.stack_isn.is_none() {
            self.stack_isn = Some(segment.seq);
            self.scales.1 = None;
            self.stamps.1 = false;
        }
        for option in &segment.options {
            match option {
                TcpOption::Timestamps(value, _) => {
                    self.stamps.1 |= segment.has(SYN);
                    let first = self.clock.map_or(*value, |(first, _)| first);
                    self.clock = Some((first, *value));
                }
                TcpOption::WindowScale(shift) if segment.has(SYN) => self.scales.1 = Some(*shift),
                TcpOption::FastOpen(cookie) if !cookie.is_empty() => self.cookie = Some(cookie.clone()),
                _ => {}
            }
        }
        if !segment.has(RST) {
            let end = self.seq_of_stack(segment) + i64::from(segment.seq_len());
            self.stack_nxt = self.stack_nxt.max(end);
        }
    }

    /// The first byte of a segment's payload that is not the stream's.
    pub(super) fn wrong_byte(&self, segment: &Segment) -> Option<usize> {
        let place = self.seq_of_stack(segment) + i64::from(segment.has(SYN)) - 1;
        pattern::first_wrong(Stream::Program, place as u32, &segment.payload)
    }

    /// The segment that the far end sends, and takes note of it.
    pub(super) fn build(&mut self, spec: &SegmentSpec, since_start_us: u64) -> Segment {
        let number = |span: Option<Span>, or| span.and_then(Span::exact).unwrap_or(or);
        let seq = number(spec.seq, self.far_nxt);
        let len = number(spec.len, 0) as usize;
        let win = number(spec.win, i64::from(self.window)) as u16;
        if !spec.rst && spec.win.is_some() {
            self.window = win;
        }
        let place = (seq - 1 + i64::from(spec.syn)) as u32;
        let mut payload = pattern::bytes(Stream::Far, place, len);
        if spec.altered {
            payload.iter_mut().for_each(|byte| *byte ^= 0xff);
        }
        let ack = match spec.ack {
            AckSpec::None | AckSpec::Either => None,
            AckSpec::Whatever => Some(self.stack_nxt),
            AckSpec::Of(span) => span.exact(),
        };
        let segment = Segment {
            src_port: far_port(self.name),
            dst_port: self.stack_port,
            seq: self.far_isn.wrapping_add(seq as u32),
            ack: ack.map_or(0, |ack| self.stack_seq(ack)),
            flags: flags(spec),
            window: win,
            urgent: number(spec.urgent, 0) as u16,
            options: self.options(spec, since_start_us),
            payload,
            ecn: spec.ecn.unwrap_or(Ecn::None).bits(),
            ttl: number(spec.ttl, 64) as u8,
            dont_fragment: spec.dont_fragment.unwrap_or(true),
        };
        if !spec.rst && !spec.bad_checksum {
            self.far_nxt = self.far_nxt.max(seq + i64::from(segment.seq_len()));
        }
        segment
    }

    fn options(&mut self, spec: &SegmentSpec, since_start_us: u64) -> Vec<TcpOption> {
        let mut options = Vec::new();
        let one = |want: &Want<Span>| match want {
            Want::Is(span) => span.exact(),
            _ => None,
        };
        if let Some(mss) = one(&spec.mss) {
            options.push(TcpOption::Mss(mss as u16));
        }
        if let Some(shift) = one(&spec.wscale) {
            options.push(TcpOption::WindowScale(shift as u8));
        }
        if spec.sackok != Want::Unsaid && spec.sackok != Want::Absent {
            options.push(TcpOption::SackPermitted);
        }
        if spec.syn && (self.stack_isn.is_none() || spec.ack != AckSpec::None) {
            self.stamps.0 = matches!(spec.stamps, Want::Is(_));
            self.scales.0 = matches!(spec.wscale, Want::Is(_));
        }
        let stamps = match spec.stamps {
            Want::Is(stamps) => Some(stamps),
            Want::Unsaid if self.stamps == (true, true) && !spec.rst => {
                Some(StampSpec { value: None, echo: None })
            }
            _ => None,
        };
        if let Some(stamps) = stamps {
            let (showed, at_us) = self.far_clock;
            let running = showed.wrapping_add((since_start_us.saturating_sub(at_us) / 1000) as u32);
            let value = stamps.value.and_then(Span::exact).map_or(running, |value| value as u32);
            if spec.syn {
                self.far_clock = (value, since_start_us);
            }
            let (first, latest) = self.clock.unwrap_or_default();
            let echo = match stamps.echo.and_then(Span::exact) {
                Some(echo) => first.wrapping_add(echo as u32),
                None if spec.ack == AckSpec::None => 0,
                None => latest,
            };
            options.push(TcpOption::Timestamps(value, echo));
        }
        match &spec.cookie {
            Want::Is(Cookie::Request) => options.push(TcpOption::FastOpen(Vec::new())),
            Want::Is(Cookie::Bytes(bytes)) => options.push(TcpOption::FastOpen(bytes.clone())),
            Want::Is(Cookie::Given) => {
                options.push(TcpOption::FastOpen(self.cookie.clone().unwrap_or_default()))
            }
            _ => {}
        }
        if let Want::Is(blocks) = &spec.sack {
            let absolute = blocks.iter().map(|(l, r)| (self.stack_seq(*l), self.stack_seq(*r)));
            options.push(TcpOption::Sack(absolute.collect()));
        }
        options
    }

    /// What a report calls a segment of the stack.
    pub(super) fn describe_sent(&self, segment: &Segment) -> String {
        let seq = self.seq_of_stack(segment);
        self.describe(segment, seq, self.ack_of_stack(segment), |number| self.far_relative(number))
    }

    /// And one of the far end.
    pub(super) fn describe_injected(&self, segment: &Segment) -> String {
        let stack = self.stack_isn.unwrap_or(segment.ack);
        let seq = self.far_relative(segment.seq);
        self.describe(segment, seq, relative(segment.ack, stack), |number| relative(number, stack))
    }

    fn describe(&self, segment: &Segment, seq: i64, ack: i64, edge: impl Fn(u32) -> i64) -> String {
        let mut text = String::new();
        if self.name.0 > 0 {
            text = format!("{}: ", self.name.letter());
        }
        text += &crate::packet::flag_words(segment.flags & !ACK);
        if segment.flags & !ACK != 0 {
            text.push(' ');
        }
        text += &format!("seq {seq}");
        if segment.has(ACK) {
            text += &format!(" ack {ack}");
        }
        text += &format!(" len {} win {}", segment.payload.len(), segment.window);
        if segment.has(URG) {
            text += &format!(" urgent {}", segment.urgent);
        }
        for option in &segment.options {
            match option {
                TcpOption::Sack(blocks) => {
                    text += " sack";
                    for (left, right) in blocks {
                        text += &format!(" {}-{}", edge(*left), edge(*right));
                    }
                }
                other => text += &format!(" {other}"),
            }
        }
        if segment.ecn != 0 {
            text += [" ecn none", " ecn ect1", " ecn ect0", " ecn ce"][usize::from(segment.ecn & 3)];
        }
        text
    }
}

/// The control bits that a script names.
pub(super) fn flags(spec: &SegmentSpec) -> u16 {
    let named = [
        (spec.syn, SYN),
        (spec.fin, FIN),
        (spec.rst, RST),
        (spec.ece, ECE),
        (spec.cwr, CWR),
        (spec.psh == Some(true), PSH),
        (spec.urgent.is_some(), URG),
        (matches!(spec.ack, AckSpec::Whatever | AckSpec::Of(_)), ACK),
    ];
    named.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum()
}

fn relative(number: u32, from: u32) -> i64 {
    i64::from(number.wrapping_sub(from) as i32)
}
