//! Engine wakes host: the `IRQ_ARMED` register of a queue set, and a socket for datagrams.
//!
//! | engine | host |
//! |---|---|
//! | 1. store completions (release) | 1. store `IRQ_ARMED` = 1 |
//! | 2. fence, sequentially consistent | 2. fence, sequentially consistent |
//! | 3. load `IRQ_ARMED`; 1 and an interrupt due: store 0, send a datagram | 3. look at `cpl` again; empty: sleep |
//!
//! The reasoning is that of [`crate::doorbell`]. The engine stores 0 *before* it writes, so whatever it clears is
//! followed by a wake-up; the host takes the datagrams *before* it arms, never between arming and sleeping.
//!
//! Why datagrams. Both holders of an eventfd share one set of flags and one count: a hostile host could make it blocking
//! and full, and the engine's next write would never return. A pipe has one lock for both ends, and a reader holds it
//! while the kernel copies to his memory, which he can let wait for ever (memory whose pages come from a file system or
//! a userfaultfd of his): then a writer waits for that lock, non-blocking or not. Who sends a datagram takes no lock that
//! a receiver holds while he copies, shares no flags with him, and gets no SIGPIPE when he is gone. Each sender has a
//! socket of his own, so what one does to his (shut it down, fill it) is nothing to the others.
//!
//! Used by the daemon ([`EngineIrq`]) and the host library ([`HostIrq`]).

use crate::moderation::{IrqSettings, Moderation};
use crate::region::Region;
use crate::sync::{Ordering, Words, fence};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::{Path, PathBuf};
use toe_abi::attach::FenceReason;
use toe_abi::register::{HostRegisters, IrqMode};
use toe_base::Instant;

/// Datagrams that one drain takes: more than the kernel keeps for a receiver (net.unix.max_dgram_qlen, 10 unless set otherwise).
const DRAIN_MAX: usize = 64;

fn datagram_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

/// A new interrupt: the engine's end, and the receiving socket for the host (sent beside `Reply::QueueSet`).
///
/// `name` is what the receiving socket is bound to as long as the engine's end lives. It must lie in a directory into
/// which only the engine can reach: whoever reaches it can interrupt the host.
pub fn irq_pair(name: PathBuf) -> Result<(IrqLine, OwnedFd)> {
    let host_end = datagram_socket()?;
    rustix::net::bind(&host_end, &SocketAddrUnix::new(&name)?)?;
    match IrqSender::to(&name) {
        Ok(sender) => Ok((IrqLine { sender, name }, host_end)),
        Err(errno) => {
            remove(&name);
            Err(errno)
        }
    }
}

/// If it stays, its directory goes with the engine. By the C library, whose call removes nothing but files where there is one
/// that does not: the engine's thread may make no other.
fn remove(name: &Path) {
    let _ = std::fs::remove_file(name);
}

/// Wakes the host.
pub trait Signal {
    fn signal(&self);
}

/// A sending end of an interrupt.
#[derive(Debug)]
pub struct IrqSender(OwnedFd);

impl From<OwnedFd> for IrqSender {
    fn from(fd: OwnedFd) -> IrqSender {
        IrqSender(fd)
    }
}

impl IrqSender {
    fn to(name: &std::path::Path) -> Result<IrqSender> {
        let socket = datagram_socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(name)?)?;
        Ok(IrqSender(socket))
    }
}

impl Signal for IrqSender {
    /// Never blocks and raises no signal. A receiver that is full is readable anyway; one that is gone needs no interrupt.
    ///
    /// By write(2), which programs that filter their system calls still may.
    fn signal(&self) {
        let _ = rustix::io::write(&self.0, &[1]);
    }
}

/// The engine's end of an interrupt.
#[derive(Debug)]
pub struct IrqLine {
    sender: IrqSender,
    name: PathBuf,
}

impl IrqLine {
    /// A sending end for a process that is to wake the host as well: what it does to its own does not touch this one.
    pub fn another(&self) -> Result<OwnedFd> {
        IrqSender::to(&self.name).map(|sender| sender.0)
    }
}

impl Signal for IrqLine {
    fn signal(&self) {
        self.sender.signal();
    }
}

impl Drop for IrqLine {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// The host's end of an interrupt: readable once one came.
#[derive(Debug)]
pub struct IrqReceiver(OwnedFd);

impl IrqReceiver {
    /// Makes it quiet; `true` when there had been an interrupt. Does not block.
    pub fn drain(&self) -> Result<bool> {
        let mut any = false;
        // Bounded: what is left over makes the next sleep a short one.
        for _ in 0..DRAIN_MAX {
            match rustix::io::read(&self.0, &mut [0; 1]) {
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
pub struct EngineIrq<M = Region, S = IrqLine> {
    memory: M,
    registers: u64,
    sender: S,
    moderation: Moderation,
}

impl<M: Words, S: Signal> EngineIrq<M, S> {
    pub fn new(memory: M, registers: u64, sender: S) -> EngineIrq<M, S> {
        EngineIrq { memory, registers, sender, moderation: Moderation::default() }
    }

    /// Where it is sent from.
    pub fn line(&self) -> &S {
        &self.sender
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
