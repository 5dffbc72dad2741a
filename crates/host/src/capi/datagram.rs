//! UDP by the C API: `toe_sendto` … `toe_recvmmsg`, and what the other calls do with a UDP socket. The socket is the kernel's, with lanes beside it
//! ([`crate::datagram`]): what it exchanges by an engine's link, or with another program of this machine, goes past the kernel.

use super::arguments::{buffers_of, datagram as get, find, length_of, read_addr, with_copy, write_addr};
use super::{fail, status, stream};
use crate::datagram::control::{details_of, fill_control};
use crate::datagram::kernel_side::allow_any_address;
use crate::datagram::ways::{kernel_name, may_be_engines};
use crate::datagram::{Datagram, Details, Kernel, LaneWait, Sent, Step, Taken};
use crate::errno::{EAFNOSUPPORT, EFAULT};
use crate::stack::{EngineIdx, Stack};
use crate::{fd_table, poll, sys};
use libc::{iovec, mmsghdr, msghdr, pollfd, sockaddr, socklen_t, ssize_t, timespec};
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;
use toe_abi::attach::Way;
use toe_abi::errno::Errno;
use toe_base::Endpoint;

/// Messages of one call (Linux: UIO_MAXIOV).
const MESSAGES_MAX: c_uint = 1024;
/// Buffers of one message (Linux: UIO_MAXIOV).
const BUFFERS_MAX: usize = 1024;
/// Flags that a lane knows.
const PLAIN_SEND: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// A call of the kernel's, which sets errno.
///
/// # Safety
/// As the call asks of its arguments.
unsafe fn kernel(number: c_long, args: [usize; 6]) -> ssize_t {
    // SAFETY: the caller's promise.
    match unsafe { sys::raw(number, args) } {
        result @ 0.. => result,
        error => fail(Errno((-error) as u16)) as ssize_t,
    }
}

/// Makes a UDP socket.
pub(super) fn make(kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    Stack::attach(EngineIdx::FIRST)?;
    let args = [libc::AF_INET as usize, kind as usize, protocol as usize, 0, 0, 0];
    // SAFETY: needed for a socket that is a number in the descriptor table; numbers only.
    let fd = unsafe { sys::raw(libc::SYS_socket, args) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(Errno((-fd) as u16))?;
    fd_table::install_datagram(fd, Datagram::take(false, kind & libc::SOCK_NONBLOCK != 0));
    Ok(fd)
}

pub(super) fn bind(fd: c_int, datagram: &Datagram, addr: *const sockaddr, len: socklen_t) -> c_int {
    status(read_addr(addr, len).map(Endpoint::from).and_then(|at| {
        datagram.leave();
        if kernel_name(fd)?.port != 0 {
            return Err(Errno::EINVAL);
        }
        let bound = bind_kernels(fd, addr, len);
        if bound == Err(Errno::EADDRNOTAVAIL) && may_be_engines(at.addr) {
            // An address that an engine alone has, or nobody: the kernel's socket has no name before it is known which.
            allow_any_address(fd);
            bind_kernels(fd, addr, len)?;
        } else {
            bound?;
        }
        if at.addr.is_loopback() || at.addr.is_multicast() {
            return Ok(());
        }
        match datagram.hear_by_engine(fd, EngineIdx::FIRST) {
            Err(error) if bound.is_err() => Err(error),
            _ => Ok(()),
        }
    }))
}

fn bind_kernels(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
    let args = [fd as usize, addr.addr(), len as usize, 0, 0, 0];
    // SAFETY: needed to bind the program's descriptor. The address is as long as is said: `read_addr` has read it.
    match unsafe { sys::raw(libc::SYS_bind, args) } {
        0 => Ok(()),
        error => Err(Errno((-error) as u16)),
    }
}

pub(super) fn connect(fd: c_int, datagram: &Datagram, addr: *const sockaddr, len: socklen_t) -> c_int {
    datagram.leave();
    let peer = read_addr(addr, len).map(Endpoint::from);
    // An address that is none leaves it connected.
    if !matches!(peer, Err(EFAULT | Errno::EINVAL)) && datagram.disconnect(fd) {
        let _ = datagram.hear_by_engine(fd, EngineIdx::FIRST);
        if peer == Err(EAFNOSUPPORT) {
            return 0;
        }
    }
    if let Ok(peer) = peer
        && peer.port != 0
        && may_be_engines(peer.addr)
        && datagram.connect_by_engine(fd, peer, EngineIdx::FIRST).is_ok()
    {
        return 0;
    }
    // SAFETY: needed as the kernel connects it where no engine does; the program's arguments, handed on.
    unsafe { kernel(libc::SYS_connect, [fd as usize, addr.addr(), len as usize, 0, 0, 0]) as c_int }
}

pub(super) fn local_name(fd: c_int, datagram: &Datagram) -> Result<Endpoint, Errno> {
    datagram.local_name(fd).map_or_else(|| kernel_name(fd), Ok)
}

pub(super) fn peer_name(fd: c_int, datagram: &Datagram) -> Result<Endpoint, Errno> {
    if let Some(connected) = datagram.connected() {
        return Ok(connected.peer);
    }
    let peer = rustix::net::getpeername(sys::borrow(fd)).map_err(crate::errno::from_os)?;
    let peer = peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok());
    peer.map(Endpoint::from).ok_or(Errno::ENOTCONN)
}

