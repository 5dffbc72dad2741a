//! recv and its relatives on a UDP socket (send: `datagram_send`), which is the kernel's and may have lanes beside it (`toe::datagram`). A socket
//! without one costs a look at a flag, and a count of datagrams now and then asks an engine for one.

use super::cancel::point;
use crate::ffi::{Vectors, fail, guarded, read_endpoint, slice_mut, write_inet};
use crate::fork::may_have_moved;
use crate::policy::{self, Call};
use crate::{own_calls, real, why};
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t, timespec};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use toe::datagram::control::fill_control;
use toe::datagram::{Datagram, Kernel, Step, Taken};
use toe::program_memory::{self, check};
use toe::{Errno, sys};
use toe_abi::attach::Way;
use toe_base::Endpoint;

/// An address, and where its length stands.
type Name = (*mut sockaddr, *mut socklen_t);

/// Room for an address that the program does not want.
struct Unwanted(sockaddr_storage, socklen_t);

impl Unwanted {
    fn new() -> Unwanted {
        // SAFETY: all zeros are an address.
        Unwanted(unsafe { core::mem::zeroed() }, size_of::<sockaddr_storage>() as socklen_t)
    }

    fn name(&mut self) -> Name {
        ((&raw mut self.0).cast(), &raw mut self.1)
    }
}

/// Receives by a lane, or by what `kernel` does: the kernel's call, which sets errno.
fn receive(
    fd: c_int,
    datagram: &'static Datagram,
    into: &mut [IoSliceMut<'_>],
    flags: c_int,
    kernel: impl FnMut(Kernel) -> ssize_t,
) -> Result<Taken, ssize_t> {
    let failed = Step::Failed(Errno(libc::EIO as u16));
    let step = |step: &mut dyn FnMut() -> Step| point(failed, step);
    datagram.receive_with_kernel(fd, into, flags, step, kernel)
}

/// The kernel's call has failed, perhaps by an error of what an engine has sent.
fn has_failed(fd: c_int, datagram: &Datagram) {
    if datagram.has_engine() {
        guarded((), || datagram.call_failed(fd));
    }
}

/// Datagrams have come by the kernel: perhaps it is worth a lane to ask for the next ones.
///
/// # Safety
/// The kernel has written the address.
unsafe fn came(fd: c_int, datagram: &'static Datagram, flags: c_int, (addr, len): Name, datagrams: u32) {
    if flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) == 0 && datagram.counts(Way::Receives, datagrams) {
        guarded((), || {
            let is_there = !addr.is_null() && !len.is_null();
            // SAFETY: the caller's promise.
            let from = unsafe { is_there.then(|| read_endpoint(addr, *len, datagram.is_inet6())).flatten() };
            ask(fd, datagram, Way::Receives, from);
        });
    }
}

/// Asks for a lane between the socket and another one, be it what it is connected to.
#[cold]
pub(super) fn ask(fd: c_int, datagram: &'static Datagram, way: Way, other: Option<Endpoint>) {
    let connected = rustix::net::getpeername(sys::borrow(fd)).ok().flatten();
    let connected = connected.and_then(|addr| SocketAddr::try_from(addr).ok()).map(Endpoint::from);
    let peer = other.or(connected);
    let is_possible = !own_calls::found() && !may_have_moved();
    let engine = peer.filter(|peer| is_possible && peer.addr.is_loopback()).and_then(|peer| {
        policy::stacks(policy::decide(Call::Connect, peer), peer)
            .engines()
            .next()
            .map(|engine| (peer, engine))
    });
    match engine {
        Some((peer, engine)) => {
            if datagram.ask(fd, way, peer, connected == Some(peer), engine) {
                why::set_reason(fd, why::Stack::None, why::Reason::Lane);
            }
        }
        None => datagram.note_unasked(way),
    }
}

