//! The whole of OpenTOE as a stack to test, in real time: an engine's process with a TAP link, and a program under the
//! switch. The far end sits on the kernel's side of the TAP. Needs root, and the programs that `make programs` builds.

mod engine;
mod program;

use crate::far_link;
use crate::linux::call_until;
use crate::namespace::enter_alone;
use crate::packet::{FAR_ADDR, STACK_ADDR, Segment};
use crate::run::{Failure, run};
use crate::script::{Call, ConnName, Script, Setting};
use crate::stack::{Outcome, Stack, StackError, Tolerance};
use engine::EngineProcess;
use program::Program;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};
use toe_port::{Driver, Port, PortSpec};
use toe_wire::MacAddr;
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::eth::{self, EthRepr, EtherType};
use toe_wire::link::{PartialChecksum, RxOffload, Segmentation, TxOffload};
use toe_wire::{Ipv4Repr, Protocol, TcpRepr, tcp};

const LINK: &str = "script0";
/// How long the engine may take to say its hardware address.
const ARP_LIMIT: Duration = Duration::from_secs(5);

struct WholeStack {
    // The program goes before the engine, and both before the link.
    program: Program,
    engine: EngineProcess,
    port: Box<dyn Port>,
    stack_mac: MacAddr,
    start: Instant,
    sent: VecDeque<(u64, Segment)>,
}

/// Whether an engine's process can be started as the script wants it.
pub fn can_set_up(setup: &[Setting]) -> bool {
    setup.iter().all(|setting| engine::flag_of(setting).is_some())
}

/// Goes through a script with the programs of this folder, in a thread and a namespace of its own.
pub fn run_on_whole(script: &Script, programs: &Path) -> Result<Result<(), Failure>, StackError> {
    std::thread::scope(|scope| {
        let on_stack = || {
            let mut stack = WholeStack::new(programs, &script.header.setup)?;
            Ok(run(script, &mut stack))
        };
        match scope.spawn(on_stack).join() {
            Ok(result) => result,
            Err(_) => Err(StackError("the thread of the script panicked".to_owned())),
        }
    })
}

impl WholeStack {
    fn new(programs: &Path, setup: &[Setting]) -> Result<WholeStack, StackError> {
        enter_alone()?;
        let engine = EngineProcess::start(programs, LINK, setup)?;
        let spec = PortSpec { driver: Driver::Packet, interface: LINK.to_owned(), vlan: None, faults: None };
        let port = toe_port::open(&spec).map_err(|error| StackError::new("opening the link", error))?;
        let program = Program::start(&programs.join("toe"), &engine.name)?;
        let mut stack = WholeStack {
            program,
            engine,
            port,
            stack_mac: MacAddr::BROADCAST,
            start: Instant::now(),
            sent: VecDeque::new(),
        };
        // A call that does nothing is answered when the program runs.
        stack.program.call(
            ConnName(ConnName::MAX - 1),
            &Call::Set(crate::script::SocketOption::NoDelay, 0),
            &[],
        )?;
        stack.ask_for_mac()?;
        Ok(stack)
    }

    /// The engine's hardware address.
    fn ask_for_mac(&mut self) -> Result<(), StackError> {
        let start = Instant::now();
        while self.stack_mac == MacAddr::BROADCAST {
            if start.elapsed() > ARP_LIMIT {
                return Err(StackError("the engine does not answer ARP".to_owned()));
            }
            self.send_arp(ArpOperation::Request)?;
            far_link::wait(&*self.port, 20_000)?;
            self.take_frames()?;
        }
        Ok(())
    }

    fn send_arp(&mut self, operation: ArpOperation) -> Result<(), StackError> {
        let message = ArpRepr {
            operation,
            sender_mac: self.port.mac(),
            sender_ip: FAR_ADDR,
            target_mac: self.stack_mac,
            target_ip: STACK_ADDR,
        };
        let mut bytes = vec![0; message.header_len()];
        message.emit(&mut bytes);
        self.send_frame(EtherType::Arp, &bytes)
    }

    fn send_frame(&mut self, ethertype: EtherType, packet: &[u8]) -> Result<(), StackError> {
        let header = EthRepr { dst: self.stack_mac, src: self.port.mac(), ethertype };
        let mtu = self.port.mtu() as usize;
        if packet.len() <= mtu {
            return far_link::send_frame(&mut *self.port, header, packet, TxOffload::default());
        }
        // As Linux itself would send so much: in one piece, cut by nobody on the way.
        let mut packet = packet.to_vec();
        let offload = as_large_segment(&mut packet, mtu).ok_or_else(|| {
            StackError(format!("a packet of {} octets that is no TCP segment", packet.len()))
        })?;
        far_link::send_frame(&mut *self.port, header, &packet, offload)
    }

    fn take_frames(&mut self) -> Result<(), StackError> {
        let now = self.now_us();
        let mut frames: Vec<(Vec<u8>, RxOffload)> = Vec::new();
        far_link::receive(&mut *self.port, &mut frames)?;
        for (frame, offload) in frames {
            let Ok((header, packet)) = EthRepr::parse(&frame) else { continue };
            match header.ethertype {
                EtherType::Arp => {
                    let Ok(message) = ArpRepr::parse(packet) else { continue };
                    if message.sender_ip == STACK_ADDR {
                        self.stack_mac = message.sender_mac;
                    }
                    if message.operation == ArpOperation::Request && message.target_ip == FAR_ADDR {
                        self.send_arp(ArpOperation::Reply)?;
                    }
                }
                EtherType::Ipv4 if packet.get(9) == Some(&6) => {
                    let segment = Segment::parse(packet, offload.checksum_ok)
                        .map_err(|error| StackError(format!("the engine sent a bad packet: {error}")))?;
                    let mss = offload.coalesced_mss.map_or(usize::MAX, usize::from);
                    self.sent.extend(segment.cut(mss).into_iter().map(|piece| (now, piece)));
                }
                _ => {}
            }
        }
        Ok(())
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
        segmentation: Some(Segmentation { header_len, mss, is_v6: false }),
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
        self.send_frame(EtherType::Ipv4, datagram)?;
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
            far_link::wait(&*self.port, until_us - now)?;
        }
    }

    fn call(&mut self, conn: ConnName, call: &Call, octets: &[u8]) -> Result<Outcome, StackError> {
        call_until(call, || match call {
            Call::State(_) => self.engine.state(conn).map(Outcome::State),
            Call::Info(name, _) => self.engine.info(conn, *name).map(Outcome::Number),
            call => self.program.call(conn, call, octets),
        })
    }
}
