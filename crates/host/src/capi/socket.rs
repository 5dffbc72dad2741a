//! `toe_socket` … `toe_close`, and `toe_poll`.

use super::arguments::{self, buffers_of, find, length_of, read_addr, write_addr, write_name};
use super::{datagram, fail, status, stream};
use crate::errno::{EAFNOSUPPORT, EFAULT, ESOCKTNOSUPPORT};
use crate::socket::{AcceptError, AcceptHow, Kind, Shutdown, Socket};
use crate::stack::{EngineIdx, Stack};
use crate::{fd_table, sys};
use libc::{iovec, pollfd, sockaddr, socklen_t, ssize_t};
use std::ffi::{c_int, c_long, c_void};
use toe_abi::errno::Errno;
use toe_base::Endpoint;

/// Most connections that may wait in a listener (Linux: net.core.somaxconn).
const BACKLOG_MAX: c_int = 4096;
/// Makes a TCP socket on the engine, or a UDP socket, which is the kernel's: what it exchanges by a link of the engine's, or with another
/// program of this machine, goes past the kernel. `domain`: AF_INET; `type`: SOCK_STREAM or SOCK_DGRAM, with SOCK_NONBLOCK and
/// SOCK_CLOEXEC if wanted; `protocol`: 0, IPPROTO_TCP or IPPROTO_UDP. The descriptor is a real one of the kernel (of TCP an anchor of
/// the engine's): it can be passed on, copied with toe_fcntl(F_DUPFD) and inherited; its last close ends the connection. A UDP socket
/// that a child of fork has, too, hears by the kernel alone from then on; one that is passed on is to be closed here, or both hear a part.
///
/// Does not block, but for attaching at first use. Any thread may call it; the same holds for every function here,
/// also on the same descriptor at the same time.
///
/// Returns the descriptor, or -1 with errno: EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EINVAL; EMFILE, ENFILE; the errors of toe_init.
#[unsafe(no_mangle)]
pub extern "C" fn toe_socket(domain: c_int, r#type: c_int, protocol: c_int) -> c_int {
    make_socket(domain, r#type, protocol).unwrap_or_else(fail)
}

fn make_socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    /// Types and protocols that Linux has numbers for (SOCK_TYPE_MASK, SOCK_MAX, IPPROTO_MAX).
    const TYPES: c_int = 0xf;
    const TYPES_END: c_int = 11;
    const PROTOCOLS_END: c_int = 263;
    let (flags, kind_alone) = (kind & !TYPES, kind & TYPES);
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    if domain != libc::AF_INET {
        return Err(EAFNOSUPPORT);
    }
    if kind_alone >= TYPES_END || !(0..PROTOCOLS_END).contains(&protocol) {
        return Err(Errno::EINVAL);
    }
    match (kind_alone, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {}
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => return datagram::make(kind, protocol),
        (libc::SOCK_STREAM | libc::SOCK_DGRAM | libc::SOCK_RAW, _) => return Err(Errno::EPROTONOSUPPORT),
        _ => return Err(ESOCKTNOSUPPORT),
    }
    let stack = Stack::attach(EngineIdx::FIRST)?;
    let fd = stack.session.anchors().placeholder(kind & libc::SOCK_CLOEXEC != 0)?;
    let socket = Socket::allocate();
    socket.set_nonblocking(kind & libc::SOCK_NONBLOCK != 0);
    fd_table::install(fd, socket);
    Ok(fd)
}

/// Remembers the local address (a struct sockaddr_in of `len` bytes) for toe_listen or toe_connect. Whether it can be
/// had is found out there. Port 0 lets the engine choose. Does not block. A UDP socket has the name at once, and hears what comes there.
///
/// Returns 0, or -1 with errno: EBADF, ENOTSOCK; EINVAL: already connected or listening, or `len` too small;
/// EAFNOSUPPORT; EFAULT; of a UDP socket EADDRINUSE, EADDRNOTAVAIL, EACCES, and EINVAL: it has a name.
#[unsafe(no_mangle)]
pub extern "C" fn toe_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if let Some(datagram) = arguments::datagram(fd) {
        return datagram::bind(fd, datagram, addr, len);
    }
    status(find(fd).and_then(|socket| {
        let addr = read_addr(addr, len)?;
        if socket.kind() != Kind::Fresh {
            return Err(Errno::EINVAL);
        }
        socket.set_local(addr);
        Ok(())
    }))
}

