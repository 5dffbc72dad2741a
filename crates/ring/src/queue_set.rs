//! A queue set from either side: the four rings, the argument blocks and the interrupt, where
//! [`toe_abi::region::QueueSetLayout`] puts them, with entries encoded and decoded.
//!
//! The daemon holds an [`EngineQueueSet`], the host library a [`HostQueueSet`] (under a lock when threads share it).

use crate::engine_cursor::{EngineConsumer, EngineProducer, PushError};
use crate::host_cursor::{Full, HostConsumer, HostProducer};
use crate::irq::{EngineIrq, HostIrq, IrqLine, Signal};
use crate::region::{OutOfRange, Region};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use toe_abi::attach::FenceReason;
use toe_abi::command::{ConnectArgs, ListenArgs};
use toe_abi::entry::{BadEntry, Command, Completion, RawEntry, ReceiveCredit, Send};
use toe_abi::region::{
    ARG_LEN, CMD_ENTRIES, CPL_ENTRIES, QueueSetLayout, RCV_ENTRIES, RegionLayout, SND_ENTRIES,
};
use toe_abi::register::{EngineRegisters, HostRegisters};
use toe_base::Instant;
use zerocopy::IntoBytes;

/// Bytes of an argument block, as a copy.
pub type ArgBlock = [u8; ARG_LEN as usize];

/// Where a queue set's parts are in the region.
struct QueueSetOffsets {
    base: u64,
    engine_registers: u64,
    host_registers: u64,
}

impl QueueSetOffsets {
    fn new(layout: &RegionLayout, index: u8) -> Result<QueueSetOffsets, OutOfRange> {
        if u32::from(index) >= layout.queue_sets {
            return Err(OutOfRange);
        }
        let base = layout.queue_set(u32::from(index));
        Ok(QueueSetOffsets {
            base,
            engine_registers: base + QueueSetLayout::ENGINE_REGISTERS,
            host_registers: base + QueueSetLayout::HOST_REGISTERS,
        })
    }

    fn args(&self, slot: u32) -> u64 {
        self.base + QueueSetLayout::ARGS + u64::from(slot) * ARG_LEN
    }
}

/// The host's side of a queue set. After pushing, ring the session's [`crate::HostDoorbell`].
#[derive(Debug)]
pub struct HostQueueSet {
    region: Region,
    args: u64,
    cmd: HostProducer,
    snd: HostProducer,
    rcv: HostProducer,
    cpl: HostConsumer,
    irq: Arc<HostIrq>,
}

impl HostQueueSet {
    /// Queue set `index` of a region; `irq` is the descriptor that came with it.
    pub fn new(region: &Region, layout: &RegionLayout, index: u8, irq: OwnedFd) -> Result<Self, OutOfRange> {
        let offsets = QueueSetOffsets::new(layout, index)?;
        let producer = |ring, entries, register| {
            HostProducer::new(
                region.clone(),
                offsets.base + ring,
                entries,
                offsets.engine_registers + register,
            )
        };
        Ok(HostQueueSet {
            region: region.clone(),
            args: offsets.args(0),
            cmd: producer(QueueSetLayout::CMD, CMD_ENTRIES, EngineRegisters::CMD_HEAD)?,
            snd: producer(QueueSetLayout::SND, SND_ENTRIES, EngineRegisters::SND_HEAD)?,
            rcv: producer(QueueSetLayout::RCV, RCV_ENTRIES, EngineRegisters::RCV_HEAD)?,
            cpl: HostConsumer::new(
                region.clone(),
                offsets.base + QueueSetLayout::CPL,
                CPL_ENTRIES,
                offsets.host_registers + HostRegisters::CPL_HEAD,
            )?,
            irq: Arc::new(HostIrq::new(region.clone(), offsets.host_registers, irq.into())),
        })
    }

    /// Publishes a command that needs no argument block.
    pub fn push_command(&mut self, command: Command) -> Result<(), Full> {
        self.cmd.push(command.encode())
    }

    /// Publishes `Listen` with its argument block.
    pub fn push_listen(&mut self, token: u32, args: &ListenArgs) -> Result<(), Full> {
        self.push_with_args(Command::Listen { token }, args.as_bytes())
    }

    /// Publishes `Connect` with its argument block.
    pub fn push_connect(&mut self, token: u32, args: &ConnectArgs) -> Result<(), Full> {
        self.push_with_args(Command::Connect { token }, args.as_bytes())
    }

