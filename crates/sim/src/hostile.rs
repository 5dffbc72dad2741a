//! Hosts that mean harm: entries at random, mostly of types that exist and about names that do, with ranges and anchors
//! that may be anybody's. Each breach ends the session; the engine must not mind, nor anybody else notice.

use crate::node::{QS, Session, address_of};
use crate::program::Cx;
use crate::random::Random;
use crate::tally::Tally;
use std::net::{Ipv4Addr, SocketAddr};
use toe_abi::attach::FenceReason;
use toe_abi::command::{ConnectArgs, ListenArgs, NO_HANDLE};
use toe_abi::entry::{Command, Completion, FlowOption, MemRange, RawEntry, ReceiveCredit, Send};
use toe_base::{AnchorHandle, ChannelId, Cred, FlowId, ListenerId, NetNs};
use toe_engine::ControlEvent;
use toe_engine::control::names::Twin;
use zerocopy::IntoBytes;

/// What a hostile host remembers.
#[derive(Debug, Default)]
pub struct Mischief {
    /// Names that it was told of.
    names: Vec<u32>,
    anchors: Vec<AnchorHandle>,
}

/// Names that it remembers, and anchors that it takes.
const NAMES_MAX: usize = 64;
const ANCHORS_MAX: usize = 32;
/// What its kernel sockets are called: those of ordinary programs have the numbers of their anchors.
pub const HOSTILE_TWINS: u64 = 1 << 40;
/// Where ordinary programs listen, and connect from.
pub const PORTS_OF_OTHERS: core::ops::Range<u16> = 1..8000;

impl Mischief {
    /// Its descriptors are closed.
    pub fn take_anchors(&mut self) -> Vec<AnchorHandle> {
        std::mem::take(&mut self.anchors)
    }
}

impl Session {
    /// Takes what it is told, and does some harm. `Err`: it is to be fenced.
    pub fn do_harm(&mut self, cx: &mut Cx<'_>) -> Result<(), FenceReason> {
        self.wake_scheduled = false;
        // Now and then it takes no completions.
        while !cx.random.one_in(20)
            && let Some((completion, _)) = cx.memory.next(self.id)
        {
            self.learn(completion);
        }
        for _ in 0..cx.random.between(1, 12) {
            cx.tallies.add(Tally::HostileEntries);
            self.harm_once(cx)?;
        }
        Ok(())
    }

    fn learn(&mut self, completion: Completion) {
        let name = match completion {
            Completion::CommandResult { id, .. } => id,
            Completion::Accepted { flow, .. }
            | Completion::Connected { flow, .. }
            | Completion::Data { flow, .. } => flow.raw(),
            Completion::ConnectionsWait { listener } => listener.0.raw(),
            _ => return,
        };
        let Some(mischief) = &mut self.mischief else { return };
        if mischief.names.len() == NAMES_MAX {
            mischief.names.remove(0);
        }
        mischief.names.push(name);
    }

    fn some_name(&self, random: &mut Random) -> FlowId {
        let known = self.mischief.as_ref().map_or(&[][..], |m| &m.names);
        let raw = match random.below(4) {
            0 => random.below(64),
            1 => random.word() as u32,
            _ if known.is_empty() => 0,
            _ => random.pick(known),
        };
        FlowId::from_raw(raw)
    }

    fn some_anchor(&mut self, cx: &mut Cx<'_>) -> AnchorHandle {
        let Some(mischief) = &mut self.mischief else { return AnchorHandle(NO_HANDLE) };
        match cx.random.below(8) {
            0 => AnchorHandle(cx.random.below(100)),
            1 => AnchorHandle(cx.random.word() as u32),
            2..5 if !mischief.anchors.is_empty() => cx.random.pick(&mischief.anchors),
            _ if mischief.anchors.len() < ANCHORS_MAX => {
                let taken = cx.engine.take_anchor(self.id);
                mischief.anchors.extend(taken);
                taken.unwrap_or(AnchorHandle(NO_HANDLE))
            }
            _ => cx.random.pick(&mischief.anchors),
        }
    }