/// Listens at the bound address. Up to `backlog` connections wait for toe_accept (4096 at most). Waits for the engine's
/// answer only. On a listener it changes the backlog. The port is the kernel's to give: it is taken there, too, as long as
/// the socket listens, and whoever comes to it by the kernel's stack finds nobody.
///
/// Returns 0, or -1 with errno: EBADF, ENOTSOCK; EINVAL: connected; EADDRINUSE; EADDRNOTAVAIL; EACCES: a port that the
/// kernel does not let the program have; ENETDOWN: the engine has ended.
#[unsafe(no_mangle)]
pub extern "C" fn toe_listen(fd: c_int, backlog: c_int) -> c_int {
    status(find(fd).and_then(|socket| {
        // Less than none is as many as there may be, as to Linux.
        let backlog = (backlog as u32).min(BACKLOG_MAX as u32);
        match socket.kind() {
            Kind::Listener => socket.set_backlog(backlog),
            Kind::Stream => return Err(Errno::EINVAL),
            Kind::Fresh => socket.listen_native(backlog, fd)?,
        }
        Ok(())
    }))
}

/// Takes a connection that came in (Command `Accept` of the host interface). `addr` may be NULL; otherwise the peer's
/// address is written there, up to `*len` bytes, and `*len` set to its length.
///
/// Blocks until there is one, unless the listener is non-blocking; SO_RCVTIMEO limits the wait.
///
/// Returns the new descriptor (blocking, inherited over exec), or -1 with errno: EAGAIN: none now, or time over;
/// EBADF, ENOTSOCK; EINVAL: not listening; EINTR: a signal came; EMFILE, ENFILE; ECONNRESET: the engine has ended.
#[unsafe(no_mangle)]
pub extern "C" fn toe_accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    toe_accept4(fd, addr, len, 0)
}

/// Like toe_accept. `flags`: SOCK_NONBLOCK and SOCK_CLOEXEC, for the new descriptor. EINVAL: other flags.
#[unsafe(no_mangle)]
pub extern "C" fn toe_accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return fail(sys::fcntl(fd, libc::F_GETFD, 0).err().unwrap_or(Errno::EINVAL));
    }
    let accepted = find(fd).and_then(|socket| {
        let how = AcceptHow {
            dont_wait: false,
            cloexec: flags & libc::SOCK_CLOEXEC != 0,
            nonblocking: flags & libc::SOCK_NONBLOCK != 0,
            with_twin: false,
        };
        socket.accept(how).map_err(|error| match error {
            AcceptError::Errno(errno) => errno,
            // Only a listener with a twin says so, and native sockets have none.
            AcceptError::OfKernel => Errno::EAGAIN,
        })
    });
    match accepted {
        Ok(accepted) => match write_addr(accepted.peer, addr, len) {
            Ok(()) => accepted.fd,
            Err(errno) => {
                toe_close(accepted.fd);
                fail(errno)
            }
        },
        Err(errno) => fail(errno),
    }
}