    fn push_with_args(&mut self, command: Command, args: &[u8]) -> Result<(), Full> {
        // Only a free place's block may be written: the engine may still be reading the others.
        if self.cmd.room(1) == 0 {
            return Err(Full);
        }
        let block = self.args + u64::from(self.cmd.next_slot()) * ARG_LEN;
        self.region.write(block, args).map_err(|OutOfRange| Full)?;
        self.cmd.push(command.encode())
    }

    pub fn push_send(&mut self, send: Send) -> Result<(), Full> {
        self.snd.push(send.encode().behind(self.cmd.count() as u16))
    }

    pub fn push_credit(&mut self, credit: ReceiveCredit) -> Result<(), Full> {
        self.rcv.push(credit.encode())
    }

    /// Entries of `snd` that can be pushed now; looks anew at how far the engine is where those known of are fewer than `least`.
    pub fn send_room(&mut self, least: u32) -> u32 {
        self.snd.room(least)
    }

    /// The next completion, or the fact that the engine wrote something that is none.
    pub fn pop_completion(&mut self) -> Option<Result<Completion, BadEntry>> {
        self.cpl.pop().map(Completion::decode)
    }

    /// Whether a completion waits: the second look after [`HostIrq::arm`].
    pub fn has_completion(&self) -> bool {
        self.cpl.has_entry()
    }

    /// Gives the places of popped completions back; `false` when there were none. Once a batch, and when `true` then
    /// [`crate::HostDoorbell::ring_for_head`].
    pub fn publish_head(&mut self) -> bool {
        self.cpl.publish_head()
    }

    /// Shared, because a thread sleeps on it without holding the queue set.
    pub fn irq(&self) -> &Arc<HostIrq> {
        &self.irq
    }
}

fn decode_send(raw: RawEntry) -> Result<Send, FenceReason> {
    Send::decode(raw).map_err(FenceReason::from)
}

/// The engine's side of a queue set. An `Err` from any method is a reason to fence the session.
///
/// A turn of the engine, for each queue set: (1) [`EngineQueueSet::commands`] says how many wait; (2) up to [`SND_ENTRIES`] ×
/// `pop_send` and [`RCV_ENTRIES`] × `pop_credit`, executed; (3) those commands, each popped and executed, and behind each what `pop_send`
/// then has; (4) [`EngineQueueSet::publish_heads`]. As `snd` and `rcv` hold no more than that, everything that was published before a
/// command is then executed before it. The number of commands is known before, so a host that writes without end cannot hold the
/// engine.
///
/// `S`: how the host is interrupted.
#[derive(Debug)]
pub struct EngineQueueSet<S = IrqLine> {
    region: Region,
    args: u64,
    cmd: EngineConsumer,
    snd: EngineConsumer,
    rcv: EngineConsumer,
    cpl: EngineProducer,
    irq: EngineIrq<Region, S>,
    /// Completions posted since the last [`EngineQueueSet::notify`].
    posted: u32,
}

impl<S: Signal> EngineQueueSet<S> {
    pub fn new(region: &Region, layout: &RegionLayout, index: u8, irq: S) -> Result<Self, OutOfRange> {
        let offsets = QueueSetOffsets::new(layout, index)?;
        let consumer = |ring, entries, register| {
            EngineConsumer::new(
                region.clone(),
                offsets.base + ring,
                entries,
                offsets.engine_registers + register,
            )
        };
        Ok(EngineQueueSet {
            region: region.clone(),
            args: offsets.args(0),
            cmd: consumer(QueueSetLayout::CMD, CMD_ENTRIES, EngineRegisters::CMD_HEAD)?,
            snd: consumer(QueueSetLayout::SND, SND_ENTRIES, EngineRegisters::SND_HEAD)?,
            rcv: consumer(QueueSetLayout::RCV, RCV_ENTRIES, EngineRegisters::RCV_HEAD)?,
            cpl: EngineProducer::new(
                region.clone(),
                offsets.base + QueueSetLayout::CPL,
                CPL_ENTRIES,
                offsets.host_registers + HostRegisters::CPL_HEAD,
            )?,
            irq: EngineIrq::new(region.clone(), offsets.host_registers, irq),
            posted: 0,
        })
    }

    /// The next command with a copy of its argument block (meaningful for `Listen` and `Connect`, zero otherwise).
    pub fn pop_command(&mut self) -> Option<Result<(Command, ArgBlock), FenceReason>> {
        let (raw, slot) = self.cmd.pop_with_slot()?;
        Some(self.decode_command(raw, slot))
    }