pub(super) fn set_option(
    (fd, datagram): (c_int, &Datagram),
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if !datagram.may_set(level, name) {
        datagram.leave_to_kernel();
    }
    let args = [fd as usize, level as usize, name as usize, value.addr(), len as usize, 0];
    // SAFETY: needed to hand the program's option on.
    let result = unsafe { kernel(libc::SYS_setsockopt, args) } as c_int;
    if result == 0 {
        datagram.was_set(fd, level, name);
    }
    result
}

pub(super) fn get_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let args = [fd as usize, level as usize, name as usize, value.addr(), len.addr(), 0];
    // SAFETY: needed to ask for the program's option.
    unsafe { kernel(libc::SYS_getsockopt, args) as c_int }
}

pub(super) fn shutdown(fd: c_int, datagram: &Datagram, how: c_int) -> c_int {
    status(datagram.shut_down(how, || {
        // SAFETY: needed as it is the kernel's socket; numbers only.
        match unsafe { sys::raw(libc::SYS_shutdown, [fd as usize, how as usize, 0, 0, 0, 0]) } {
            0 => Ok(()),
            error => Err(Errno((-error) as u16)),
        }
    }))
}

/// The part of poll that lanes have; `None`: there is none.
pub(super) fn poll_with_lanes(fds: &mut [pollfd], timeout: Option<Duration>) -> Option<c_int> {
    if !fds.iter().any(|polled| get(polled.fd).is_some()) {
        return None;
    }
    let reads = |polled: &&pollfd| polled.events & (libc::POLLIN | libc::POLLRDNORM) != 0;
    let waited = LaneWait::begin(fds.iter().filter(reads).map(|polled| polled.fd), |look| look());
    let timeout = if waited.is_over() { Some(Duration::ZERO) } else { timeout };
    let ready = poll::poll(fds, timeout, None).map_or_else(fail, |ready| ready as c_int);
    Some(waited.end_poll(fds, ready))
}

/// A message to be sent.
struct Message<'a> {
    to: Option<Endpoint>,
    from: &'a [IoSlice<'a>],
    /// `None`: something of what the program says is the kernel's to do.
    details: Option<Details>,
    flags: c_int,
}

