//! System calls that the library makes for itself, past anything that a switch layer may have put in their place.
//!
//! Everything goes through rustix or [`raw`], which make the call themselves: a function such as `close`, `ppoll` or even
//! `syscall` of the C library may be the switch layer's, which would call this library back. For the same reason a
//! descriptor is held as [`Fd`] and not as the standard library's `OwnedFd`, whose drop calls `close`.

use crate::errno::from_os;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use toe_abi::errno::Errno;

/// A descriptor that this library owns.
#[derive(Debug)]
pub struct Fd(RawFd);

impl Fd {
    /// Takes over `fd`, which must be open and nobody else's to close.
    pub fn from_raw(fd: RawFd) -> Fd {
        Fd(fd)
    }

    pub fn raw(&self) -> RawFd {
        self.0
    }

    /// Lets go of it without closing.
    pub fn into_raw(self) -> RawFd {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        Fd(fd.into_raw_fd())
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrow(self.0)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = close(self.0);
    }
}

/// `fd` for the length of one call. A number that is not open gets EBADF from the kernel.
pub fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    if fd < 0 {
        // -1 is the one number that `BorrowedFd` cannot hold; no descriptor has the largest number.
        // SAFETY: as below.
        return unsafe { BorrowedFd::borrow_raw(RawFd::MAX) };
    }
    // SAFETY: needed because the program names descriptors by number. The result is used for one system call, which
    // checks the number itself; no memory safety hangs on the descriptor being open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Closes `fd`.
pub fn close(fd: RawFd) -> Result<(), Errno> {
    syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]).map(|_| ())
}

/// A system call, made by the machine's instruction: what the kernel returns, an error as its negative number.
///
/// # Safety
/// As the call asks of its arguments.
#[cfg(target_arch = "x86_64")]
pub unsafe fn raw(number: libc::c_long, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: needed because there is no other way past the C library. The kernel's convention: the number in rax, the
    // arguments in these registers, rcx and r11 lost; what the call does with memory is the caller's promise.
    unsafe {
        core::arch::asm!(
            "syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack),
        );
    }
    result
}

/// As on x86-64.
///
/// # Safety
/// As the call asks of its arguments.
#[cfg(target_arch = "aarch64")]
pub unsafe fn raw(number: libc::c_long, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: as on x86-64; the number in x8, the arguments from x0 on, where the result comes, too.
    unsafe {
        core::arch::asm!(
            "svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b, in("x2") c, in("x3") d,
            in("x4") e, in("x5") f, options(nostack),
        );
    }
    result
}

static FILTERED: AtomicBool = AtomicBool::new(false);

/// System calls of the process may be filtered: only reading, writing, polling and futexes are made from here on.
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

pub(crate) fn note_filter(there_is: bool) {
    FILTERED.store(there_is, Ordering::Relaxed);
}

fn syscall(number: libc::c_long, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: needed for the calls that rustix has no safe form of (a signal mask beside a timeout; a descriptor by
    // number). Each caller in this file passes pointers to live memory of the length that the call takes, or null.
    let result = unsafe { raw(number, args) };
    usize::try_from(result).map_err(|_| Errno(result.unsigned_abs() as u16))
}

/// Sets the C library's `errno`: what a `toe_` function leaves behind.
pub fn set_errno(errno: Errno) {
    // SAFETY: needed to set errno; `__errno_location` returns this thread's own, always valid.
    unsafe { *libc::__errno_location() = i32::from(errno.0) };
}

/// The C library's `errno`.
pub fn last_errno() -> Errno {
    // SAFETY: as above.
    Errno(unsafe { *libc::__errno_location() } as u16)
}

/// As the kernel takes it.
pub(crate) fn timespec(timeout: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    }
}

/// Bytes of the kernel's signal mask.
pub(crate) const SIGSET_LEN: usize = 8;

/// `ppoll(2)` that looks, and does not wait.
pub fn poll_now(fds: &mut [libc::pollfd]) -> Result<usize, Errno> {
    // The kernel writes the time left into it.
    let mut time = timespec(Duration::ZERO);
    let time = std::ptr::from_mut(&mut time) as usize;
    syscall(libc::SYS_ppoll, [fds.as_mut_ptr() as usize, fds.len(), time, 0, SIGSET_LEN, 0])
}