/// Connects to `addr` (a struct sockaddr_in of `len` bytes). RFC 9293 section 3.9.1.1.
///
/// Blocks until the peer has answered, unless the socket is non-blocking (EINPROGRESS; writability tells the end, SO_ERROR
/// the result); SO_SNDTIMEO limits the wait (EINPROGRESS).
///
/// Returns 0, or -1 with errno: EALREADY; EISCONN; ECONNREFUSED; ETIMEDOUT; ENETUNREACH: the engine has no route;
/// EADDRINUSE, EADDRNOTAVAIL; EINTR: a signal came, the attempt goes on; ENETDOWN: the engine has ended; EBADF,
/// ENOTSOCK, EINVAL, EAFNOSUPPORT, EFAULT.
///
/// A UDP socket sends there and hears nobody else from then on, at once; an address of AF_UNSPEC undoes it.
#[unsafe(no_mangle)]
pub extern "C" fn toe_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if let Some(datagram) = arguments::datagram(fd) {
        return datagram::connect(fd, datagram, addr, len);
    }
    status(find(fd).and_then(|socket| {
        let remote = read_addr(addr, len)?;
        match socket.kind() {
            Kind::Listener => return Err(Errno::EISCONN),
            Kind::Fresh => socket.connect_native(remote, fd)?,
            Kind::Stream => {}
        }
        socket.wait_connected(socket.nonblocking())
    }))
}

/// Sends `len` bytes. `flags`: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE, MSG_EOR.
///
/// Blocks until all is in the engine's hands, unless the socket or the call is non-blocking: then as much as fits.
/// SO_SNDTIMEO limits the wait. The bytes are copied: `buf` can be used again at once.
///
/// Returns the bytes sent, or -1 with errno: EAGAIN: nothing fits now; EPIPE: closed or shut for sending (and SIGPIPE,
/// without MSG_NOSIGNAL); ECONNRESET, ETIMEDOUT, …: why the connection ended, once; EINTR: a signal came before
/// anything was sent; EBADF, ENOTSOCK, EFAULT; EOPNOTSUPP: other flags.
#[unsafe(no_mangle)]
pub extern "C" fn toe_send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    if arguments::datagram(fd).is_some() {
        return datagram::toe_sendto(fd, buf, len, flags, std::ptr::null(), 0);
    }
    stream::send(fd, buf, len, flags)
}

/// Like toe_send without flags.
#[unsafe(no_mangle)]
pub extern "C" fn toe_write(fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    toe_send(fd, buf, len, 0)
}

/// Like toe_send without flags, from `count` buffers in order (1024 at most).
#[unsafe(no_mangle)]
pub extern "C" fn toe_writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    if arguments::datagram(fd).is_some() {
        return datagram::send_buffers(fd, iov, count, 0);
    }
    stream::send_buffers(fd, iov, count, 0)
}

/// Receives up to `len` bytes. `flags`: MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC (throw away), MSG_NOSIGNAL.
///
/// Blocks until something is there (with MSG_WAITALL: until `len` bytes are), unless the socket or the call is
/// non-blocking; SO_RCVTIMEO limits the wait.
///
/// Returns the bytes received, 0 at the end of the stream, or -1 with errno: EAGAIN: nothing now, or time over;
/// ECONNRESET, ETIMEDOUT, …: why the connection ended, once, after all that had arrived; ENOTCONN; EINTR: a signal came
/// before anything did; EBADF, ENOTSOCK, EFAULT; EOPNOTSUPP: other flags.
#[unsafe(no_mangle)]
pub extern "C" fn toe_recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    if arguments::datagram(fd).is_some() {
        let (nowhere, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
        return datagram::toe_recvfrom(fd, buf, len, flags, nowhere, no_len);
    }
    stream::recv(fd, buf, len, flags)
}

/// Like toe_recv without flags. With a length of 0 it returns 0 at once, and no datagram is taken.
#[unsafe(no_mangle)]
pub extern "C" fn toe_read(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    if len == 0 && is_socket(fd) { 0 } else { toe_recv(fd, buf, len, 0) }
}

fn is_socket(fd: c_int) -> bool {
    fd_table::get(fd).is_some() || arguments::datagram(fd).is_some()
}

