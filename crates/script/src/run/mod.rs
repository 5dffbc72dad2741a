//! Goes through a script with a stack: injects, calls, and compares what the stack sends, in time and in every field that
//! the script names. Knows nothing of any stack but [`Stack`].

mod compare;
mod conn;
mod failure;

pub use failure::Failure;

use crate::datagram::{DatagramAct, Datagrams, Ended, nothing_more};
use crate::packet::{FAR_ADDR, Segment, icmp_error};
use crate::parse::errno_name;
use crate::pattern::{self, Stream};
use crate::script::{
    AckSpec, Act, Call, ConnName, Gives, Open, Packet, Script, SegmentSpec, Span, Step, Want, When,
};
use crate::stack::{Outcome, Stack, StackError, conn_of, far_port};
use conn::Conn;
use std::collections::VecDeque;

/// The far end's maximum segment size in `open`, when the script does not say.
const OPEN_MSS: i64 = 1460;

/// Goes through the whole script.
pub fn run(script: &Script, stack: &mut dyn Stack) -> Result<(), Failure> {
    let start_us = stack.now_us();
    let conns = (0..ConnName::MAX)
        .map(|n| Conn::new(ConnName(n), script.header.isn.wrapping_add(u32::from(n) * 1_000_003)))
        .collect();
    let mut run = Run {
        script,
        stack,
        conns,
        queue: VecDeque::new(),
        last_us: start_us,
        start_us,
        line: 1,
        is_listening: false,
        trace: Vec::new(),
        datagrams: Datagrams::default(),
    };
    for step in &script.steps {
        run.line = step.line;
        run.step(step).map_err(|stop| run.failure(stop))?;
    }
    match script.header.tail_us {
        0 => Ok(()),
        us => run.quiet(us).and_then(|()| run.no_datagram()).map_err(|stop| run.failure(stop)),
    }
}

/// Why a run ends early.
enum Stop {
    /// The stack does not do what the script says.
    Wrong(String),
    /// It could not be used.
    Trouble(StackError),
}

impl From<Ended> for Stop {
    fn from(ended: Ended) -> Stop {
        match ended {
            Ended::Wrong(why) => Stop::Wrong(why),
            Ended::Trouble(error) => Stop::Trouble(error),
        }
    }
}

impl From<StackError> for Stop {
    fn from(error: StackError) -> Stop {
        Stop::Trouble(error)
    }
}

struct Run<'a> {
    script: &'a Script,
    stack: &'a mut dyn Stack,
    conns: Vec<Conn>,
    /// Sent by the stack, and not expected yet.
    queue: VecDeque<(u64, Segment)>,
    /// When the last event was.
    last_us: u64,
    start_us: u64,
    line: usize,
    is_listening: bool,
    trace: Vec<String>,
    datagrams: Datagrams,
}

