//! The engine as a stack to test, in virtual time: an hour passes in no time, and every moment is exact.

mod datagrams;
mod link;
mod memory;
mod program;

use crate::datagram::DatagramStack;
use crate::datagram::packet::Sent;
use crate::packet::{STACK_ADDR, Segment};
use crate::script::{Call, ConnName, Header, Setting, SettingName};
use crate::stack::{Outcome, Stack, StackError, Tolerance};
use link::{Outbox, STACK_MAC, arp, frame_around};
use memory::{LAYOUT, Memory};
use program::{Cx, Program, QS};
use std::collections::VecDeque;
use toe_base::{DatagramId, Instant, PortId};
use toe_engine::{
    AlgorithmName, EcnMode, Engine, EngineConfig, FastOpenMode, Link, NetworkChange, SynCookies,
};
use toe_wire::arp::ArpOperation;
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::link::{LinkCaps, RxOffload, TxOffload};

/// The engine has been running for a while: clocks that start at zero hide mistakes.
const START_US: u64 = 3_600_000_000;
/// Work that the engine may do without time passing, before it is taken to go round in circles.
const ROUNDS_MAX: u32 = 100_000;

/// What the engine's link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Nothing: each frame is a segment, with its checksum.
    Plain,
    /// It cuts large segments and fills checksums in.
    Offloading,
}

/// One engine, its link and a program.
#[derive(Debug)]
pub struct EngineStack {
    engine: Engine,
    memory: Memory,
    program: Program,
    port: PortId,
    kind: LinkKind,
    now: Instant,
    outbox: Outbox,
    sent: VecDeque<(u64, Segment)>,
    /// The program's UDP socket, and what was sent that is no segment.
    datagrams: Option<DatagramId>,
    packets: VecDeque<Sent>,
}

impl EngineStack {
    /// An engine as the script wants it.
    pub fn new(header: &Header, kind: LinkKind) -> Result<EngineStack, StackError> {
        let mut config = EngineConfig { flows_max: 64, ..EngineConfig::with_secret(*b"a packet script!") };
        let mut syn_retries = None;
        for setting in &header.setup {
            match setting.name {
                SettingName::SynRetries => syn_retries = setting.value.parse().ok(),
                _ => set_up(&mut config, setting)?,
            }
        }
        let mut engine = Engine::new(config);
        let caps = match kind {
            LinkKind::Plain => LinkCaps { tx_checksum: false, gso_max: 0, ..LinkCaps::default() },
            LinkKind::Offloading => LinkCaps { tx_checksum: true, gso_max: 65_000, ..LinkCaps::default() },
        };
        let port = engine.add_port(Link { mac: STACK_MAC, zone: 1, mtu: header.mtu, caps, vlan: None });
        engine.handle_network(NetworkChange::Address { port, addr: STACK_ADDR.into(), prefix_len: 24 });
        let none = || StackError("the engine takes no session".to_owned());
        let session = engine.open_session(toe_base::Cred::default(), LAYOUT).map_err(|_| none())?;
        engine.add_queue_set(session).ok_or_else(none)?;
        debug_assert_eq!(QS.0, 0);
        let mut stack = EngineStack {
            engine,
            memory: Memory::new(session),
            program: Program::new(session, syn_retries),
            port,
            kind,
            now: Instant::from_micros(START_US),
            outbox: Outbox::default(),
            sent: VecDeque::new(),
            datagrams: None,
            packets: VecDeque::new(),
        };
        stack.frame_arrives(&arp(ArpOperation::Request));
        stack.settle()?;
        Ok(stack)
    }

    fn frame_arrives(&mut self, frame: &[u8]) {
        let offload = RxOffload { checksum_ok: false, ..RxOffload::default() };
        let incoming = self.engine.handle_frame(self.now, self.port, frame, offload, &mut self.memory.host);
        self.memory.take(self.now, &mut self.engine, incoming);
    }

    /// Lets everything happen that can happen without time passing.
    fn settle(&mut self) -> Result<(), StackError> {
        for _ in 0..ROUNDS_MAX {
            let mut moved = self.engine.poll_local(self.now, &mut self.memory.host, 64) > 0;
            let sent =
                self.engine.poll_transmit(self.now, self.port, &mut self.outbox, &mut self.memory.host, 64);
            moved |= sent > 0;
            let mut cx = Cx { engine: &mut self.engine, memory: &mut self.memory, now: self.now };
            moved |= self.program.take_completions(&mut cx)?;
            for (frame, offload) in core::mem::take(&mut self.outbox.sent) {
                self.frame_sent(&frame, offload)?;
            }
            if !moved {
                return Ok(());
            }
        }
        Err(StackError("the engine never comes to rest".to_owned()))
    }

