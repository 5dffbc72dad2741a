//! The program that steers frames (`bpf/steer.bpf.c`), in the kernel: loaded once for a port, attached to its interface
//! each time that this one appears. It ends with the process, however that ends: nobody else has it open.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;

use aya::maps::{MapData, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfError};

use super::steering::KernelMaps;

/// As `build.rs` compiled it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));
const PROGRAM: &str = "steer";

/// The loaded program.
pub(super) struct Program {
    bpf: Ebpf,
    sockets: XskMap<MapData>,
    attached: Option<FdLink>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("attached", &self.attached).finish_non_exhaustive()
    }
}

/// How frames meet the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attached {
    /// In the interface's driver.
    Native,
    /// Behind it, for drivers that cannot: a copy more for each frame.
    Generic,
}

impl Program {
    /// Loads it; the maps are for whoever steers.
    pub(super) fn load() -> io::Result<(Program, KernelMaps)> {
        let mut bpf = Ebpf::load(OBJECT).map_err(|error| io_error(&error))?;
        let program: &mut Xdp = bpf
            .program_mut(PROGRAM)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        program.load().map_err(|error| io_error(&error))?;
        let sockets = bpf.take_map("sockets").ok_or(io::ErrorKind::InvalidData)?;
        let sockets = XskMap::try_from(sockets).map_err(|error| io_error(&error))?;
        let maps = KernelMaps::take(&mut bpf).map_err(|error| io_error(&error))?;
        Ok((Program { bpf, sockets, attached: None }, maps))
    }

    /// Frames of the receive queue `queue` that are the engine's go to `socket`.
    pub(super) fn serve(&mut self, queue: u32, socket: &impl AsRawFd) -> io::Result<()> {
        self.sockets.set(queue, socket.as_raw_fd(), 0).map_err(|error| io_error(&error))
    }

    /// Receive queues that can be served.
    pub(super) fn queues_max(&self) -> u32 {
        self.sockets.len()
    }

    /// Attaches it to an interface, in the driver if that can do it.
    pub(super) fn attach(&mut self, index: u32) -> io::Result<Attached> {
        self.detach();
        match self.attach_as(index, XdpMode::Driver) {
            Ok(()) => Ok(Attached::Native),
            Err(error) if is_final(&error) => Err(error),
            Err(_) => self.attach_as(index, XdpMode::Skb).map(|()| Attached::Generic),
        }
    }

    fn attach_as(&mut self, index: u32, mode: XdpMode) -> io::Result<()> {
        let program: &mut Xdp = self
            .bpf
            .program_mut(PROGRAM)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let link = program.attach_to_if_index(index, mode).map_err(|error| io_error(&error))?;
        let link = program.take_link(link).map_err(|error| io_error(&error))?;
        // Of the other kind (Linux before 5.9) it would stay behind when the process is killed.
        let link = FdLink::try_from(link).map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
        self.attached = Some(link);
        Ok(())
    }

    /// Frames go past the program again.
    pub(super) fn detach(&mut self) {
        self.attached = None;
    }
}

/// Another mode would not help.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV)
    )
}

/// The kernel's answer inside of the loader's error, which is told apart by its number; else its text.
fn io_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(errno) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(errno);
        }
        let inner = match error.downcast_ref::<EbpfError>() {
            Some(EbpfError::ProgramError(inner)) => Some(inner as &(dyn std::error::Error + 'static)),
            Some(EbpfError::MapError(inner)) => Some(inner as _),
            _ => match error.downcast_ref::<ProgramError>() {
                Some(ProgramError::LoadError { io_error, .. }) => Some(io_error as _),
                Some(ProgramError::SyscallError(inner)) => Some(&inner.io_error as _),
                Some(ProgramError::MapError(inner)) => Some(inner as _),
                _ => error.source(),
            },
        };
        cause = inner;
    }
    io::Error::other(error.to_string())
}