impl Run<'_> {
    fn failure(&self, stop: Stop) -> Failure {
        let (why, is_trouble) = match stop {
            Stop::Wrong(why) => (why, false),
            Stop::Trouble(error) => (error.0, true),
        };
        let mut failure = Failure::new(self.script, self.line, why, &self.trace);
        failure.is_trouble = is_trouble;
        failure
    }

    fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match &step.act {
            Act::Expect(spec) => return self.expect(step.conn, step.when, spec),
            Act::ExpectTrain { count, from, len } => {
                return self.expect_train(step.conn, step.when, *count, *from, *len);
            }
            Act::Allow(spec) => return self.allow(step.conn, step.when, spec),
            Act::Quiet(us) => return self.quiet(*us),
            Act::Inject(_) | Act::Open(_) => self.nothing_unexpected()?,
            Act::Call(_) | Act::NewLife | Act::Datagram(_) => {}
        }
        if let When::After(us) | When::Between(us, _) = step.when {
            self.quiet(us)?;
        }
        match &step.act {
            Act::Inject(packet) => self.inject(step.conn, packet),
            Act::Call(call) => self.call(step.conn, call),
            Act::Open(open) => self.open(step.conn, open),
            Act::Datagram(act) => self.datagram(act),
            Act::NewLife => {
                self.conns[usize::from(step.conn.0)].new_life();
                Ok(())
            }
            Act::Expect(_) | Act::ExpectTrain { .. } | Act::Allow(_) | Act::Quiet(_) => Ok(()),
        }
    }

    fn datagram(&mut self, act: &DatagramAct) -> Result<(), Stop> {
        let none = || StackError("scripts have no datagrams on this stack".to_owned());
        let stack = self.stack.datagrams().ok_or_else(none)?;
        Ok(self.datagrams.step(act, stack)?)
    }

    /// The stack has sent no packet but those that lines expect.
    fn no_datagram(&mut self) -> Result<(), Stop> {
        match self.stack.datagrams() {
            Some(stack) if self.script.has_datagrams() => Ok(nothing_more(stack)?),
            _ => Ok(()),
        }
    }

    /// Time passes, in which the stack sends nothing.
    fn quiet(&mut self, us: u64) -> Result<(), Stop> {
        self.nothing_unexpected()?;
        let until = self.last_us + us;
        if let Some(sent) = self.next_sent(until)? {
            self.queue.push_back(sent);
        }
        self.last_us = self.stack.now_us().max(until);
        self.nothing_unexpected()
    }

    fn nothing_unexpected(&mut self) -> Result<(), Stop> {
        if self.queue.is_empty()
            && let Some(sent) = self.next_sent(self.stack.now_us())?
        {
            self.queue.push_back(sent);
        }
        match self.queue.front() {
            None => Ok(()),
            Some((_, segment)) => {
                let conn = self.conn_of(segment)?;
                let what = conn.describe_sent(segment);
                Err(Stop::Wrong(format!("the stack sent what no line expects: {what}")))
            }
        }
    }

    fn conn_of(&self, segment: &Segment) -> Result<&Conn, Stop> {
        let conn = conn_of(segment.dst_port).map(|name| &self.conns[usize::from(name.0)]);
        conn.ok_or_else(|| Stop::Wrong(format!("the stack sent a segment to port {}", segment.dst_port)))
    }

    /// The next segment of the stack, noted.
    fn next_sent(&mut self, until_us: u64) -> Result<Option<(u64, Segment)>, Stop> {
        let Some((at, segment)) = self.stack.sent(until_us)? else { return Ok(None) };
        if let Some(name) = conn_of(segment.dst_port) {
            let conn = &mut self.conns[usize::from(name.0)];
            conn.note_sent(&segment);
            let text = conn.describe_sent(&segment);
            self.note(at, "stack", &text);
        }
        Ok(Some((at, segment)))
    }

    fn note(&mut self, at: u64, who: &str, text: &str) {
        let since = at.saturating_sub(self.start_us);
        self.trace.push(format!("{:9.6} {who:5} {text}", since as f64 / 1e6));
    }

    /// How soon and how late after the last event something may come.
    fn span(&self, when: When) -> (u64, u64) {
        let tolerance = self.stack.tolerance();
        match when {
            When::Now => (0, tolerance.latest(0)),
            When::After(us) => (tolerance.earliest(us), tolerance.latest(us)),
            When::Between(from, to) => (tolerance.earliest(from), tolerance.latest(to)),
        }
    }

    /// The next segment, if one comes in time, and how it differs from what is wanted.
    fn next_compared(
        &mut self,
        name: ConnName,
        when: When,
        spec: &SegmentSpec,
    ) -> Result<Option<(u64, Segment, Vec<String>)>, Stop> {
        let (from, to) = self.span(when);
        let sent = match self.queue.pop_front() {
            Some(sent) => Some(sent),
            None => self.next_sent(self.last_us + to)?,
        };
        let Some((at, segment)) = sent else { return Ok(None) };
        let conn = self.conn_of(&segment)?;
        let mut differences = compare::differences(conn, spec, &segment);
        if conn.name != name {
            differences.insert(0, format!("connection: {} instead of {}", conn.name.letter(), name.letter()));
        }
        let after = at.saturating_sub(self.last_us);
        if after < from || after > to {
            let span = format!("{} to {}", seconds(from), seconds(to));
            differences.push(format!("time: {} instead of {span} after the last event", seconds(after)));
        }
        Ok(Some((at, segment, differences)))
    }

    fn expect(&mut self, name: ConnName, when: When, spec: &SegmentSpec) -> Result<(), Stop> {
        let Some((at, segment, differences)) = self.next_compared(name, when, spec)? else {
            return Err(Stop::Wrong(format!("the stack sent nothing within {}", seconds(self.span(when).1))));
        };
        if !differences.is_empty() {
            let got = self.conn_of(&segment)?.describe_sent(&segment);
            let expected = self.script.lines.get(self.line - 1).map_or("", |line| line.trim());
            let list = differences.join("\n    differs: ");
            return Err(Stop::Wrong(format!(
                "the stack sent another segment\n    expected: {expected}\n    got:      {got}\n    differs: {list}"
            )));
        }
        self.last_us = self.last_us.max(at);
        Ok(())
    }

    fn expect_train(
        &mut self,
        name: ConnName,
        when: When,
        count: u32,
        from: i64,
        len: i64,
    ) -> Result<(), Stop> {
        for nth in 0..i64::from(count) {
            let spec = SegmentSpec {
                seq: Some(Span::one(from + nth * len)),
                len: Some(Span::one(len)),
                ack: AckSpec::Whatever,
                ..SegmentSpec::default()
            };
            let when = if nth == 0 { when } else { When::Now };
            self.expect(name, when, &spec).map_err(|stop| match stop {
                Stop::Wrong(why) => Stop::Wrong(format!("segment {} of the train: {why}", nth + 1)),
                trouble => trouble,
            })?;
        }
        Ok(())
    }

    /// What comes and is something else, a later line may expect.
    fn allow(&mut self, name: ConnName, when: When, spec: &SegmentSpec) -> Result<(), Stop> {
        match self.next_compared(name, when, spec)? {
            Some((at, _, differences)) if differences.is_empty() => self.last_us = self.last_us.max(at),
            Some((at, segment, _)) => self.queue.push_front((at, segment)),
            None => {}
        }
        Ok(())
    }

    fn inject(&mut self, name: ConnName, packet: &Packet) -> Result<(), Stop> {
        let since_us = self.stack.now_us() - self.start_us;
        let conn = &mut self.conns[usize::from(name.0)];
        let (bytes, text) = match packet {
            Packet::Segment(spec) => {
                let segment = conn.build(spec, since_us);
                let text = conn.describe_injected(&segment);
                (segment.to_datagram(&spec.raw_options, spec.bad_checksum), text)
            }
            Packet::Icmp { error, quoted_seq } => {
                let ports = (conn.stack_port, far_port(name));
                let bytes = icmp_error(*error, ports, conn.stack_seq(*quoted_seq));
                (bytes, format!("icmp {error:?} from {FAR_ADDR}, quoting {quoted_seq}"))
            }
        };
        let now = self.stack.now_us();
        self.note(now, "far", &text);
        self.stack.arrives(&bytes)?;
        self.last_us = self.last_us.max(now);
        Ok(())
    }

    fn open(&mut self, name: ConnName, open: &Open) -> Result<(), Stop> {
        let mut syn = SegmentSpec { syn: true, ..open.syn.clone() };
        if syn.mss == Want::Unsaid {
            syn.mss = Want::Is(Span::one(OPEN_MSS));
        }
        let answer = SegmentSpec { syn: true, ack: AckSpec::Of(Span::one(1)), ..SegmentSpec::default() };
        let ack = SegmentSpec { ack: AckSpec::Of(Span::one(1)), ..SegmentSpec::default() };
        if open.active {
            self.call(name, &Call::Connect { from: 0, fast: None })?;
            self.expect(name, When::Now, &SegmentSpec { syn: true, ..SegmentSpec::default() })?;
            self.quiet(open.rtt_us)?;
            syn.ack = answer.ack;
            self.inject(name, &Packet::Segment(Box::new(syn)))?;
            self.expect(name, When::Now, &ack)?;
            return self.call(name, &Call::Connected(Gives::Ok));
        }
        if !self.is_listening {
            self.call(name, &Call::Listen { backlog: 64 })?;
        }
        self.inject(name, &Packet::Segment(Box::new(syn)))?;
        self.expect(name, When::Now, &answer)?;
        self.quiet(open.rtt_us)?;
        self.inject(name, &Packet::Segment(Box::new(ack)))?;
        self.call(name, &Call::Accept(Gives::Ok))
    }

    fn call(&mut self, name: ConnName, call: &Call) -> Result<(), Stop> {
        let conn = &self.conns[usize::from(name.0)];
        let (read, written) = (conn.read, conn.written);
        let bytes = match call {
            Call::Send { len, .. } | Call::Connect { fast: Some(len), .. } => {
                pattern::bytes(Stream::Program, written, *len as usize)
            }
            _ => Vec::new(),
        };
        let outcome = self.stack.call(name, call, &bytes)?;
        // What the call brought about may have been sent before it returned.
        self.last_us = self.last_us.max(self.stack.now_us());
        let conn = &mut self.conns[usize::from(name.0)];
        match call {
            Call::Listen { .. } => self.is_listening = true,
            Call::Send { len, .. } if outcome == Outcome::Done => conn.written = written.wrapping_add(*len),
            Call::Connect { fast: Some(_), .. } => {
                if let Outcome::Number(taken) = outcome {
                    conn.written = written.wrapping_add(taken as u32);
                }
            }
            Call::Read { .. } => {
                if let Outcome::Bytes(bytes) = &outcome {
                    conn.read = read.wrapping_add(bytes.len() as u32);
                    if let Some(at) = pattern::first_wrong(Stream::Far, read, bytes) {
                        let place = read.wrapping_add(at as u32);
                        return Err(Stop::Wrong(format!(
                            "byte {place} of the stream is not the one that was sent"
                        )));
                    }
                }
            }
            _ => {}
        }
        judge(call, &outcome).map_err(Stop::Wrong)
    }
}

