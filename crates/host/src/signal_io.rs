//! Signals of input and output: SIGIO, or what F_SETSIG says, of a socket with O_ASYNC, and SIGURG of any that has an owner.
//!
//! On Linux the kernel sends them when something has come; what comes for a socket of the engine no thread of the program may
//! see before it looks. So the first socket that asks for signals gets a thread of the library's that looks, edge-triggered, and
//! sends them (a program that never asks has none). Owner and signal are the anchor's, or the twin's: the kernel keeps
//! those for any file, so they are what all copies of the descriptor have. Called by the switch layer's fcntl and ioctl.

use crate::epoll::EpollSet;
use crate::socket::{Socket, stream};
use crate::{fd_table, helper, signals, sys};
use rustix::fd::RawFd;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use toe_abi::errno::Errno;

/// What is looked for. A program that is told of room for more is told of it once it has filled what there was.
const EVENTS: u32 = stream::IN | stream::OUT | stream::PRI | stream::RDHUP;
const EVENTS_AT_ONCE: usize = 64;

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_OWNER_TID: i32 = 0;
const F_OWNER_PGRP: i32 = 2;
/// `si_code`: of the others, such as POLL_IN, the kernel lets only itself make use.
const SI_SIGIO: i32 = -5;

/// The process that the thread is in: in the child of a fork there is none at first.
static THREAD_IN: AtomicI32 = AtomicI32::new(0);

/// `struct f_owner_ex`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owner {
    kind: i32,
    id: i32,
}

/// Whether a command of fcntl's says who is to be told, or how.
pub fn is_about_owner(command: i32) -> bool {
    matches!(command, libc::F_SETOWN | F_SETOWN_EX | F_SETSIG)
}

/// The program has set an owner, or O_ASYNC, of the socket behind `fd`, or has taken it back.
///
/// ENOMEM: there can be no thread.
pub fn follow(fd: RawFd, socket: &'static Socket) -> Result<(), Errno> {
    let is_wanted = socket.tells_by_signals() || owner_of(fd).id != 0;
    let set = EpollSet::of_signals();
    if !is_wanted {
        set.stop_watching(fd, socket);
        return Ok(());
    }
    let me = sys::pid();
    if THREAD_IN.swap(me, Ordering::AcqRel) != me
        && helper::start("toe-signals", &[], move || tell(set)).is_err()
    {
        THREAD_IN.store(0, Ordering::Release);
        return Err(Errno::ENOMEM);
    }
    // From here on what comes for it comes to this process, until another one makes a call. A claim that fails shows as readiness.
    let _ = socket.settle();
    set.watch_from_now(fd, socket, EVENTS);
    Ok(())
}

/// `to` has the owner and the signal of `from`. Whether that has an owner.
pub fn copy(from: RawFd, to: RawFd) -> Result<bool, Errno> {
    let owner = owner_of(from);
    let signal = sys::fcntl(from, F_GETSIG, 0)?;
    sys::fcntl(to, F_SETSIG, signal.into())?;
    sys::fcntl(to, F_SETOWN_EX, (&raw const owner).expose_provenance() as libc::c_long)?;
    Ok(owner.id != 0)
}

fn tell(set: &'static EpollSet) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_AT_ONCE];
    // Where the last urgent byte was that was told of.
    let mut urgent: HashMap<RawFd, u64> = HashMap::new();
    loop {
        let found = {
            let _inside = signals::Inside::enter();
            set.wait_for_sockets(&mut events)
        };
        for event in &events[..found.unwrap_or(0)] {
            let fd = event.u64 as RawFd;
            let Some(socket) = fd_table::get(fd) else { continue };
            let now = socket.urgent_at();
            if event.events & stream::PRI != 0 && now.is_some() && urgent.get(&fd).copied() != now {
                urgent.extend(now.map(|at| (fd, at)));
                send(owner_of(fd), &Info { signal: libc::SIGURG, ..Info::default() });
            }
            if socket.tells_by_signals() {
                send_io(fd, event.events);
            }
        }
    }
}

/// Whom the kernel would tell of `fd`; id 0: nobody.
fn owner_of(fd: RawFd) -> Owner {
    let mut owner = Owner::default();
    let pointer = (&raw mut owner).expose_provenance() as libc::c_long;
    match sys::fcntl(fd, F_GETOWN_EX, pointer) {
        Ok(_) => owner,
        Err(_) => Owner::default(),
    }
}

/// F_GETOWN, of which the system call gives a group's number as if it were an error's.
pub fn owner(fd: RawFd) -> i32 {
    let owner = owner_of(fd);
    if owner.kind == F_OWNER_PGRP { -owner.id } else { owner.id }
}

/// `siginfo_t`, as far as these signals fill it in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    _pad: i32,
    band: i64,
    fd: i32,
    _rest: [i32; 25],
}

const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());

impl Default for Info {
    fn default() -> Info {
        Info { signal: libc::SIGIO, errno: 0, code: SI_SIGIO, _pad: 0, band: 0, fd: 0, _rest: [0; 25] }
    }
}

/// The events that Linux tells with a signal when these have come (band_table of fs/fcntl.c).
fn band(events: u32) -> i64 {
    let band = if events & stream::ERR != 0 {
        libc::POLLERR
    } else if events & stream::HUP != 0 {
        libc::POLLHUP | libc::POLLERR
    } else if events & stream::IN != 0 {
        libc::POLLIN | libc::POLLRDNORM
    } else {
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND
    };
    band.into()
}

fn send_io(fd: RawFd, events: u32) {
    let owner = owner_of(fd);
    let signal = sys::fcntl(fd, F_GETSIG, 0).unwrap_or(0);
    // Plain SIGIO also when no more of the other fit, as Linux does.
    if signal == 0 || !send(owner, &Info { signal, band: band(events), fd, ..Info::default() }) {
        send(owner, &Info::default());
    }
}

/// Sends a signal to an owner; to a group of processes without a description.
fn send(owner: Owner, info: &Info) -> bool {
    if owner.id == 0 {
        return true;
    }
    let (of, id, number) =
        (std::ptr::from_ref(info).expose_provenance(), owner.id as usize, info.signal as usize);
    // SAFETY: needed because neither rustix nor the C library queues a signal with such a description. It is live and as long as
    // the kernel reads; the other arguments are numbers.
    let sent = unsafe {
        match owner.kind {
            F_OWNER_TID => sys::raw(libc::SYS_rt_tgsigqueueinfo, [sys::pid() as usize, id, number, of, 0, 0]),
            F_OWNER_PGRP => sys::raw(libc::SYS_kill, [owner.id.wrapping_neg() as usize, number, 0, 0, 0, 0]),
            _ => sys::raw(libc::SYS_rt_sigqueueinfo, [id, number, of, 0, 0, 0]),
        }
    };
    sent == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_is_told_as_linux_does() {
        assert_eq!(band(stream::IN | stream::OUT), 0x41);
        assert_eq!(band(stream::OUT), 0x304);
        assert_eq!(band(stream::ALL), 8);
    }
}