    fn frame_sent(&mut self, frame: &[u8], offload: TxOffload) -> Result<(), StackError> {
        let (header, packet) =
            EthRepr::parse(frame).map_err(|error| StackError(format!("a frame that is none: {error:?}")))?;
        if header.ethertype == EtherType::Arp {
            if header.dst.is_multicast() {
                self.frame_arrives(&arp(ArpOperation::Reply));
            }
            return Ok(());
        }
        if self.kind == LinkKind::Plain && (offload.segmentation.is_some() || offload.checksum.is_some()) {
            return Err(StackError(format!("the engine leaves {offload:?} to a link that does nothing")));
        }
        if header.ethertype == EtherType::Ipv6 {
            // Of connections scripts have none over IPv6, and of datagrams no answers.
            return Ok(());
        }
        let is_segment = Ipv4Repr::parse(packet).map_or(true, |(ip, _)| ip.protocol == Protocol::Tcp);
        if !is_segment && self.datagrams.is_some() {
            let is_summed_later = offload.checksum.is_some();
            self.packets.push_back(Sent { packet: packet.to_vec(), is_summed_later });
            return Ok(());
        }
        let segment = Segment::parse(packet, offload.checksum.is_some())
            .map_err(|error| StackError(format!("the engine sent a bad packet: {error}")))?;
        let mss = offload.segmentation.map_or(usize::MAX, |cut| usize::from(cut.mss));
        let now = self.now.as_micros();
        self.sent.extend(segment.cut(mss).into_iter().map(|piece| (now, piece)));
        Ok(())
    }
}

fn set_up(config: &mut EngineConfig, setting: &Setting) -> Result<(), StackError> {
    let Setting { name, value } = setting;
    let unknown =
        || StackError(format!("the engine has no setting {name:?} {value}: mark the script pending"));
    match (name, value.as_str()) {
        (SettingName::Ecn, "on") => config.tcp.ecn = EcnMode::Request,
        (SettingName::Ecn, "passive") => config.tcp.ecn = EcnMode::Accept,
        (SettingName::Ecn, "off") => config.tcp.ecn = EcnMode::Off,
        (SettingName::FastOpen, name) => {
            config.tcp.fast_open = FastOpenMode::from_name(name).ok_or_else(unknown)?;
        }
        (SettingName::SynCookies, name) => {
            config.tcp.syn_cookies = SynCookies::from_name(name).ok_or_else(unknown)?;
        }
        // Each script runs over a link that cuts and one that does not.
        (SettingName::Gso, _) => {}
        (SettingName::Rfc1337, "on") => config.tcp.rfc1337 = true,
        (SettingName::Rfc1337, "off") => config.tcp.rfc1337 = false,
        (SettingName::Congestion, name) => {
            config.tcp.congestion = AlgorithmName::from_name(name).ok_or_else(unknown)?;
        }
        _ => return Err(unknown()),
    }
    Ok(())
}

impl Stack for EngineStack {
    fn now_us(&self) -> u64 {
        self.now.as_micros()
    }

    fn tolerance(&self) -> Tolerance {
        Tolerance { late_percent: 0, early_percent: 0, late_us: 1_000, early_us: 1_000 }
    }

    fn arrives(&mut self, datagram: &[u8]) -> Result<(), StackError> {
        self.frame_arrives(&frame_around(datagram));
        self.settle()
    }

    fn sent(&mut self, until_us: u64) -> Result<Option<(u64, Segment)>, StackError> {
        loop {
            self.settle()?;
            if let Some(sent) = self.sent.pop_front() {
                return Ok(Some(sent));
            }
            let until = Instant::from_micros(until_us);
            let next = self.engine.poll_timeout();
            if next > until {
                self.now = self.now.max(until);
                return Ok(None);
            }
            self.now = self.now.max(next);
            self.engine.handle_timeout(self.now, &mut self.memory.host);
        }
    }

    fn datagrams(&mut self) -> Option<&mut dyn DatagramStack> {
        Some(self)
    }

    fn call(&mut self, conn: ConnName, call: &Call, bytes: &[u8]) -> Result<Outcome, StackError> {
        let mut cx = Cx { engine: &mut self.engine, memory: &mut self.memory, now: self.now };
        let outcome = self.program.call(&mut cx, conn, call, bytes)?;
        self.settle()?;
        Ok(outcome)
    }
}
