//! Linux's TCP as a stack to test: real sockets, real time, a link and a namespace for each script alone. Needs root.

mod namespace;
mod program;

pub use program::MSG_FASTOPEN;

use crate::far_link::{receive, send_frame, wait};
use crate::packet::Segment;
use crate::run::{Failure, run};
use crate::script::{Act, Call, ConnName, Gives, Header, Script};
use crate::stack::{Outcome, Stack, StackError, Tolerance};
use namespace::STACK_MAC;
use program::Program;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use toe_port::Port;
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::link::{RxOffload, TxOffload};

/// A call may find what an arrival brings this much later.
const CALL_WAIT: Duration = Duration::from_millis(100);

struct LinuxStack {
    port: Box<dyn Port>,
    program: Program,
    start: Instant,
    sent: VecDeque<(u64, Segment)>,
}

/// Goes through a script with Linux's TCP, in a thread and a namespace of its own.
pub fn run_on_linux(script: &Script) -> Result<Result<(), Failure>, StackError> {
    std::thread::scope(|scope| {
        let on_stack = || {
            let mut stack = LinuxStack::new(&script.header)?;
            Ok(run(script, &mut stack))
        };
        match scope.spawn(on_stack).join() {
            Ok(result) => result,
            Err(_) => Err(StackError("the thread of the script panicked".to_owned())),
        }
    })
}

/// Seconds that a script takes at least in real time, for an order that keeps all threads busy to the end.
pub fn real_seconds(script: &Script) -> u64 {
    use crate::script::When;
    let of_step = |step: &crate::script::Step| {
        let when = match step.when {
            When::Now => 0,
            When::After(us) | When::Between(_, us) => us,
        };
        when + if let Act::Quiet(us) = step.act { us } else { 0 }
    };
    script.steps.iter().map(of_step).sum::<u64>() / 1_000_000
}

impl LinuxStack {
    fn new(header: &Header) -> Result<LinuxStack, StackError> {
        let port = namespace::enter(header)?;
        Ok(LinuxStack { port, program: Program::new(header), start: Instant::now(), sent: VecDeque::new() })
    }

    fn take_frames(&mut self) -> Result<(), StackError> {
        let now = self.now_us();
        let mut frames: Vec<(Vec<u8>, RxOffload)> = Vec::new();
        receive(&mut *self.port, &mut frames)?;
        for (frame, offload) in frames {
            let Ok((header, packet)) = EthRepr::parse(&frame) else { continue };
            if header.ethertype != EtherType::Ipv4 || packet.get(9) != Some(&6) {
                continue;
            }
            let segment = Segment::parse(packet, offload.checksum_ok)
                .map_err(|error| StackError(format!("Linux sent a bad packet: {error}")))?;
            let mss = offload.coalesced_mss.map_or(usize::MAX, usize::from);
            self.sent.extend(segment.cut(mss).into_iter().map(|piece| (now, piece)));
        }
        Ok(())
    }
}

/// Repeats a call until it gives what it must, as long as that can be on its way.
pub(crate) fn call_until(
    call: &Call,
    mut once: impl FnMut() -> Result<Outcome, StackError>,
) -> Result<Outcome, StackError> {
    let wants_something = match call {
        Call::Accept(gives) | Call::Read { gives, .. } | Call::Connected(gives) => *gives != Gives::Nothing,
        _ => false,
    };
    let start = Instant::now();
    loop {
        let outcome = once()?;
        let in_vain = match (&outcome, call) {
            (Outcome::Nothing, _) => wants_something,
            (Outcome::State(got), Call::State(want)) => got != want,
            (Outcome::Number(got), Call::AtMark(want)) => *got != i64::from(*want),
            (Outcome::Error(got), Call::ErrorIs(want)) => got.is_ok() && !want.is_ok(),
            _ => false,
        };
        if !in_vain || start.elapsed() >= CALL_WAIT {
            return Ok(outcome);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Stack for LinuxStack {
    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn tolerance(&self) -> Tolerance {
        // Timers of seconds may run an eighth late by the kernel's design, and this machine may be busy.
        Tolerance { late_percent: 14, early_percent: 2, late_us: 30_000, early_us: 8_000 }
    }

    fn arrives(&mut self, datagram: &[u8]) -> Result<(), StackError> {
        let header = EthRepr { dst: STACK_MAC, src: self.port.mac(), ethertype: EtherType::Ipv4 };
        send_frame(&mut *self.port, header, datagram, TxOffload::default())
    }

    fn sent(&mut self, until_us: u64) -> Result<Option<(u64, Segment)>, StackError> {
        loop {
            self.take_frames()?;
            if let Some(sent) = self.sent.pop_front() {
                return Ok(Some(sent));
            }
            let now = self.now_us();
            if now >= until_us {
                return Ok(None);
            }
            wait(&*self.port, until_us - now)?;
        }
    }

    fn call(&mut self, conn: ConnName, call: &Call, bytes: &[u8]) -> Result<Outcome, StackError> {
        call_until(call, || self.program.call(conn, call, bytes))
    }
}