    fn harm_once(&mut self, cx: &mut Cx<'_>) -> Result<(), FenceReason> {
        let mut block = [0; 64];
        match cx.random.below(20) {
            0 => {
                let raw = RawEntry { word0: cx.random.word(), word1: cx.random.word() };
                let command = Command::decode(raw)?;
                for byte in &mut block {
                    *byte = cx.random.word() as u8;
                }
                self.harm_command(cx, command, &block)
            }
            1..5 => self.harm_send(cx),
            5..8 => {
                let len = if cx.random.one_in(50) { cx.random.word() as u32 } else { 0 };
                let flow = self.some_name(cx.random);
                cx.engine.handle_credit(cx.clock, self.id, ReceiveCredit { flow, len })
            }
            8..11 => {
                let anchor = self.some_anchor(cx);
                let args = self.connect_args(cx, anchor);
                let (remote, local) = (args.remote.to_socket_addr(), args.local.to_socket_addr());
                cx.event(self, None, "harm", format_args!("to {remote:?} from {local:?}"));
                block.copy_from_slice(args.as_bytes());
                let token = cx.random.below(9);
                self.harm_command(cx, Command::Connect { token }, &block)
            }
            11 => {
                let anchor = self.some_anchor(cx);
                block.copy_from_slice(self.listen_args(cx, anchor).as_bytes());
                self.harm_command(cx, Command::Listen { token: 1 }, &block)
            }
            12 => {
                // Descriptors close whenever they like.
                let anchor =
                    self.mischief.as_ref().filter(|m| !m.anchors.is_empty()).map(|m| m.anchors.clone());
                if let Some(anchors) = anchor {
                    let anchor = cx.random.pick(&anchors);
                    cx.engine.handle_control(cx.clock, ControlEvent::LastClose(anchor), cx.memory);
                }
                Ok(())
            }
            _ => {
                let command = self.some_command(cx);
                self.harm_command(cx, command, &block)
            }
        }
    }

    fn harm_command(
        &mut self,
        cx: &mut Cx<'_>,
        command: Command,
        block: &[u8; 64],
    ) -> Result<(), FenceReason> {
        cx.event(self, None, "harm", format_args!("{command:?}"));
        cx.engine.handle_command(cx.clock, self.id, QS, command, block, cx.memory)
    }

    fn harm_send(&mut self, cx: &mut Cx<'_>) -> Result<(), FenceReason> {
        let layout = self.layout;
        let len = 1 + cx.random.any_size(100_000);
        let room = layout.send_len.saturating_sub(u64::from(len)).max(1) as u32;
        let offset = match cx.random.below(60) {
            0 => cx.random.word() >> 24,
            1 => layout.receive_offset() + u64::from(cx.random.below(1000)),
            2 => layout.len() - 1,
            _ => layout.send_offset() + u64::from(cx.random.below(room)),
        };
        let (more, urgent) = (cx.random.one_in(4), cx.random.one_in(9));
        let (data, end_of_record) = (MemRange { offset, len }, len.is_multiple_of(5));
        let send = Send { flow: self.some_name(cx.random), data, more, urgent, end_of_record };
        cx.event(self, None, "harm", format_args!("{send:?}"));
        cx.engine.handle_send(cx.clock, self.id, send)
    }

    fn some_place(&self, cx: &mut Cx<'_>) -> SocketAddr {
        let to = match cx.random.below(6) {
            0 => Ipv4Addr::LOCALHOST,
            1 => Ipv4Addr::from(cx.random.word() as u32),
            2 => Ipv4Addr::UNSPECIFIED,
            _ => address_of(cx.random.below(3) as usize),
        };
        // Where ordinary programs listen, mostly.
        let port =
            if cx.random.one_in(5) { cx.random.word() as u16 } else { 7000 + cx.random.below(4) as u16 };
        SocketAddr::from((to, port))
    }