    fn decode_command(&self, raw: RawEntry, slot: u32) -> Result<(Command, ArgBlock), FenceReason> {
        let command = Command::decode(raw)?;
        let mut args = [0; ARG_LEN as usize];
        if matches!(command, Command::Listen { .. } | Command::Connect { .. }) {
            let block = self.args + u64::from(slot) * ARG_LEN;
            self.region.read(block, &mut args).map_err(|OutOfRange| FenceReason::BadArgument)?;
        }
        Ok((command, args))
    }

    /// How many commands wait. All entries that the host published before them are there.
    pub fn commands(&self) -> u32 {
        self.cmd.waiting()
    }

    /// The next bytes, unless they were published behind a command that was not popped.
    pub fn pop_send(&mut self) -> Option<Result<Send, FenceReason>> {
        let commands = self.cmd.count() as u16;
        let mut waits = false;
        let raw = self.snd.pop_if(|raw| {
            waits = raw.is_behind(commands);
            !waits
        });
        if waits && !self.cmd.has_entry() {
            // Who sees an entry sees all that was published before it: there is no such command.
            return Some(Err(FenceReason::BadArgument));
        }
        raw.map(decode_send)
    }

    /// The next bytes, whatever they are behind.
    pub fn pop_any_send(&mut self) -> Option<Result<Send, FenceReason>> {
        self.snd.pop().map(decode_send)
    }

    /// Whether bytes wait.
    pub fn has_send(&self) -> bool {
        self.snd.has_entry()
    }

    pub fn pop_credit(&mut self) -> Option<Result<ReceiveCredit, FenceReason>> {
        self.rcv.pop().map(|raw| ReceiveCredit::decode(raw).map_err(FenceReason::from))
    }

    /// Gives the places of all popped entries back to the host; once a turn.
    pub fn publish_heads(&mut self) {
        self.cmd.publish_head();
        self.snd.publish_head();
        self.rcv.publish_head();
    }

    /// Whether the host has published anything that was not popped: the second look after
    /// [`crate::EngineSleep::announce`].
    pub fn has_work(&self) -> bool {
        self.cmd.has_entry() || self.snd.has_entry() || self.rcv.has_entry()
    }

    /// Whether a command was published that was not popped. All entries that the host published before it are there.
    pub fn has_command(&self) -> bool {
        self.cmd.has_entry()
    }

    /// Posts a completion; `false`: the queue is full, try again later. Then [`EngineQueueSet::notify`], once a batch.
    pub fn post(&mut self, completion: Completion) -> Result<bool, FenceReason> {
        match self.cpl.push(completion.encode()) {
            Ok(()) => {
                self.posted = self.posted.saturating_add(1);
                Ok(true)
            }
            Err(PushError::Full) => Ok(false),
            Err(PushError::BadHead(_)) => Err(FenceReason::BadHead),
        }
    }

    /// How many completions can be posted now, or fewer: the host's head is looked at only when none seems to fit.
    pub fn room(&mut self) -> Result<u32, FenceReason> {
        self.cpl.room(1).map_err(|_| FenceReason::BadHead)
    }

    /// Whether a completion can be posted now: the second look, when completions wait for room.
    pub fn can_post(&mut self) -> Result<bool, FenceReason> {
        match self.cpl.is_full() {
            Ok(full) => Ok(!full),
            Err(_) => Err(FenceReason::BadHead),
        }
    }

    /// Interrupts the host if it sleeps and what was posted since the last call makes that due. `true` when it did.
    pub fn notify(&mut self, now: Instant) -> Result<bool, FenceReason> {
        let posted = core::mem::take(&mut self.posted);
        if posted == 0 {
            return Ok(false);
        }
        let full = !self.can_post()?;
        self.irq.posted(now, posted, full)
    }

    /// By what the host is interrupted, whether it has armed that or not.
    pub fn line(&self) -> &S {
        self.irq.line()
    }

    /// Interrupts that a moderated host is owed by `now`.
    pub fn expire_irq(&mut self, now: Instant) -> bool {
        self.irq.expire(now)
    }

    /// When [`EngineQueueSet::expire_irq`] is due; [`Instant::FAR_FUTURE`] for never.
    pub fn irq_deadline(&self) -> Instant {
        self.irq.deadline()
    }
}
