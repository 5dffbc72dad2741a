//! The system calls that no safe wrapper has. Called by the control server and `main`.

#![allow(unsafe_code)]

use nix::libc;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use toe_base::NetNs;
use zerocopy::{FromBytes, IntoBytes};

/// How the calling thread is scheduled.
pub(crate) fn scheduling() -> Option<libc::sched_attr> {
    // SAFETY: needed because neither rustix nor nix has this call. It is plain numbers, of which zero is one.
    let mut attr: libc::sched_attr = unsafe { core::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: as above; the kernel writes at most `size` bytes of `attr`, which are its own.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    (done == 0).then_some(attr)
}

/// Changes how the calling thread is scheduled.
pub(crate) fn set_scheduling(attr: &libc::sched_attr) -> std::io::Result<()> {
    // SAFETY: needed because neither rustix nor nix has this call. The kernel reads as many bytes of `attr` as that says it has.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attr), 0) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Where the parts of a process's memory lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sections {
    pub(crate) code: [u64; 2],
    pub(crate) data: [u64; 2],
    pub(crate) start_brk: u64,
    pub(crate) stack: u64,
    pub(crate) arguments: [u64; 2],
    pub(crate) environment: [u64; 2],
}

/// `struct prctl_mm_map` of linux/prctl.h.
#[derive(IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct MemoryMap {
    code: [u64; 2],
    data: [u64; 2],
    start_brk: u64,
    brk: u64,
    stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
    auxv: u64,
    auxv_size: u32,
    exe_fd: u32,
}

/// Tells the kernel where things lie (PR_SET_MM_MAP): what it has said itself, but for what is to be changed. To be called while there is
/// one thread.
pub(crate) fn set_sections(sections: &Sections) -> std::io::Result<()> {
    // SAFETY: needed because the kernel is to be told where the heap ends, and nothing safe says that. It moves nothing.
    let brk = unsafe { libc::sbrk(0) } as u64;
    let Sections { code, data, start_brk, stack, arguments, environment } = *sections;
    // No new auxiliary vector, and the same program.
    let (auxv, auxv_size, exe_fd) = (0, 0, u32::MAX);
    let map =
        MemoryMap { code, data, start_brk, brk, stack, arguments, environment, auxv, auxv_size, exe_fd };
    let size = size_of::<MemoryMap>();
    // SAFETY: needed because neither rustix nor nix has this call. The kernel reads `size` bytes of `map` and checks each address; the end of
    // the heap is the one that it has, as no other thread is there to move it.
    let done = unsafe {
        libc::prctl(
            libc::PR_SET_MM,
            libc::PR_SET_MM_MAP as libc::c_ulong,
            std::ptr::from_ref(&map),
            size,
            0usize,
        )
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

// From asm-generic/socket.h.
const SO_BINDTOIFINDEX: i32 = 62;
const SO_PEERPIDFD: i32 = 77;
const SO_PASSRIGHTS: i32 = 83;

/// A socket option that neither rustix nor nix has; `None` when the kernel does not give it whole.
fn option<T: FromBytes + IntoBytes>(socket: impl AsFd, level: i32, name: i32) -> Option<T> {
    let mut value = T::new_zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: needed because neither rustix nor nix has these options. The descriptor is open for the length of the
    // call; `value` and `len` are ours, `len` is the size of `value`, beyond which the kernel does not write, and any
    // bytes are a `T`.
    let done = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    (done == 0 && len as usize == size_of::<T>()).then_some(value)
}

/// Which network namespace a socket belongs to (SO_NETNS_COOKIE, Linux 5.14); `None` when the kernel cannot say.
pub(crate) fn netns_of(socket: impl AsFd) -> Option<NetNs> {
    option(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).map(NetNs)
}

/// The state of a TCP socket, as linux/tcp.h numbers them.
pub(crate) fn tcp_state(socket: impl AsFd) -> Option<u8> {
    // The first field of `struct tcp_info`; the kernel gives as much as there is room for.
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO)
}

/// The interface that a socket is bound to, 0: none (SO_BINDTOIFINDEX, Linux 5.1).
pub(crate) fn device_of(socket: impl AsFd) -> Option<i32> {
    option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX)
}