/// # Safety
/// As recvfrom(2).
pub unsafe fn receive_from(
    fd: c_int,
    datagram: &'static Datagram,
    (buf, len): (*mut c_void, size_t),
    flags: c_int,
    (addr, addr_len): Name,
) -> ssize_t {
    let mut unwanted = Unwanted::new();
    let name = if addr.is_null() { unwanted.name() } else { (addr, addr_len) };
    // SAFETY: the caller's promise.
    let mut into = [IoSliceMut::new(unsafe { slice_mut(buf, len) })];
    // SAFETY: the program's arguments, handed on.
    let kernel = |asked: Kernel| unsafe { real::recvfrom(fd, buf, len, asked.flags, name.0, name.1) };
    match receive(fd, datagram, &mut into, flags, kernel) {
        Ok(taken) if addr.is_null() => reported_len(taken, flags),
        Ok(taken) => {
            // SAFETY: as above.
            match unsafe { write_inet(taken.from.to_socket_addr(), datagram.is_inet6(), addr, addr_len) } {
                Ok(()) => reported_len(taken, flags),
                Err(error) => fail(error) as ssize_t,
            }
        }
        Err(got) => {
            match got {
                // SAFETY: as above.
                0.. => unsafe { came(fd, datagram, flags, name, 1) },
                _ => has_failed(fd, datagram),
            }
            got
        }
    }
}

fn reported_len(taken: Taken, flags: c_int) -> ssize_t {
    let len = if flags & libc::MSG_TRUNC != 0 { taken.whole } else { taken.len };
    len as ssize_t
}

/// # Safety
/// As readv(2).
pub unsafe fn receive_vectors(
    fd: c_int,
    datagram: &'static Datagram,
    iov: *const iovec,
    count: c_int,
) -> ssize_t {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the caller's promise.
    let is_empty = unsafe { Vectors::new(iov, count) }
        .map(|vectors| unsafe { vectors.buffers() }.iter().all(|buffer| buffer.is_empty()));
    match is_empty {
        Ok(false) => {}
        // A read of nothing takes nothing.
        Ok(true) => return 0,
        Err(error) => return fail(error) as ssize_t,
    }
    // SAFETY: all zeros are a message.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (iov.cast_mut(), count as _);
    // SAFETY: the caller's promise; the message is a local.
    unsafe { receive_message(fd, datagram, &mut message, 0) }
}

/// # Safety
/// As recvmsg(2).
pub unsafe fn receive_message(
    fd: c_int,
    datagram: &'static Datagram,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    if check(message, 1).is_err() {
        return fail(program_memory::EFAULT) as ssize_t;
    }
    // SAFETY: the caller's promise; it is there.
    let vectors = unsafe { Vectors::of_message((*message).msg_iov, (*message).msg_iovlen) };
    let mut vectors = match vectors {
        Ok(vectors) => vectors,
        Err(error) => return fail(error) as ssize_t,
    };
    // SAFETY: as above.
    let into = unsafe { vectors.buffers_mut() };
    // SAFETY: the program's arguments, handed on.
    let kernel = |asked: Kernel| unsafe { real::recvmsg(fd, message, asked.flags) };
    match receive(fd, datagram, into, flags, kernel) {
        // SAFETY: it is there.
        Ok(taken) => match unsafe { fill(&mut *message, taken, datagram, flags) } {
            Ok(()) => reported_len(taken, flags),
            Err(error) => fail(error) as ssize_t,
        },
        Err(got) => {
            match got {
                // SAFETY: the kernel has filled it.
                0.. => unsafe { came(fd, datagram, flags, name_of(message), 1) },
                _ => has_failed(fd, datagram),
            }
            got
        }
    }
}

/// # Safety
/// The message is there.
unsafe fn name_of(message: *mut msghdr) -> Name {
    // SAFETY: the caller's promise.
    unsafe { ((*message).msg_name.cast(), &raw mut (*message).msg_namelen) }
}