/// Whether a call gave what it must.
fn judge(call: &Call, outcome: &Outcome) -> Result<(), String> {
    let gives = match call {
        Call::Connected(gives)
        | Call::Accept(gives)
        | Call::Send { gives, .. }
        | Call::Read { gives, .. }
        | Call::Shutdown { gives, .. } => *gives,
        _ => Gives::Ok,
    };
    let right = match (call, gives, outcome) {
        (Call::ErrorIs(want), _, Outcome::Error(got)) => want == got,
        (Call::State(want), _, Outcome::State(got)) => want == got,
        (Call::AtMark(want), _, Outcome::Number(got)) => i64::from(*want) == *got,
        (Call::Info(_, want), _, Outcome::Number(got)) => want.contains(*got),
        (Call::Connect { fast: Some(_), .. }, _, Outcome::Number(_)) => true,
        (Call::Read { len, .. }, Gives::Ok, Outcome::Bytes(bytes)) => bytes.len() == *len as usize,
        (_, Gives::Ok, Outcome::Done) | (_, Gives::Nothing, Outcome::Nothing) => true,
        (_, Gives::EndOfFile, Outcome::EndOfFile) => true,
        (_, Gives::Error(want), Outcome::Error(got)) => want == *got,
        _ => false,
    };
    if right { Ok(()) } else { Err(format!("the call gave {}", outcome_text(outcome))) }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "success".to_owned(),
        Outcome::Nothing => "nothing (it would block)".to_owned(),
        Outcome::EndOfFile => "the end of the stream".to_owned(),
        Outcome::Error(errno) => errno_name(*errno),
        Outcome::Bytes(bytes) => format!("{} bytes", bytes.len()),
        Outcome::State(state) => state.to_string(),
        Outcome::Number(number) => number.to_string(),
    }
}

fn seconds(us: u64) -> String {
    format!("{:.6} s", us as f64 / 1e6)
}