/// Like toe_recv without flags, into `count` buffers in order (1024 at most).
#[unsafe(no_mangle)]
pub extern "C" fn toe_readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    if is_socket(fd)
        && buffers_of(iov, count).is_ok_and(|buffers| buffers.iter().all(|buffer| buffer.iov_len == 0))
    {
        return 0;
    }
    if arguments::datagram(fd).is_some() {
        return datagram::receive_buffers(fd, iov, count, 0);
    }
    stream::recv_buffers(fd, iov, count, 0)
}

/// Ends one direction or both: SHUT_WR sends FIN after all data, SHUT_RD makes toe_recv return 0 once nothing is left
/// (RFC 9293 section 3.9.1.5 and Linux). On a listener SHUT_RD and SHUT_RDWR end it. Does not block.
///
/// Returns 0, or -1 with errno: ENOTCONN; EBADF, ENOTSOCK; EINVAL: no such `how`.
#[unsafe(no_mangle)]
pub extern "C" fn toe_shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(datagram) = arguments::datagram(fd) {
        return datagram::shutdown(fd, datagram, how);
    }
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return fail(find(fd).err().unwrap_or(Errno::EINVAL)),
    };
    status(find(fd).and_then(|socket| socket.shutdown(how)))
}

/// Closes a descriptor: a socket, an epoll descriptor, or any other. With a socket's last one the engine ends the
/// connection by itself: FIN after all data; RST if received data was not read, or with SO_LINGER and time 0.
///
/// Blocks only with SO_LINGER and a time, until all is acknowledged or the time is over.
///
/// Returns 0, or -1 with errno EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn toe_close(fd: c_int) -> c_int {
    if Stack::is_internal_fd(fd) {
        return fail(Errno::EBADF);
    }
    crate::fd_release::close(fd);
    status(sys::close(fd))
}

/// The local address. Does not block. Returns 0, or -1 with errno: EBADF, ENOTSOCK, EFAULT.
#[unsafe(no_mangle)]
pub extern "C" fn toe_getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let name = match arguments::datagram(fd) {
        Some(datagram) => datagram::local_name(fd, datagram).map(Endpoint::to_socket_addr),
        None => find(fd).and_then(Socket::local_addr),
    };
    status(name.and_then(|name| write_name(name, addr, len)))
}

/// The peer's address. Does not block. Returns 0, or -1 with errno: ENOTCONN, EBADF, ENOTSOCK, EFAULT.
#[unsafe(no_mangle)]
pub extern "C" fn toe_getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let name = match arguments::datagram(fd) {
        Some(datagram) => datagram::peer_name(fd, datagram).map(Endpoint::to_socket_addr),
        None => find(fd).and_then(Socket::peer_addr),
    };
    status(name.and_then(|name| write_name(name, addr, len)))
}

/// Sets an option, as Linux's setsockopt. With effect: SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVBUF, SO_SNDBUF (bytes;
/// doubled, as in Linux), SO_RCVLOWAT, SO_KEEPALIVE, TCP_NODELAY, TCP_CORK, TCP_KEEPIDLE and TCP_KEEPINTVL (seconds),
/// TCP_KEEPCNT, TCP_USER_TIMEOUT (milliseconds, RFC 5482), IP_RECVERR and IPV6_RECVERR (2: retransmissions that reach R1 of RFC
/// 9293 section 3.8.3 are told, too, by ETIMEDOUT). A UDP socket has all that the kernel has. Does not block.
///
/// Returns 0, or -1 with errno: ENOPROTOOPT: unknown; EINVAL: bad length or value; EDOM: bad time; EBADF, ENOTSOCK,
/// EFAULT.
#[unsafe(no_mangle)]
pub extern "C" fn toe_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(datagram) = arguments::datagram(fd) {
        return datagram::set_option((fd, datagram), level, name, value, len);
    }
    status(find(fd).and_then(|socket| {
        if c_int::try_from(len).is_err() {
            return Err(Errno::EINVAL);
        }
        if value.is_null() {
            // Too short comes first.
            return Err(if (len as usize) < size_of::<c_int>() { Errno::EINVAL } else { EFAULT });
        }
        // SAFETY: needed because the value is C's: as documented, `len` readable bytes.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len as usize) };
        socket.set_native_option(level, name, value)
    }))
}