/// Whether there is nothing more to receive from a socket, and never will be.
pub fn is_at_end(fd: RawFd) -> bool {
    use rustix::io::Errno as Of;
    use rustix::net::RecvFlags;
    let looked = rustix::net::recv(borrow(fd), &mut [0u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    looked.map_or_else(|error| !matches!(error, Of::AGAIN | Of::INTR), |(bytes, _)| bytes == 0)
}

/// `epoll_ctl(2)`.
pub fn epoll_ctl(epfd: RawFd, op: i32, fd: RawFd, event: Option<libc::epoll_event>) -> Result<(), Errno> {
    let event_at = event.as_ref().map_or(0, |e| std::ptr::from_ref(e) as usize);
    syscall(libc::SYS_epoll_ctl, [epfd as usize, op as usize, fd as usize, event_at, 0, 0]).map(|_| ())
}

/// `fcntl(2)` with an integer argument.
pub fn fcntl(fd: RawFd, command: i32, argument: libc::c_long) -> Result<i32, Errno> {
    syscall(libc::SYS_fcntl, [fd as usize, command as usize, argument as usize, 0, 0, 0])
        .map(|result| result as i32)
}

/// Descriptors that a program can name in select(2): FD_SETSIZE.
const SELECT_MAX: u64 = 1024;

/// Copies `fd` to a number that programs do not look at, so that theirs stay small and dense; but to none of the highest, because a fork
/// copies the table of descriptors up to the highest that is open.
pub fn dup_to_high(fd: impl AsFd) -> Result<Fd, Errno> {
    static BASE: OnceLock<RawFd> = OnceLock::new();
    let base = *BASE.get_or_init(|| (descriptors_max() / 4 * 3).min(SELECT_MAX) as RawFd);
    rustix::io::fcntl_dupfd_cloexec(fd, base).map(Fd::from).map_err(from_os)
}

/// How many descriptors the process may have (RLIMIT_NOFILE).
pub fn descriptors_max() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Copies `fd` to the lowest free number, for the library.
pub fn dup_anywhere(fd: impl AsFd) -> Result<Fd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map(Fd::from).map_err(from_os)
}

/// Moves `fd` to a high number; stays where it is when there is none.
pub fn move_to_high(fd: Fd) -> Fd {
    dup_to_high(&fd).unwrap_or(fd)
}

/// Copies `fd` to the lowest free number: a descriptor for the program.
pub fn dup_lowest(fd: impl AsFd, cloexec: bool) -> Result<RawFd, Errno> {
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    fcntl(fd.as_fd().as_raw_fd(), command, 0)
}

/// `number` as text, in `room`.
pub fn decimal(number: u32, room: &mut [u8; 11]) -> &CStr {
    let mut left = number;
    let mut at = room.len() - 1;
    room[at] = 0;
    loop {
        at -= 1;
        room[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    CStr::from_bytes_with_nul(&room[at..]).unwrap_or_default()
}

/// Makes `to` a copy of `fd`, whatever it was before.
pub fn dup_onto(fd: impl AsFd, to: RawFd, cloexec: bool) -> Result<(), Errno> {
    let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
    syscall(libc::SYS_dup3, [fd.as_fd().as_raw_fd() as usize, to as usize, flags as usize, 0, 0, 0])
        .map(|_| ())
}

/// Monotonic time.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Monotonic time in ms, at the price of a few ns and a resolution of a few ms.
pub fn coarse_ms() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// This process, by asking the kernel: the C library's answer may be remembered from before a vfork.
pub fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The user as which the other end of a Unix socket began to listen (SO_PEERCRED). rustix takes it for an error that a process of another space of
/// process numbers has none here (0): no program in a container with a space of its own could attach.
pub fn peer_uid(socket: impl AsFd) -> Result<u32, Errno> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, to, len) = (socket.as_fd().as_raw_fd() as usize, &raw mut peer, &raw mut len);
    let what = [libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize];
    syscall(libc::SYS_getsockopt, [fd, what[0], what[1], to as usize, len as usize, 0])?;
    Ok(peer.uid)
}

/// Raises SIGPIPE in the calling thread, as a write to a closed connection does.
pub fn raise_sigpipe() {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    signal_thread(thread, libc::SIGPIPE as usize);
}

/// Bytes that this process may map for a session, when there is a limit to its address space (RLIMIT_AS): half of what is
/// left, so that the program can go on growing. 0: no limit.
pub fn address_room() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::As).current.map_or(0, |limit| room_below(limit, 0))
}

/// The same below a `limit`, once `released` bytes that are mapped now are not any more.
pub fn room_below(limit: u64, released: u64) -> u64 {
    // The first number is the size of the address space in pages.
    let mut text = [0; 32];
    let read = rustix::fs::open(c"/proc/self/statm", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())
        .map(Fd::from)
        .and_then(|file| rustix::io::read(&file, &mut text));
    let len = read.unwrap_or(0);
    let number = text[..len].split(|byte| *byte == b' ').next().unwrap_or_default();
    let pages: u64 = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    let used = (pages * rustix::param::page_size() as u64).saturating_sub(released);
    (limit.saturating_sub(used) / 2).max(1)
}