/// By an engine, by a lane, or by what `kernel` does.
fn send(fd: c_int, datagram: &Datagram, message: &Message<'_>, kernel: impl FnOnce() -> ssize_t) -> ssize_t {
    let Message { to, from, flags, .. } = *message;
    let Some(details) = message.details.as_ref().filter(|_| flags & !PLAIN_SEND == 0) else {
        datagram.send_from_kernel();
        return kernel();
    };
    let waits = flags & libc::MSG_DONTWAIT == 0 && !datagram.nonblocking();
    let peer = to.or_else(|| datagram.connected().map(|connected| connected.peer));
    if let Some(peer) = peer.filter(|peer| peer.port != 0 && may_be_engines(peer.addr))
        && has_way(fd, datagram, peer)
    {
        match datagram.send_by_engine((fd, waits), peer, details, from) {
            Ok(len) => return len as ssize_t,
            Err(Errno::ENETDOWN) => {}
            Err(error) => return fail(error) as ssize_t,
        }
    }
    if datagram.sends_by_lanes() {
        match datagram.send(to, from, details) {
            Ok(Sent::Done(len)) => return len as ssize_t,
            Ok(Sent::Kernel | Sent::Full) => {}
            Err(error) => return fail(error) as ssize_t,
        }
    }
    let sent = kernel();
    if sent >= 0 && datagram.counts(Way::Sends, 1) {
        ask_lane(fd, datagram, Way::Sends, to);
    }
    sent
}

fn has_way(fd: c_int, datagram: &Datagram, peer: Endpoint) -> bool {
    datagram.is_engines(peer.addr).unwrap_or_else(|| {
        let found = datagram.find_way(fd, peer, EngineIdx::FIRST);
        if found.is_err() {
            datagram.note_kernels(peer.addr);
        }
        found.is_ok() && datagram.is_engines(peer.addr) == Some(true)
    })
}

/// Asks for a lane to, or from, another program of this machine.
#[cold]
fn ask_lane(fd: c_int, datagram: &Datagram, way: Way, other: Option<Endpoint>) {
    let connected = peer_name(fd, datagram).ok();
    match other.or(connected).filter(|peer| peer.addr.is_loopback()) {
        Some(peer) => _ = datagram.ask(fd, way, peer, connected == Some(peer), EngineIdx::FIRST),
        None => datagram.note_unasked(way),
    }
}