/// Reads an option, as Linux's getsockopt; also SO_ERROR (cleared by reading), SO_TYPE, SO_ACCEPTCONN, TCP_MAXSEG and
/// TCP_INFO. Does not block.
///
/// Returns 0, or -1 with errno: ENOPROTOOPT, EBADF, ENOTSOCK, EFAULT.
#[unsafe(no_mangle)]
pub extern "C" fn toe_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if arguments::datagram(fd).is_some() {
        return datagram::get_option(fd, level, name, value, len);
    }
    let got = find(fd).and_then(|socket| {
        // SAFETY: needed because the memory is C's: as documented, `len` points to a length.
        let room = unsafe { length_of(len) }?;
        if value.is_null() {
            // Whether there is such an option comes first.
            let mut nowhere = [0; size_of::<c_int>()];
            let filled =
                socket.get_native_option(level, name, &mut nowhere[..room.min(size_of::<c_int>())])?;
            return if filled > 0 { Err(EFAULT) } else { Ok(()) };
        }
        // SAFETY: needed because the memory is C's: as documented, `len` points to a length and `value` to that many
        // writable bytes.
        let (out, len) = unsafe { (std::slice::from_raw_parts_mut(value.cast::<u8>(), room), &mut *len) };
        *len = socket.get_native_option(level, name, out)? as socklen_t;
        Ok(())
    });
    let is_known = matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP);
    status(got.map_err(|error| match error {
        Errno::ENOPROTOOPT if !is_known => Errno::EOPNOTSUPP,
        error => error,
    }))
}

/// As fcntl, with an integer argument. On a socket: F_GETFL and F_SETFL know O_NONBLOCK; F_DUPFD and F_DUPFD_CLOEXEC make
/// another descriptor of the same socket; all else, and every other descriptor, goes to the kernel. Does not block.
///
/// Returns what fcntl returns, or -1 with errno: EBADF, EINVAL, EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn toe_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let result = sys::fcntl(fd, command, argument);
    let Ok(value) = result else { return result.unwrap_or_else(fail) };
    match (command, fd_table::get(fd)) {
        (libc::F_GETFL, Some(socket)) if socket.nonblocking() => value | libc::O_NONBLOCK,
        (libc::F_GETFL, Some(_)) => value & !libc::O_NONBLOCK,
        (libc::F_SETFL, Some(socket)) => {
            socket.set_nonblocking(argument & c_long::from(libc::O_NONBLOCK) != 0);
            value
        }
        (libc::F_SETFL, None) => {
            let nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
            arguments::datagram(fd).inspect(|datagram| datagram.set_nonblocking(nonblocking));
            value
        }
        (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, _) => {
            fd_table::duplicate(fd, value);
            value
        }
        _ => value,
    }
}

/// As poll, over sockets and other descriptors together. `timeout` in milliseconds, negative: no limit. Blocks until one
/// of the `count` entries is ready.
///
/// Returns the number of entries with events, 0 when the time is over, or -1 with errno: EINTR: a signal came; EFAULT.
#[unsafe(no_mangle)]
pub extern "C" fn toe_poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    /// More descriptors than Linux lets any program have (fs.nr_open at most).
    const TOO_MANY: libc::nfds_t = 1 << 30;
    if count >= TOO_MANY {
        return fail(Errno::EINVAL);
    }
    if fds.is_null() && count > 0 {
        return fail(EFAULT);
    }
    let fds = if count == 0 {
        &mut []
    } else {
        // SAFETY: needed because the array is C's: as documented, `count` entries.
        unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
    };
    if let Some(ready) = datagram::poll_with_lanes(fds, arguments::milliseconds(timeout)) {
        return ready;
    }
    match crate::poll::poll(fds, arguments::milliseconds(timeout), None) {
        Ok(n) => n as c_int,
        Err(errno) => fail(errno),
    }
}
