//! epoll_create, epoll_ctl, epoll_wait and their relatives. The program's epoll descriptor is the kernel's, with the
//! kernel's descriptors in it; the engine's sockets are added to it by the host library (`toe::epoll`), which also waits:
//! even when all in the set is the kernel's, a thread that waits has to learn of a socket of the engine that another
//! thread adds.

use super::cancel::point;
use super::wait_limits::{mask_at, timeout_ms, timeout_of};
use crate::ffi::{fail, guarded, number, status};
use crate::replacing;
use crate::replacing::or_again;
use crate::socket_state::{self, State};
use crate::tables::is_new;
use crate::{adopt, fork, policy, real};
use core::ffi::c_int;
use core::time::Duration;
use libc::{epoll_event, sigset_t, timespec};
use toe::epoll::KernelOp;
use toe::{Errno, epoll, fd_table, program_memory};

/// # Safety
/// None beyond epoll_create(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the call takes a number only.
    made(unsafe { real::epoll_create(size) })
}

/// # Safety
/// None beyond epoll_create1(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the call takes a number only.
    made(unsafe { real::epoll_create1(flags) })
}

fn made(fd: c_int) -> c_int {
    if fd >= 0 {
        is_new(fd);
        if !policy::disabled() && !fork::in_vfork_child() {
            guarded((), || epoll::created(fd));
        }
    }
    fd
}

/// # Safety
/// As epoll_ctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    adopt::on_use(fd);
    if !socket_state::get(fd).has(State::TWIN) {
        // SAFETY: the program's arguments, handed on.
        return unsafe {
            or_again(fd, control_either(epoll, op, fd, event), || control_either(epoll, op, fd, event))
        };
    }
    guarded(-1, || {
        // The kernel's registration and the note of it.
        let _apart = replacing::apart(fd);
        // SAFETY: as above.
        unsafe { control_either(epoll, op, fd, event) }
    })
}

/// epoll_ctl of the engine's socket, or the kernel's.
///
/// # Safety
/// As epoll_ctl(2).
unsafe fn control_either(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if fd_table::get(fd).is_some() {
        // SAFETY: the program's arguments, handed on.
        return guarded(-1, || status(unsafe { control(epoll, op, fd, event) }));
    }
    if fd_table::epoll_set(fd).is_some() && !policy::disabled() {
        // SAFETY: as above.
        return guarded(-1, || status(unsafe { control_set(epoll, op, fd, event) }));
    }
    let asked = match socket_state::get(fd).has(State::IN_EPOLL) {
        true => guarded(KernelOp::Ask(op), || {
            // What is not there the kernel finds out.
            let is_there = program_memory::check(event, 1).is_ok();
            // SAFETY: it is there; any bits are events.
            let events = if is_there { unsafe { event.read_unaligned() }.events } else { 0 };
            epoll::kernel_op(epoll, fd, op, events)
        }),
        false => KernelOp::Ask(op),
    };
    let asked = match asked {
        KernelOp::Ask(asked) => asked,
        KernelOp::Answer(result) => return status(result),
    };
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { real::epoll_ctl(epoll, asked, fd, event) };
    if result == 0 && !policy::disabled() {
        guarded((), || {
            // SAFETY: the kernel has read the event without a fault, when the operation has one.
            let event = (op != libc::EPOLL_CTL_DEL).then(|| unsafe { event.read_unaligned() });
            epoll::note_kernel_fd(epoll, fd, op, event);
            socket_state::add(fd, State::IN_EPOLL);
        });
    }
    result
}

/// epoll_ctl of another epoll set.
///
/// # Safety
/// As epoll_ctl(2).
unsafe fn control_set(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Result<(), Errno> {
    let event = match op {
        libc::EPOLL_CTL_DEL => None,
        // SAFETY: the caller's promise; any bits are events.
        _ => Some(unsafe { program_memory::read(event)? }),
    };
    epoll::ctl_set(epoll, op, fd, event)?;
    socket_state::add(fd, State::IN_EPOLL);
    Ok(())
}

/// # Safety
/// As epoll_ctl(2).
unsafe fn control(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Result<(), Errno> {
    // Linux reads the event before it looks at the descriptors.
    if op != libc::EPOLL_CTL_DEL {
        program_memory::check(event, 1)?;
    }
    if fd_table::epoll_set(epoll).is_none() {
        // Not known to be one: the kernel says what is wrong with it, if something is.
        epoll::check(epoll)?;
    }
    if op == libc::EPOLL_CTL_DEL {
        return epoll::ctl_del(epoll, fd);
    }
    // SAFETY: the caller's promise; not null, says the check above.
    let event = unsafe { event.read_unaligned() };
    match op {
        libc::EPOLL_CTL_ADD => epoll::ctl_add(epoll, fd, event),
        libc::EPOLL_CTL_MOD => epoll::ctl_mod(epoll, fd, event),
        _ => Err(Errno::EINVAL),
    }
}

/// Events for which a program's memory is looked at before a wait: one page of them.
const ROOM_LOOKED_AT: usize = 4096 / size_of::<epoll_event>();

/// Linux: EP_MAX_EVENTS.
const EVENTS_MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();

/// Waits in a set that the host library knows.
///
/// # Safety
/// `events` has room for `count` events.
unsafe fn wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Result<Option<Duration>, Errno>,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let mask = match unsafe { mask_at(mask) } {
        Ok(mask) => mask,
        Err(error) => return fail(error),
    };
    let Some(room) = usize::try_from(count).ok().filter(|room| (1..=EVENTS_MAX).contains(room)) else {
        return fail(Errno::EINVAL);
    };
    // What it has room for beyond the first few is looked at when it is needed, by Linux too.
    let first = room.min(ROOM_LOOKED_AT);
    if program_memory::check(events, first).is_err() {
        return fail(program_memory::EFAULT);
    }
    // SAFETY: the caller's promise. Events are plain data that the program has to give memory for, not values.
    let events = unsafe { core::slice::from_raw_parts_mut(events, room) };
    point(-1, || {
        number(timeout.and_then(|time| epoll::wait(epoll, events, time, mask)).map(|ready| ready as c_int))
    })
}

/// # Safety
/// As epoll_wait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if fd_table::epoll_set(epoll).is_none() {
            return real::epoll_wait(epoll, events, count, timeout);
        }
        wait(epoll, events, count, Ok(timeout_ms(timeout)), core::ptr::null())
    }
}

/// # Safety
/// As epoll_pwait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if fd_table::epoll_set(epoll).is_none() {
            return real::epoll_pwait(epoll, events, count, timeout, mask);
        }
        wait(epoll, events, count, Ok(timeout_ms(timeout)), mask)
    }
}

/// # Safety
/// As epoll_pwait2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if fd_table::epoll_set(epoll).is_none() {
            return real::epoll_pwait2(epoll, events, count, timeout, mask);
        }
        wait(epoll, events, count, timeout_of(timeout), mask)
    }
}
