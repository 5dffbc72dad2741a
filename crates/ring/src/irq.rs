//! Engine wakes host: the `IRQ_ARMED` register of a queue set, and a pipe.
//!
//! | engine | host |
//! |---|---|
//! | 1. store completions (release) | 1. store `IRQ_ARMED` = 1 |
//! | 2. fence, sequentially consistent | 2. fence, sequentially consistent |
//! | 3. load `IRQ_ARMED`; 1 and an interrupt due: store 0, write the pipe | 3. look at `cpl` again; empty: sleep |
//!
//! The reasoning is that of [`crate::doorbell`]. The engine stores 0 *before* it writes, so whatever it clears is
//! followed by a wake-up; the host makes the pipe quiet *before* it arms, never between arming and sleeping.
//!
//! Why a pipe and not an eventfd: both holders of an eventfd share one set of flags and one count. A hostile host
//! could make it blocking and full, and the engine's next write would never return (a write has no "do not wait" of
//! its own, as a read has). The ends of a pipe have flags of their own.
//!
//! Used by the daemon ([`EngineIrq`]) and the host library ([`HostIrq`]).

use crate::moderation::{IrqSettings, Moderation};
use crate::region::Region;
use crate::sync::{Ordering, Words, fence};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::pipe::PipeFlags;
use toe_abi::attach::FenceReason;
use toe_abi::register::{HostRegisters, IrqMode};
use toe_base::Instant;

/// Interrupts not yet taken that a pipe remembers. One would do.
const PIPE_OCTETS: usize = 4096;

/// A new interrupt pipe: the engine's end, and the one for the host (sent beside `Reply::QueueSet`).
pub fn irq_pair() -> Result<(IrqSender, OwnedFd)> {
    let (host_end, engine_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // One page instead of sixteen; a refusal changes nothing.
    let _ = rustix::pipe::fcntl_setpipe_size(&engine_end, PIPE_OCTETS);
    Ok((IrqSender(engine_end), host_end))
}

/// Wakes the host.
pub trait Signal {
    fn signal(&self);
}

/// The engine's end of an interrupt pipe. The process must ignore SIGPIPE, as Rust programs do unless told otherwise.
#[derive(Debug)]
pub struct IrqSender(OwnedFd);

impl From<OwnedFd> for IrqSender {
    fn from(fd: OwnedFd) -> IrqSender {
        IrqSender(fd)
    }
}

impl IrqSender {
    /// Another writing end of the same pipe, with flags of its own, for a process that is to wake the host as well: what
    /// it does to its end does not touch this one.
    pub fn reopen(&self) -> Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&self.0));
        rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
    }
}

impl Signal for IrqSender {
    /// Never blocks. A full pipe is readable anyway; a host that is gone needs no interrupt.
    fn signal(&self) {
        let _ = rustix::io::write(&self.0, &[1]);
    }
}

/// The host's end of an interrupt pipe: readable once an interrupt came.
#[derive(Debug)]
pub struct IrqReceiver(OwnedFd);

impl IrqReceiver {
    /// Makes it quiet; `true` when there had been an interrupt. Does not block.
    pub fn drain(&self) -> Result<bool> {
        let mut octets = [0; 64];
        let mut any = false;
        // Bounded: what is left over makes the next sleep a short one.
        for _ in 0..PIPE_OCTETS / octets.len() {
            match rustix::io::read(&self.0, &mut octets) {
                Ok(n) if n < octets.len() => return Ok(any || n > 0),
                Ok(_) => any = true,
                Err(Errno::AGAIN) => return Ok(any),
                Err(errno) => return Err(errno),
            }
        }
        Ok(any)
    }
}

impl From<OwnedFd> for IrqReceiver {
    fn from(fd: OwnedFd) -> IrqReceiver {
        IrqReceiver(fd)
    }
}

impl AsFd for IrqReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The host's side: what a thread does around its sleep.
#[derive(Debug)]
pub struct HostIrq<M = Region, R = IrqReceiver> {
    memory: M,
    /// Where the queue set's host registers begin.
    registers: u64,
    receiver: R,
}