/// `siginfo_t`, as the kernel passes it.
pub type SignalInfo = [u64; 16];

/// Sends the calling thread a signal, as `info` describes it. Its handler has run when this returns, unless it is blocked.
pub fn queue_signal(signal: usize, info: &SignalInfo) {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let at = std::ptr::from_ref(info) as usize;
    let _ = syscall(libc::SYS_rt_tgsigqueueinfo, [pid() as usize, thread as usize, signal, at, 0, 0]);
}

/// Runs the handlers of what waits for the calling thread and `mask` lets in. They may end the thread.
pub fn let_signals_in(mask: u64) {
    let time = timespec(Duration::ZERO);
    let (time, mask) = (std::ptr::from_ref(&time) as usize, std::ptr::from_ref(&mask) as usize);
    // SAFETY: two locals.
    let _ = unsafe { crate::sleep::let_in(libc::SYS_ppoll, &[0, 0, time, mask, SIGSET_LEN, 0]) };
}

/// Blocks all signals of the calling thread; those that were before.
pub fn block_signals() -> u64 {
    let (all, mut before) = (!0u64, 0u64);
    let (all, at) = (std::ptr::from_ref(&all) as usize, std::ptr::from_mut(&mut before) as usize);
    let _ = syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, all, at, SIGSET_LEN, 0, 0]);
    before
}

/// Blocks these signals of the calling thread, and no others. The handlers of what waits run, and may end the thread.
pub fn set_signal_mask(mask: u64) {
    let at = std::ptr::from_ref(&mask) as usize;
    let args = [libc::SIG_SETMASK as usize, at, 0, SIGSET_LEN, 0, 0];
    // SAFETY: a local.
    let _ = unsafe { crate::sleep::let_in(libc::SYS_rt_sigprocmask, &args) };
}

/// The kernel's part of a signal mask.
pub fn mask_of(set: &libc::sigset_t) -> u64 {
    // SAFETY: needed because the C library's type is opaque. It begins with the kernel's mask of 64 bits.
    unsafe { std::ptr::from_ref(set).cast::<u64>().read_unaligned() }
}

/// Sends a thread of this process a signal.
pub fn signal_thread(thread: i32, signal: usize) {
    let _ = syscall(libc::SYS_tgkill, [pid() as usize, thread as usize, signal, 0, 0, 0]);
}

/// Whether an interrupted call that Linux restarts under SA_RESTART should go on waiting, when nobody was told which signal it
/// was ([`crate::signals::all_restart`]).
///
/// The kernel restarts `recv`, `send`, `accept` and `connect` after a handler that was installed with SA_RESTART; a
/// parked wait here is a `ppoll`, which is never restarted. It goes on only when *every* handler of the process
/// has SA_RESTART. With one that has not, the call returns EINTR, which programs that install such handlers expect.
pub fn should_restart() -> bool {
    // Not asked: the faults (7, 8, 11, 4), which do not interrupt a wait, and the C library's own 32 and 33.
    let mut askable = (1..=64usize).filter(|signal| ![4, 7, 8, 11, 32, 33].contains(signal));
    askable.all(|signal| {
        let mut action = [0u64; 4];
        let at = action.as_mut_ptr() as usize;
        // The kernel's own layout: handler, flags, restorer, mask. Numbers that cannot be asked about have none.
        let known = syscall(libc::SYS_rt_sigaction, [signal, 0, at, SIGSET_LEN, 0, 0]).is_ok();
        let [handler, flags, ..] = action;
        !known || handler <= 1 || flags & libc::SA_RESTART as u64 != 0
    })
}

/// Bytes that a file of this process may have (RLIMIT_FSIZE), memory files included. Who writes beyond gets SIGXFSZ, which no
/// call of the library may earn its program.
pub fn file_room() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Whether the kernel's descriptor has O_NONBLOCK.
pub fn is_nonblocking(fd: RawFd) -> bool {
    rustix::fs::fcntl_getfl(borrow(fd)).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Sets or clears the kernel descriptor's O_NONBLOCK when it is not already so.
pub fn set_nonblocking(fd: RawFd, on: bool) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(borrow(fd))
        && flags.contains(rustix::fs::OFlags::NONBLOCK) != on
    {
        let mut wanted = flags;
        wanted.set(rustix::fs::OFlags::NONBLOCK, on);
        let _ = rustix::fs::fcntl_setfl(borrow(fd), wanted);
    }
}