    /// A kernel socket that it shows, or says that it has shown: a good one only at ports that no ordinary program has,
    /// because the kernel gives it no other.
    fn some_twin(&self, cx: &mut Cx<'_>, at: SocketAddr, listens: bool) -> u32 {
        let good = Twin { listens, ..Twin::bound(at.into(), HOSTILE_TWINS, Cred::default(), cx.clock) };
        let twin = match cx.random.below(8) {
            0 => return cx.random.below(4),
            1 => return NO_HANDLE,
            2 => Twin { netns: NetNs(1), ..good },
            3 => Twin { local: self.some_place(cx).into(), listens: false, ..good },
            4 => Twin { listens: false, ..good },
            _ => Twin { shares_port: cx.random.one_in(2), ..good },
        };
        if PORTS_OF_OTHERS.contains(&twin.local.port) && twin.netns == NetNs::default() {
            return NO_HANDLE;
        }
        let identity = HOSTILE_TWINS + u64::from(cx.random.below(8));
        let handle = cx.engine.add_twin(self.id, Twin { identity, ..twin });
        if cx.random.one_in(8) {
            cx.engine.handle_control(cx.clock, ControlEvent::SocketGone(identity, cx.clock), cx.memory);
        }
        handle.unwrap_or(NO_HANDLE)
    }

    fn connect_args(&self, cx: &mut Cx<'_>, anchor: AnchorHandle) -> ConnectArgs {
        let local = cx.random.one_in(3).then(|| self.some_place(cx));
        let twin = local.map_or(NO_HANDLE, |local| self.some_twin(cx, local, false));
        let (local, remote) = (local.map(Into::into).unwrap_or_default(), self.some_place(cx).into());
        ConnectArgs { remote, local, anchor: anchor.0, twin, ..ConnectArgs::default() }
    }

    fn listen_args(&self, cx: &mut Cx<'_>, anchor: AnchorHandle) -> ListenArgs {
        let backlog = cx.random.any_size(1 << 20);
        let local = self.some_place(cx);
        let twin = self.some_twin(cx, local, true);
        ListenArgs { local: local.into(), backlog, anchor: anchor.0, twin, ..ListenArgs::default() }
    }

    fn some_command(&mut self, cx: &mut Cx<'_>) -> Command {
        let flow = self.some_name(cx.random);
        let listener = ListenerId(self.some_name(cx.random));
        let options = [
            FlowOption::NoDelay,
            FlowOption::Cork,
            FlowOption::KeepAlive,
            FlowOption::KeepIdleSecs,
            FlowOption::KeepIntervalSecs,
            FlowOption::KeepCount,
            FlowOption::UserTimeoutMs,
            FlowOption::SynRetries,
            FlowOption::ReceiveWindowMax,
            FlowOption::ReceiveShut,
        ];
        let value = if cx.random.one_in(2) { cx.random.below(3) } else { cx.random.word() as u32 };
        match cx.random.below(10) {
            0..3 => Command::AcceptCredit { listener, count: value },
            3..5 => Command::Accept { flow, anchor: self.some_anchor(cx), fd: value },
            5 => Command::ShutdownSend { flow },
            6 if cx.random.one_in(2) => Command::Close { flow, abort: cx.random.one_in(2) },
            6 => Command::CloseRetained { flow, anchor: self.some_anchor(cx), abort: cx.random.one_in(2) },
            7 if value % 8 == 7 => Command::EndListener { listener },
            7 => Command::CloseListener { listener, last: cx.random.one_in(2) },
            8 if cx.random.one_in(2) => Command::TakeConnection { listener },
            8 if value % 4 == 3 => Command::DeferAccept { listener, secs: value },
            8 => {
                // Nothing that it writes there is anybody else's.
                cx.memory.scribble_word(
                    self.id,
                    flow.slot(),
                    u64::from(value % 8) << 32 | u64::from(flow.raw()),
                );
                Command::ChannelReady { channel: ChannelId(value) }
            }
            _ => Command::SetOption { flow, option: cx.random.pick(&options), value },
        }
    }
}