/// The process at the other end of a Unix socket (SO_PEERPIDFD, Linux 6.5). Without it a process-id must do, which may
/// be another process's by now.
pub(crate) fn peer_process(socket: impl AsFd) -> Option<OwnedFd> {
    let fd: i32 = option(socket, libc::SOL_SOCKET, SO_PEERPIDFD)?;
    // SAFETY: needed because the kernel gives a number. It has just opened that descriptor for this call, so nothing
    // else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the kernel says that no descriptors can be sent into a Unix socket, nor could be since it was made.
pub(crate) fn keeps_descriptors_out(socket: impl AsFd) -> bool {
    option::<i32>(socket, libc::SOL_SOCKET, SO_PASSRIGHTS) == Some(0)
}

/// Says whether descriptors may be sent into a Unix socket, or into those that a listening one accepts (SO_PASSRIGHTS,
/// Linux 6.16). Older kernels always let them in.
pub(crate) fn let_descriptors_in(socket: impl AsFd, on: bool) {
    let value = i32::from(on);
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: needed because neither rustix nor nix has this option. The descriptor is open for the length of the call,
    // and the kernel reads `len` bytes of `value`, which are its own.
    let _ = unsafe {
        let (socket, value) = (socket.as_fd().as_raw_fd(), (&raw const value).cast());
        libc::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, value, len)
    };
}

/// Whoever sends to this Unix socket, or connects to it, can send no descriptors from now on (SO_PASSRIGHTS, Linux 6.16), so that
/// who receives has none to close. `false`: the kernel is older.
pub(crate) fn refuse_descriptors(socket: impl AsFd) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let off: libc::c_int = 0;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: needed because neither rustix nor nix has this option. The descriptor is open for the length of the call,
    // and the value is a local of the length that is given.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), len) };
    done == 0
}

/// Whether [`refuse_descriptors`] works here.
pub(crate) fn can_refuse_descriptors() -> bool {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(refuse_descriptors)
}

/// The network namespace that this process opens its links in.
pub(crate) fn own_netns() -> std::io::Result<NetNs> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    netns_of(&socket).ok_or_else(|| std::io::Error::other("the kernel is older than Linux 5.14"))
}

/// The groups of whoever connected a Unix socket, as they were then (SO_PEERGROUPS, SO_PEERCRED), as far as the kernel says.
pub(crate) fn peer_groups(socket: impl AsFd) -> Vec<u32> {
    let mut all = other_groups(&socket);
    // Of a process that gave up its other groups it is not among those.
    let peer = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials);
    all.extend(peer.map(|peer| peer.gid()));
    all
}

fn other_groups(socket: &impl AsFd) -> Vec<u32> {
    /// NGROUPS_MAX of Linux: nobody has more.
    const GROUPS_MAX: usize = 65_536;
    const GROUPS_USUAL: usize = 64;
    for room in [GROUPS_USUAL, GROUPS_MAX] {
        let mut groups = vec![0u32; room];
        let mut len = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: needed because neither rustix nor nix has this option. The descriptor is open for the length of the
        // call; `len` is the size of the memory behind `groups`, beyond which the kernel does not write.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if done == 0 {
            groups.truncate(len as usize / size_of::<u32>());
            return groups;
        }
        // ERANGE: more than there was room for.
    }
    Vec::new()
}

/// Closes every descriptor but the three standard ones. Whoever starts an engine in the background may leak
/// descriptors into it, and may wait for the end of one of them.
///
/// To be called first of all, while the process has opened nothing itself.
pub fn close_inherited_descriptors() {
    // SAFETY: needed because closing descriptors that some value may own is unsafe. `main` calls this before anything
    // is opened, with one thread, so no value owns any of them. A failure leaves them open, which is harmless.
    let _ = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// A clock that counts ticks of some fixed length: the cycle counter where programs may read it, else nanoseconds.
/// Differences mean something, single values do not.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ticks() -> u64 {
    // SAFETY: needed because the intrinsic is declared unsafe. It touches no memory, and Linux lets programs execute it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A clock that counts ticks of some fixed length. Differences mean something, single values do not.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_namespace_have_one_cookie() {
        let socket = || std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        assert!(netns_of(socket()).is_some());
        assert_eq!(netns_of(socket()), netns_of(socket()));
        assert_eq!(netns_of(std::io::stdin()), None);
        assert_eq!(own_netns().ok(), netns_of(socket()));
    }

    #[test]
    fn groups_are_those_of_the_process_that_connected() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut own: Vec<u32> =
            rustix::process::getgroups().expect("groups").iter().map(|gid| gid.as_raw()).collect();
        own.push(rustix::process::getegid().as_raw());
        let mut theirs = peer_groups(&ours);
        own.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(theirs, own);
    }
}