/// What a message says of a datagram beside its bytes.
///
/// # Safety
/// As recvmsg(2).
unsafe fn fill(message: &mut msghdr, taken: Taken, datagram: &Datagram, flags: c_int) -> Result<(), Errno> {
    if !message.msg_name.is_null() {
        let (name, len) = (message.msg_name.cast(), &raw mut message.msg_namelen);
        // SAFETY: the caller's promise.
        unsafe { write_inet(taken.from.to_socket_addr(), datagram.is_inet6(), name, len)? };
    }
    let cut = if taken.len < taken.whole { libc::MSG_TRUNC } else { 0 };
    message.msg_flags = flags & libc::MSG_CMSG_CLOEXEC | cut;
    // SAFETY: as above.
    unsafe { fill_control(message, &taken, datagram) }
}

fn has_something(datagram: &Datagram) -> bool {
    datagram.receives_by_lanes() && guarded(false, || datagram.has_something())
}

/// # Safety
/// As recvmmsg(2).
pub unsafe fn receive_messages(
    fd: c_int,
    datagram: &'static Datagram,
    (messages, count): (*mut mmsghdr, c_uint),
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let count = count.min(crate::ffi::IOV_MAX as c_uint);
    // SAFETY: as the kernel reads it.
    let time = match unsafe { super::wait_limits::timeout_of(timeout) } {
        Ok(time) => time,
        Err(error) => return fail(error),
    };
    let deadline = time.map(|time| sys::now() + time);
    let mut done = 0;
    while done < count {
        let is_late = || deadline.is_some_and(|deadline| sys::now() >= deadline);
        let ends = flags & (libc::MSG_WAITFORONE | libc::MSG_DONTWAIT) != 0 || datagram.nonblocking();
        if done > 0 && (is_late() || ends && !has_something(datagram)) {
            break;
        }
        let flags = if done > 0 && ends { flags & !libc::MSG_WAITFORONE | libc::MSG_DONTWAIT } else { flags };
        // SAFETY: the program's array has `count` messages.
        let rest = (unsafe { messages.add(done as usize) }, count - done);
        // SAFETY: the caller's promise.
        match unsafe { receive_some(fd, datagram, rest, flags, timeout) } {
            Ok(()) => done += 1,
            Err(came @ 1..) => return (done + came as c_uint) as c_int,
            Err(other) if done == 0 => return other,
            Err(_) => break,
        }
    }
    done as c_int
}

/// One message by a lane, or as many as the kernel gives, which is then all.
///
/// # Safety
/// As recvmmsg(2).
unsafe fn receive_some(
    fd: c_int,
    datagram: &'static Datagram,
    (messages, count): (*mut mmsghdr, c_uint),
    flags: c_int,
    timeout: *mut timespec,
) -> Result<(), c_int> {
    let kernel = move |asked: Kernel| {
        let (count, timeout) = if asked.one { (1, core::ptr::null_mut()) } else { (count, timeout) };
        // SAFETY: the program's arguments, handed on.
        unsafe { real::recvmmsg(fd, messages, count, asked.flags, timeout) as ssize_t }
    };
    check(messages, 1).map_err(fail)?;
    // SAFETY: it is there, and what it points to is as recvmmsg(2) asks.
    unsafe {
        let header = &raw mut (*messages).msg_hdr;
        let mut vectors = Vectors::of_message((*header).msg_iov, (*header).msg_iovlen).map_err(fail)?;
        let reported_flags = flags & !libc::MSG_WAITFORONE;
        match receive(fd, datagram, vectors.buffers_mut(), flags, kernel) {
            Ok(taken) => {
                (*messages).msg_len = reported_len(taken, reported_flags) as c_uint;
                fill(&mut *header, taken, datagram, reported_flags).map_err(fail)
            }
            Err(came_by_kernel) => {
                match came_by_kernel {
                    1.. => came(fd, datagram, flags, name_of(header), came_by_kernel as u32),
                    0 => {}
                    _ => has_failed(fd, datagram),
                }
                Err(came_by_kernel as c_int)
            }
        }
    }
}