/// Receives by a lane, or by what `kernel` does.
fn receive(
    fd: c_int,
    datagram: &Datagram,
    into: &mut [IoSliceMut<'_>],
    flags: c_int,
    kernel: impl FnMut(Kernel) -> ssize_t,
) -> Result<Taken, ssize_t> {
    let got = datagram.receive_with_kernel(fd, into, flags, |look: &mut dyn FnMut() -> Step| look(), kernel);
    if got == Err(-1) && datagram.has_engine() {
        datagram.call_failed(fd);
    }
    got
}

fn reported_len(taken: Taken, flags: c_int) -> ssize_t {
    (if flags & libc::MSG_TRUNC != 0 { taken.whole } else { taken.len }) as ssize_t
}

/// The program's buffers as they are read.
fn with_slices<R>(
    iov: *const iovec,
    count: usize,
    f: impl FnOnce(&[IoSlice<'_>]) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let buffers = buffers_of(iov, c_int::try_from(count).map_err(|_| Errno::EMSGSIZE)?)?;
    with_copy(buffers, |iov| {
        // SAFETY: needed because the buffers are C's. `IoSlice` has the layout of `iovec` on Unix (documented). Each buffer
        // is `iov_len` readable bytes, as documented for the caller, and none starts at null.
        f(unsafe { std::slice::from_raw_parts(iov.as_ptr().cast::<IoSlice<'_>>(), iov.len()) })
    })
}

/// The same as they are written.
fn with_slices_mut<R>(
    iov: *const iovec,
    count: usize,
    f: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let buffers = buffers_of(iov, c_int::try_from(count).map_err(|_| Errno::EMSGSIZE)?)?;
    with_copy(buffers, |iov| {
        let (at, len) = (iov.as_mut_ptr().cast::<IoSliceMut<'_>>(), iov.len());
        // SAFETY: as above, with writable bytes.
        f(unsafe { std::slice::from_raw_parts_mut(at, len) })
    })
}

/// A message of C's, which may be null.
fn message_of<'a>(message: *mut msghdr) -> Result<&'a mut msghdr, Errno> {
    // SAFETY: needed because the message is C's: as documented, one that may be read and written, or null.
    unsafe { message.as_mut() }.ok_or(EFAULT)
}

/// Where a datagram is to go. AF_UNSPEC passes for the family that it must be.
fn destination(name: *const sockaddr, len: socklen_t) -> Result<Endpoint, Errno> {
    read_addr(name, len).map(Endpoint::from).or_else(|error| {
        if error != EAFNOSUPPORT || (len as usize) < size_of::<libc::sockaddr_in>() {
            return Err(error);
        }
        // SAFETY: needed because the address comes from C: of another family than it should be, and as long as it says.
        let mut name = unsafe { name.cast::<libc::sockaddr_in>().read_unaligned() };
        if c_int::from(name.sin_family) != libc::AF_UNSPEC {
            return Err(error);
        }
        name.sin_family = libc::AF_INET as libc::sa_family_t;
        read_addr((&raw const name).cast(), len.min(size_of::<libc::sockaddr_in>() as socklen_t))
            .map(Endpoint::from)
    })
}

fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Result<ssize_t, Errno> {
    let datagram = get(fd).ok_or_else(|| not_a_datagram(fd))?;
    let header = message_of(message.cast_mut())?;
    if c_int::try_from(header.msg_namelen).is_err() && !header.msg_name.is_null() {
        return Err(Errno::EINVAL);
    }
    if header.msg_iovlen > BUFFERS_MAX {
        return Err(Errno::EMSGSIZE);
    }
    // What is longer than any address is cut off.
    let name_len = header.msg_namelen.min(size_of::<libc::sockaddr_storage>() as socklen_t);
    let to = match header.msg_name.is_null() || name_len == 0 {
        true => None,
        false => Some(destination(header.msg_name.cast(), name_len)?),
    };
    // SAFETY: needed because the control data is C's: as documented, as long as the message says.
    let (details, is_all) = unsafe { details_of(message) }?;
    let details = is_all.then_some(details);
    with_slices(header.msg_iov, header.msg_iovlen, |from| {
        let args = [fd as usize, message.addr(), flags as usize, 0, 0, 0];
        // SAFETY: needed to hand the program's message on.
        let kernel = || unsafe { kernel(libc::SYS_sendmsg, args) };
        Ok(send(fd, datagram, &Message { to, from, details, flags }, kernel))
    })
}

fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Result<ssize_t, Errno> {
    let datagram = get(fd).ok_or_else(|| not_a_datagram(fd))?;
    let header = message_of(message)?;
    if c_int::try_from(header.msg_namelen).is_err() && !header.msg_name.is_null() {
        return Err(Errno::EINVAL);
    }
    if header.msg_iovlen > BUFFERS_MAX {
        return Err(Errno::EMSGSIZE);
    }
    let got = with_slices_mut(header.msg_iov, header.msg_iovlen, |into| {
        let kernel = |asked: Kernel| {
            let args = [fd as usize, message.addr(), asked.flags as usize, 0, 0, 0];
            // SAFETY: needed to hand the program's message on.
            unsafe { kernel(libc::SYS_recvmsg, args) }
        };
        Ok(receive(fd, datagram, into, flags, kernel))
    })?;
    let taken = match got {
        Ok(taken) => taken,
        Err(got) => {
            let is_new = got >= 0 && flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) == 0;
            if is_new && datagram.counts(Way::Receives, 1) {
                let from = read_addr(header.msg_name.cast(), header.msg_namelen).ok();
                ask_lane(fd, datagram, Way::Receives, from.map(Endpoint::from));
            }
            return Ok(got);
        }
    };
    if !header.msg_name.is_null() {
        let from = taken.from.to_socket_addr();
        write_addr(from, header.msg_name.cast(), &raw mut header.msg_namelen)?;
    }
    header.msg_flags = if taken.len < taken.whole { libc::MSG_TRUNC } else { 0 };
    // SAFETY: needed because the control data is C's: as documented, as long as the message says.
    unsafe { fill_control(header, &taken, datagram)? };
    Ok(reported_len(taken, flags))
}

fn not_a_datagram(fd: c_int) -> Errno {
    find(fd).map_or_else(|error| error, |_| Errno::EOPNOTSUPP)
}

pub(super) fn or_fail(result: Result<ssize_t, Errno>) -> ssize_t {
    result.unwrap_or_else(|error| fail(error) as ssize_t)
}

/// One message of these buffers.
pub(super) fn send_buffers(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    let Some(count) = count_of(count) else { return fail(Errno::EINVAL) as ssize_t };
    // SAFETY: all zeros are a message.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (iov.cast_mut(), count as _);
    or_fail(send_message(fd, &raw const message, flags))
}

/// Of readv and writev.
fn count_of(count: c_int) -> Option<usize> {
    usize::try_from(count).ok().filter(|count| *count <= BUFFERS_MAX)
}

/// The same into them.
pub(super) fn receive_buffers(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    let Some(count) = count_of(count) else { return fail(Errno::EINVAL) as ssize_t };
    // SAFETY: as above.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (iov.cast_mut(), count as _);
    or_fail(receive_message(fd, &raw mut message, flags))
}

/// Sends a datagram of `len` bytes to `addr` (a struct sockaddr_in of `addr_len` bytes), or, with NULL, to what the socket is connected
/// to. `flags`: MSG_DONTWAIT, MSG_NOSIGNAL; with others, as MSG_MORE, the kernel sends it. On a TCP socket as toe_send.
///
/// Blocks while the engine has no room for it, unless the socket or the call is non-blocking; SO_SNDTIMEO limits the wait. The bytes
/// are copied: `buf` can be used again at once.
///
/// Returns `len`, or -1 with errno: EAGAIN: no room now, or time over; EMSGSIZE: larger than a datagram can be, or than the path takes where
/// IP_MTU_DISCOVER says that it may not be cut; EDESTADDRREQ; ECONNREFUSED: nobody was at the port that was sent to before, told once;
/// EINTR: a signal came; EBADF, ENOTSOCK, EAFNOSUPPORT, EINVAL, EFAULT.
#[unsafe(no_mangle)]
pub extern "C" fn toe_sendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    if !addr.is_null() && addr_len as usize > size_of::<libc::sockaddr_storage>() {
        return fail(find_any(fd).err().unwrap_or(Errno::EINVAL)) as ssize_t;
    }
    if get(fd).is_none() {
        return stream::send(fd, buf, len, flags);
    }
    if !addr.is_null() && addr_len == 0 {
        return fail(Errno::EINVAL) as ssize_t;
    }
    let iov = iovec { iov_base: buf.cast_mut(), iov_len: len };
    // SAFETY: all zeros are a message.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = ((&raw const iov).cast_mut(), 1);
    (message.msg_name, message.msg_namelen) = (addr.cast_mut().cast(), addr_len);
    or_fail(send_message(fd, &raw const message, flags))
}

/// Receives a datagram: up to `len` bytes of it, the rest is lost. `addr` may be NULL; otherwise the sender's address is written there, up to
/// `*addr_len` bytes, and `*addr_len` set to its length. `flags`: MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC (the datagram's whole length is
/// returned), MSG_ERRQUEUE (which is the kernel's). On a TCP socket as toe_recv.
///
/// Blocks until there is one, unless the socket or the call is non-blocking; SO_RCVTIMEO limits the wait.
///
/// Returns the bytes received, or -1 with errno: EAGAIN: none now, or time over; ECONNREFUSED: nobody is at the port that the socket is
/// connected to; EINTR: a signal came; EBADF, ENOTSOCK, EFAULT.
#[unsafe(no_mangle)]
pub extern "C" fn toe_recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: all zeros are a name, and a message.
    let (mut name, mut message): (libc::sockaddr_storage, msghdr) = unsafe { std::mem::zeroed() };
    let got = if get(fd).is_none() {
        stream::recv(fd, buf, len, flags)
    } else {
        let iov = iovec { iov_base: buf, iov_len: len };
        (message.msg_iov, message.msg_iovlen) = ((&raw const iov).cast_mut(), 1);
        if !addr.is_null() {
            message.msg_name = (&raw mut name).cast();
            message.msg_namelen = size_of_val(&name) as socklen_t;
        }
        or_fail(receive_message(fd, &raw mut message, flags))
    };
    if got < 0 || addr.is_null() {
        return got;
    }
    // As Linux does it: what has come is gone, whether its sender can be told or not.
    // SAFETY: needed because the memory is C's: as documented, `addr_len` points to a length.
    let room = match unsafe { length_of(addr_len) } {
        Ok(room) => room.min(message.msg_namelen as usize),
        Err(error) => return fail(error) as ssize_t,
    };
    // SAFETY: needed because the memory is C's: as documented, `addr_len` points to a length and `addr` to that many writable bytes.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const name).cast::<u8>(), addr.cast::<u8>(), room);
        *addr_len = message.msg_namelen;
    }
    got
}

/// Like toe_sendto, of several buffers, with control data: IP_PKTINFO, IP_TTL, IP_TOS and UDP_SEGMENT; with other control data the kernel sends
/// it. UDP sockets only.
///
/// Returns the bytes sent, or -1 with errno as toe_sendto; EOPNOTSUPP: a TCP socket.
#[unsafe(no_mangle)]
pub extern "C" fn toe_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    or_fail(send_message(fd, message, flags))
}

/// Like toe_recvfrom, into several buffers, with the control data that has been asked for by toe_setsockopt: IP_PKTINFO, IP_RECVTOS, UDP_GRO, and
/// all others, with which every datagram comes by the kernel. UDP sockets only.
///
/// Returns the bytes received, or -1 with errno as toe_recvfrom; EOPNOTSUPP: a TCP socket.
#[unsafe(no_mangle)]
pub extern "C" fn toe_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    or_fail(receive_message(fd, message, flags))
}

/// Sends up to `count` messages (1024 at most), each as toe_sendmsg does, and sets `msg_len` of each that was sent.
///
/// Returns how many were, or -1 with errno, if the first could not be.
#[unsafe(no_mangle)]
pub extern "C" fn toe_sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    each_message(fd, messages, count.min(MESSAGES_MAX), |header, _| send_message(fd, header, flags))
}

