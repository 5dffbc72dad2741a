//! The whole of OpenTOE as a stack to test, in real time: an engine's process with a link, and a program under the
//! switch. The far end sits on the kernel's side of a TAP, or at the other end of a veth. Needs root, and the programs that
//! `make programs` builds.

mod engine;
mod link;
mod program;

pub use link::LinkKind;

use crate::linux::call_until;
use crate::namespace::enter_alone;
use crate::packet::Segment;
use crate::run::{Failure, run};
use crate::script::{Call, ConnName, Script, Setting, SettingName};
use crate::stack::{Outcome, Stack, StackError, Tolerance};
use engine::EngineProcess;
use link::FarEnd;
use program::Program;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};
use toe_wire::eth::{self, EtherType};
use toe_wire::link::{Cut, PartialChecksum, Segmentation, TxOffload};
use toe_wire::{Ipv4Repr, Protocol, TcpRepr, tcp};

struct WholeStack {
    // The program goes before the engine, and both before the link.
    program: Program,
    engine: EngineProcess,
    far: FarEnd,
    start: Instant,
    sent: VecDeque<(u64, Segment)>,
}

/// Whether an engine's process can be started as the script wants it.
pub fn can_set_up(setup: &[Setting]) -> bool {
    setup.iter().all(|setting| setting.name == SettingName::Gso || engine::flag_of(setting).is_some())
}

/// Goes through a script with the programs of this folder, in a thread and a namespace of its own.
pub fn run_on_whole(
    script: &Script,
    programs: &Path,
    link: LinkKind,
) -> Result<Result<(), Failure>, StackError> {
    std::thread::scope(|scope| {
        let on_stack = || {
            let mut stack = WholeStack::new(programs, link, &script.header.setup)?;
            Ok(run(script, &mut stack))
        };
        match scope.spawn(on_stack).join() {
            Ok(result) => result,
            Err(_) => Err(StackError("the thread of the script panicked".to_owned())),
        }
    })
}

impl WholeStack {
    fn new(programs: &Path, link: LinkKind, setup: &[Setting]) -> Result<WholeStack, StackError> {
        enter_alone()?;
        link.prepare()?;
        let engine = EngineProcess::start(programs, link, setup)?;
        let far = FarEnd::open(link)?;
        let program = Program::start(&programs.join("toe"), &engine.name)?;
        let mut stack = WholeStack { program, engine, far, start: Instant::now(), sent: VecDeque::new() };
        // A call that does nothing is answered when the program runs.
        stack.program.call(
            ConnName(ConnName::MAX - 1),
            &Call::Set(crate::script::SocketOption::NoDelay, 0),
            &[],
        )?;
        stack.far.find_stack()?;
        Ok(stack)
    }

    fn take_frames(&mut self) -> Result<(), StackError> {
        let (now, sent) = (self.now_us(), &mut self.sent);
        self.far.take(|packet, offload| {
            let segment = Segment::parse(packet, offload.checksum_ok)
                .map_err(|error| StackError(format!("the engine sent a bad packet: {error}")))?;
            let mss = offload.coalesced_mss.map_or(usize::MAX, usize::from);
            sent.extend(segment.cut(mss).into_iter().map(|piece| (now, piece)));
            Ok(())
        })
    }
}

/// A segment that is larger than the link's packets, as a link takes it that cuts them.
fn as_large_segment(packet: &mut [u8], mtu: usize) -> Option<TxOffload> {
    let (ip, _) = Ipv4Repr::parse(packet).ok().filter(|(ip, _)| ip.protocol == Protocol::Tcp)?;
    let tcp_at = ip.header_len();
    let data_at = tcp_at + TcpRepr::parse(&packet[tcp_at..]).ok()?.0.header_len();
    let transport = &mut packet[tcp_at..];
    let len = u16::try_from(transport.len()).ok()?;
    tcp::store_pseudo_sum(transport, ip.src, ip.dst, len);
    let start = (eth::HEADER_LEN + tcp_at) as u16;
    let header_len = (eth::HEADER_LEN + data_at) as u16;
    let mss = (mtu - data_at) as u16;
    Some(TxOffload {
        checksum: Some(PartialChecksum { start, offset: tcp::CHECKSUM_OFFSET }),
        segmentation: Some(Segmentation { header_len, mss, cut: Cut::TcpV4 }),
    })
}

impl Stack for WholeStack {
    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn tolerance(&self) -> Tolerance {
        Tolerance { late_percent: 10, early_percent: 2, late_us: 60_000, early_us: 10_000 }
    }

    fn arrives(&mut self, datagram: &[u8]) -> Result<(), StackError> {
        let mtu = self.far.mtu();
        if datagram.len() <= mtu {
            self.far.send(EtherType::Ipv4, datagram, TxOffload::default())?;
        } else {
            // As Linux itself would send so much: in one piece, cut by nobody on the way.
            let mut packet = datagram.to_vec();
            let offload = as_large_segment(&mut packet, mtu).ok_or_else(|| {
                StackError(format!("a packet of {} bytes that is no TCP segment", packet.len()))
            })?;
            self.far.send(EtherType::Ipv4, &packet, offload)?;
        }
        // The engine is another process: what the program asks next comes after this segment.
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
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
            self.far.wait(until_us - now)?;
        }
    }

    fn call(&mut self, conn: ConnName, call: &Call, bytes: &[u8]) -> Result<Outcome, StackError> {
        call_until(call, || match call {
            Call::State(_) => self.engine.state(conn).map(Outcome::State),
            Call::Info(name, _) => self.engine.info(conn, *name).map(Outcome::Number),
            call => self.program.call(conn, call, bytes),
        })
    }
}
