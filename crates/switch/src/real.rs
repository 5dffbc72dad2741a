//! The next definition of every call that this library interposes (usually glibc's), found with `dlsym(RTLD_NEXT)`.
//!
//! All are looked up when the library is loaded ([`resolve_all`]); a call that another library's constructor makes
//! earlier is looked up at that moment. Used by everything in `calls`; nothing here knows about sockets.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{
    FILE, aiocb, epoll_event, fd_set, gid_t, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, pthread_t, rlimit, sigaction as Action, sigevent,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, statx as Statx, timespec, timeval, uid_t,
};

/// One looked-up symbol.
struct Slot {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Slot {
    const fn new(name: &'static CStr) -> Slot {
        Slot { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Null when no later library defines the symbol.
    #[inline]
    fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: dlsym with a NUL-terminated name has no other requirement; it must be called because the next
        // definition in the search order is known to the loader only.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// What a call returns when it does not exist on this system.
trait Absent {
    const ABSENT: Self;
}

impl Absent for c_int {
    const ABSENT: c_int = -1;
}

impl Absent for ssize_t {
    const ABSENT: ssize_t = -1;
}

impl Absent for off_t {
    const ABSENT: off_t = -1;
}

impl Absent for () {
    const ABSENT: () = ();
}

impl<T> Absent for *mut T {
    const ABSENT: *mut T = core::ptr::null_mut();
}

macro_rules! next_definitions {
    ($($symbol:literal fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)+) => {
        #[allow(non_upper_case_globals)]
        mod slot {
            $(pub(super) static $name: super::Slot = super::Slot::new($symbol);)+
        }

        /// Looks every symbol up, so that no later call has to.
        pub(crate) fn resolve_all() {
            $(slot::$name.get();)+
            VFORK.get();
            CLONE.get();
            DLOPEN.get();
        }

        $(
            /// The next definition of the symbol of this name; ENOSYS when there is none.
            ///
            /// # Safety
            /// As the call itself asks of its arguments.
            #[inline]
            pub(crate) unsafe fn $name($($arg: $type),*) -> $ret {
                type Call = unsafe extern "C-unwind" fn($($type),*) -> $ret;
                let address = slot::$name.get();
                if address.is_null() {
                    crate::ffi::set_errno(libc::ENOSYS);
                    return <$ret as Absent>::ABSENT;
                }
                // SAFETY: the address is that of the function with this name, whose C prototype is `Call`; the
                // caller vouches for the arguments.
                unsafe { core::mem::transmute::<*mut c_void, Call>(address)($($arg),*) }
            }
        )+
    };
}

/// For calls that return twice or have any number of arguments: they are jumped to.
static VFORK: Slot = Slot::new(c"vfork");
static CLONE: Slot = Slot::new(c"clone");
/// And this one looks at where it was called from.
static DLOPEN: Slot = Slot::new(c"dlopen");

pub(crate) fn address_of_vfork() -> *const c_void {
    VFORK.get()
}

pub(crate) fn address_of_clone() -> *const c_void {
    CLONE.get()
}

pub(crate) fn address_of_dlopen() -> *const c_void {
    DLOPEN.get()
}

next_definitions! {
    c"pthread_cancel" fn pthread_cancel(thread: pthread_t) -> c_int;
    c"pthread_setcanceltype" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    c"socket" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    c"bind" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    c"listen" fn listen(fd: c_int, backlog: c_int) -> c_int;
    c"accept4" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    c"connect" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    c"shutdown" fn shutdown(fd: c_int, how: c_int) -> c_int;
    c"getsockname" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    c"getpeername" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    c"getsockopt" fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    c"setsockopt" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    c"close" fn close(fd: c_int) -> c_int;
    c"close_range" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    c"closefrom" fn closefrom(first: c_int) -> ();
    c"dup" fn dup(fd: c_int) -> c_int;
    c"dup2" fn dup2(from: c_int, to: c_int) -> c_int;
    c"dup3" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    c"fcntl" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    c"fcntl64" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int;
    c"ioctl" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    c"read" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    c"write" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    c"readv" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    c"writev" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    c"recv" fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    c"send" fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    c"recvfrom" fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t;
    c"sendto" fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t;
    c"recvmsg" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    c"sendmsg" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    c"recvmmsg" fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    c"sendmmsg" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    c"sendfile" fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    c"splice" fn splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;
    c"statx" fn statx(fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, found: *mut Statx) -> c_int;
    c"lseek" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    c"lseek64" fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    c"pread" fn pread(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    c"pread64" fn pread64(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    c"pwrite" fn pwrite(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    c"pwrite64" fn pwrite64(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    c"preadv" fn preadv(fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    c"preadv64" fn preadv64(fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    c"pwritev" fn pwritev(fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    c"pwritev64" fn pwritev64(fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    c"preadv2" fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    c"preadv64v2" fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    c"pwritev2" fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    c"pwritev64v2" fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    c"posix_spawn" fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    c"posix_spawnp" fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    c"pidfd_spawn" fn pidfd_spawn(pid: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    c"pidfd_spawnp" fn pidfd_spawnp(pid: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    c"_Fork" fn fork_alone() -> pid_t;
    c"copy_file_range" fn copy_file_range(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;
    c"isfdtype" fn isfdtype(fd: c_int, kind: c_int) -> c_int;
    c"vdprintf" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    c"__vdprintf_chk" fn vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    c"freopen" fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    c"freopen64" fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    c"system" fn system(command: *const c_char) -> c_int;
    c"popen" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    c"setuid" fn setuid(uid: uid_t) -> c_int;
    c"seteuid" fn seteuid(uid: uid_t) -> c_int;
    c"setreuid" fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    c"setresuid" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    c"setfsuid" fn setfsuid(uid: uid_t) -> c_int;
    c"setgid" fn setgid(gid: gid_t) -> c_int;
    c"setegid" fn setegid(gid: gid_t) -> c_int;
    c"setregid" fn setregid(real: gid_t, effective: gid_t) -> c_int;
    c"setresgid" fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    c"unshare" fn unshare(flags: c_int) -> c_int;
    c"setns" fn setns(fd: c_int, kind: c_int) -> c_int;
    c"poll" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    c"ppoll" fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    c"select" fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    c"pselect" fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    c"epoll_ctl" fn epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    c"epoll_wait" fn epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
    c"epoll_pwait" fn epoll_pwait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    c"epoll_pwait2" fn epoll_pwait2(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    c"epoll_create1" fn epoll_create1(flags: c_int) -> c_int;
    c"epoll_create" fn epoll_create(size: c_int) -> c_int;
    c"syscall" fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    c"prctl" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    c"chroot" fn chroot(path: *const c_char) -> c_int;
    c"setrlimit" fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int;
    c"setrlimit64" fn setrlimit64(resource: c_uint, new: *const rlimit) -> c_int;
    c"prlimit" fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    c"prlimit64" fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    c"execve" fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    c"execvpe" fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    c"execveat" fn execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int;
    c"fexecve" fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    c"sigaction" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int;
    c"siginterrupt" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int;
    c"aio_read" fn aio_read(block: *mut aiocb) -> c_int;
    c"aio_write" fn aio_write(block: *mut aiocb) -> c_int;
    c"aio_fsync" fn aio_fsync(how: c_int, block: *mut aiocb) -> c_int;
    c"aio_error" fn aio_error(block: *const aiocb) -> c_int;
    c"aio_suspend" fn aio_suspend(list: *const *const aiocb, count: c_int, timeout: *const timespec) -> c_int;
    c"aio_cancel" fn aio_cancel(fd: c_int, block: *mut aiocb) -> c_int;
    c"lio_listio" fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    c"fsync" fn fsync(fd: c_int) -> c_int;
    c"fdatasync" fn fdatasync(fd: c_int) -> c_int;
    c"fclose" fn fclose(stream: *mut FILE) -> c_int;
    c"fileno" fn fileno(stream: *mut FILE) -> c_int;
    c"fdopen" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    c"__read_chk" fn read_chk(fd: c_int, buf: *mut c_void, len: size_t, buf_len: size_t) -> ssize_t;
    c"__recv_chk" fn recv_chk(fd: c_int, buf: *mut c_void, len: size_t, buf_len: size_t, flags: c_int) -> ssize_t;
    c"__recvfrom_chk" fn recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, buf_len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t;
    c"__poll_chk" fn poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, fds_len: size_t) -> c_int;
    c"__ppoll_chk" fn ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, fds_len: size_t) -> c_int;
}