/// Receives up to `count` messages (1024 at most), each as toe_recvmsg does, and sets `msg_len` of each. `flags` also: MSG_WAITFORONE: does
/// not wait once there is one. `timeout` may be NULL; when it is over, as it is found to be after a message, that was the last.
///
/// Returns how many came, or -1 with errno, if none did.
#[unsafe(no_mangle)]
pub extern "C" fn toe_recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: needed because it is C's: as documented, null or there.
    let mut timeout = unsafe { timeout.as_mut() };
    let deadline = match timeout.as_deref().map(limit_of) {
        Some(None) => return fail(find_any(fd).err().unwrap_or(Errno::EINVAL)),
        limit => limit.flatten().map(|limit| sys::now().saturating_add(limit)),
    };
    let done = each_message(fd, messages, count, |header, done| {
        if done > 0 && deadline.is_some_and(|deadline| sys::now() >= deadline) {
            return Err(Errno::EAGAIN);
        }
        let brief = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        receive_message(fd, header, flags & !libc::MSG_WAITFORONE | brief)
    });
    // What is left of it.
    if let (1.., Some(timeout), Some(deadline)) = (done, &mut timeout, deadline) {
        let left = deadline.saturating_sub(sys::now());
        (timeout.tv_sec, timeout.tv_nsec) = (left.as_secs() as _, left.subsec_nanos().into());
    }
    done
}

/// `None`: it is no time.
fn limit_of(time: &timespec) -> Option<Duration> {
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanos))
}

/// Whether it is a socket of either kind.
fn find_any(fd: c_int) -> Result<(), Errno> {
    if get(fd).is_some() { Ok(()) } else { find(fd).map(|_| ()) }
}

fn each_message(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    mut each: impl FnMut(*mut msghdr, c_uint) -> Result<ssize_t, Errno>,
) -> c_int {
    if let Err(error) = find_any(fd) {
        return fail(error);
    }
    if messages.is_null() && count > 0 {
        return fail(EFAULT);
    }
    let mut done = 0;
    while done < count {
        let message = messages.wrapping_add(done as usize);
        // SAFETY: needed because the array is C's: as documented, `count` of them.
        let result = or_fail(each(unsafe { &raw mut (*message).msg_hdr }, done));
        if result < 0 {
            return if done == 0 { -1 } else { done as c_int };
        }
        // SAFETY: as above.
        unsafe { (*message).msg_len = result as c_uint };
        done += 1;
    }
    done as c_int
}
