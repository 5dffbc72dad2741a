//! bind to a port of the system's choice. The kernel chooses one that nobody has; of engines' connections it does not know, and a
//! port that one of them has is refused to whoever binds to it by number later, as programs do that ask for a free port and hand it on.
//!
//! So probes are bound first, until one has a port that no engine's connection has, and the kernel is let choose among that one only
//! (IP_LOCAL_PORT_RANGE, ip(7), Linux 6.3): the socket's port is one that was chosen, not one that was asked for, and is chosen anew
//! when it is connected or listens again. Called by `calls::address`.

use crate::engines::is_in_use;
use crate::ffi::{fail, last_errno};
use crate::option_model::IP_LOCAL_PORT_RANGE;
use crate::real;
use crate::twin_name::twin_address;
use core::ffi::{c_int, c_void};
use libc::{sockaddr, socklen_t};
use toe::{Errno, sys};

/// So many of the kernel's choices may be engines' before one of those is taken.
const CHOICES_MAX: usize = 64;

/// bind(2) of a twin to port 0 of `addr`.
///
/// # Safety
/// As bind(2); `addr` has been read.
pub unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { free_port(fd, addr, len) } {
        Choice::Free(port) => {
            // SAFETY: as above.
            if let Some(result) = unsafe { bind_to_choice(fd, addr, len, port) } {
                return result;
            }
        }
        Choice::None => return fail(Errno::EADDRINUSE),
        Choice::Kernels => {}
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { real::bind(fd, addr, len) }
}

/// What there is to be bound to.
enum Choice {
    /// A port of the kernel's choice that no connection of an engine has.
    Free(u16),
    /// Connections of engines have all those that the kernel would give.
    None,
    /// The kernel's own answer is the right one.
    Kernels,
}

/// Looks for a port.
///
/// # Safety
/// As bind(2).
unsafe fn free_port(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Choice {
    if option(fd, libc::IP_BIND_ADDRESS_NO_PORT) != Some(0) {
        return Choice::Kernels;
    }
    // They stay bound until one is found, so that the kernel chooses another each time.
    let mut probes = Vec::new();
    for _ in 0..CHOICES_MAX {
        // SAFETY: the address is the caller's promise; the probe's descriptor is nobody else's.
        let probe = unsafe {
            let family = c_int::from((*addr).sa_family);
            let probe = real::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            if probe < 0 {
                return Choice::Kernels;
            }
            let probe = sys::Fd::from_raw(probe);
            if real::bind(probe.raw(), addr, len) < 0 {
                let is_last = last_errno() == Errno::EADDRINUSE && !probes.is_empty();
                return if is_last { Choice::None } else { Choice::Kernels };
            }
            probe
        };
        let Some(local) = twin_address(probe.raw()) else { return Choice::Kernels };
        if !is_in_use(local, probe.raw()) {
            return Choice::Free(local.port);
        }
        probes.push(probe);
    }
    Choice::Kernels
}

/// Lets the kernel choose among this port only. `None`: somebody has taken it meanwhile, or the kernel is too old.
///
/// # Safety
/// As bind(2).
unsafe fn bind_to_choice(fd: c_int, addr: *const sockaddr, len: socklen_t, port: u16) -> Option<c_int> {
    let before = option(fd, IP_LOCAL_PORT_RANGE)?;
    let only = u32::from(port) << 16 | u32::from(port);
    if !set_option(fd, IP_LOCAL_PORT_RANGE, only.cast_signed()) {
        return None;
    }
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { real::bind(fd, addr, len) };
    let errno = last_errno();
    set_option(fd, IP_LOCAL_PORT_RANGE, before);
    if result < 0 && errno == Errno::EADDRINUSE {
        return None;
    }
    if result < 0 {
        fail(errno);
    }
    Some(result)
}

fn option(fd: c_int, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    let pointer = (&raw mut value).cast::<c_void>();
    // SAFETY: the value is a local of the length that is given.
    let outcome = unsafe { real::getsockopt(fd, libc::SOL_IP, option, pointer, &mut len) };
    (outcome == 0).then_some(value)
}

fn set_option(fd: c_int, option: c_int, value: c_int) -> bool {
    let pointer = (&raw const value).cast::<c_void>();
    // SAFETY: as above.
    unsafe { real::setsockopt(fd, libc::SOL_IP, option, pointer, size_of::<c_int>() as socklen_t) == 0 }
}