impl<M: Words, R> HostIrq<M, R> {
    pub fn new(memory: M, registers: u64, receiver: R) -> HostIrq<M, R> {
        HostIrq { memory, registers, receiver }
    }

    /// Steps 1 and 2: asks for an interrupt. After this look at `cpl` again, and sleep on [`HostIrq::receiver`] only
    /// if it is empty.
    pub fn arm(&self) {
        self.memory.store_u32(self.registers + HostRegisters::IRQ_ARMED, 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// No interrupt is needed after all. Only while no other thread sleeps on this queue set; leaving it armed costs
    /// one needless interrupt.
    pub fn disarm(&self) {
        self.memory.store_u32(self.registers + HostRegisters::IRQ_ARMED, 0, Ordering::Relaxed);
    }

    /// Chooses when interrupts come.
    pub fn set(&self, settings: IrqSettings) {
        let store =
            |register, value| self.memory.store_u32(self.registers + register, value, Ordering::Relaxed);
        store(HostRegisters::IRQ_COUNT, settings.count);
        store(HostRegisters::IRQ_AFTER_US, settings.after_us);
        store(HostRegisters::IRQ_MODE, settings.mode.to_raw());
    }

    /// What becomes readable. Drain it after waking and before arming again.
    pub fn receiver(&self) -> &R {
        &self.receiver
    }
}

/// The engine's side.
#[derive(Debug)]
pub struct EngineIrq<M = Region, S = IrqSender> {
    memory: M,
    registers: u64,
    sender: S,
    moderation: Moderation,
}

impl<M> EngineIrq<M> {
    /// The pipe's writing end.
    pub fn sender(&self) -> &IrqSender {
        &self.sender
    }
}

impl<M: Words, S: Signal> EngineIrq<M, S> {
    pub fn new(memory: M, registers: u64, sender: S) -> EngineIrq<M, S> {
        EngineIrq { memory, registers, sender, moderation: Moderation::default() }
    }

    /// Steps 2 and 3, after `count` completions were posted (once a batch); `full`: no more fit into `cpl`. `true`
    /// when the host was interrupted.
    pub fn posted(
        &mut self,
        now: Instant,
        count: u32,
        full: bool,
    ) -> core::result::Result<bool, FenceReason> {
        if !self.is_armed() {
            self.moderation.reset();
            return Ok(false);
        }
        let settings = self.settings()?;
        let due = self.moderation.posted(now, count, full, settings);
        if due {
            self.interrupt();
        }
        Ok(due)
    }

    /// At or after [`EngineIrq::deadline`]: interrupts the host if it still sleeps.
    pub fn expire(&mut self, now: Instant) -> bool {
        if !self.moderation.is_due(now) {
            return false;
        }
        let armed = self.is_armed();
        if armed {
            self.interrupt();
        } else {
            self.moderation.reset();
        }
        armed
    }

    /// When [`EngineIrq::expire`] is due; [`Instant::FAR_FUTURE`] for never.
    pub fn deadline(&self) -> Instant {
        self.moderation.deadline()
    }

    fn is_armed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.memory.load_u32(self.registers + HostRegisters::IRQ_ARMED, Ordering::Relaxed) != 0
    }

    fn settings(&self) -> core::result::Result<IrqSettings, FenceReason> {
        let load = |register| self.memory.load_u32(self.registers + register, Ordering::Relaxed);
        let mode = IrqMode::from_raw(load(HostRegisters::IRQ_MODE)).ok_or(FenceReason::BadIrqMode)?;
        Ok(IrqSettings {
            mode,
            count: load(HostRegisters::IRQ_COUNT),
            after_us: load(HostRegisters::IRQ_AFTER_US),
        })
    }

    fn interrupt(&mut self) {
        self.memory.store_u32(self.registers + HostRegisters::IRQ_ARMED, 0, Ordering::Relaxed);
        self.sender.signal();
        self.moderation.reset();
    }
}
