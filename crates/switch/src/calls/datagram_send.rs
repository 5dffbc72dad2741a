//! send and its relatives on a UDP socket: by a lane to another socket, by one to an engine, or by the kernel.

use super::cancel::point;
use super::control_model;
use super::datagram::ask;
use crate::datagram_stack;
use crate::ffi::fail;
use crate::ffi::{Vectors, guarded, length, read_endpoint, slice};
use crate::real;
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::io::IoSlice;
use toe::datagram::control::details_of;
use toe::datagram::{Datagram, Details, Sent};
use toe::program_memory::check;
use toe_abi::attach::Way;
use toe_base::Endpoint;

/// Flags that make no difference to what a lane does.
const PLAIN_SEND: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// What the program says beside the address, of a call with these flags and no control data.
fn plain(flags: c_int) -> Option<&'static Details> {
    const NOTHING: &Details = &Details { from: None, segment: None, hop_limit: None, traffic_class: None };
    (flags & !PLAIN_SEND == 0).then_some(NOTHING)
}

/// A datagram has gone by the kernel.
///
/// # Safety
/// The kernel has read the address, or there is none.
unsafe fn went(
    fd: c_int,
    datagram: &'static Datagram,
    (addr, len): (*const sockaddr, socklen_t),
    datagrams: u32,
) {
    if datagram.counts(Way::Sends, datagrams) {
        guarded((), || {
            // SAFETY: the caller's promise.
            let to = unsafe { read_endpoint(addr, len, datagram.is_inet6()) };
            ask(fd, datagram, Way::Sends, to);
        });
    }
}

/// Sends by a lane; `details` unless a lane does not carry what the program says. `None`: by the kernel.
fn send(
    datagram: &'static Datagram,
    to: Option<Endpoint>,
    from: &[IoSlice<'_>],
    details: Option<&Details>,
) -> Option<ssize_t> {
    let Some(details) = details else {
        guarded((), || datagram.send_from_kernel());
        return None;
    };
    match point(Ok(Sent::Kernel), || datagram.send(to, from, details)) {
        Ok(Sent::Done(len)) => Some(len as ssize_t),
        Ok(Sent::Kernel | Sent::Full) => None,
        Err(error) => Some(length(Err(error))),
    }
}

/// Sends by an engine. `None`: not by one.
fn send_by_engine(
    fd: c_int,
    datagram: &'static Datagram,
    to: Option<Endpoint>,
    from: &[IoSlice<'_>],
    details: (&Details, c_int),
) -> Option<ssize_t> {
    point(None, || datagram_stack::send(fd, datagram, to, from, details))
}

/// # Safety
/// The message is there, and what it points to is as sendmsg(2) asks.
unsafe fn send_message_by_engine(
    fd: c_int,
    datagram: &'static Datagram,
    message: *const msghdr,
    flags: c_int,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    unsafe {
        let to = destination(datagram, message)?;
        let is_refused = flags & libc::MSG_OOB != 0;
        // What Linux says to that, it says before it looks at anything else.
        // 0.0.0.0 is this host, too.
        let is_here = |to: Endpoint| to.addr.is_loopback() || to.addr.is_unspecified();
        if is_refused || to.map_or(!datagram.has_engine(), is_here) {
            return None;
        }
        let judged = details_of(message).and_then(|(details, is_all)| {
            if !is_all {
                control_model::judge(message, datagram.is_inet6())?;
            }
            Ok(details)
        });
        let details = match judged {
            Ok(details) => details,
            Err(error) => return Some(fail(error) as ssize_t),
        };
        let vectors = Vectors::new((*message).msg_iov, (*message).msg_iovlen).ok()?;
        send_by_engine(fd, datagram, to, vectors.buffers(), (&details, flags))
    }
}

/// # Safety
/// As sendto(2).
pub unsafe fn send_to(
    fd: c_int,
    datagram: &'static Datagram,
    (buf, len): (*const c_void, size_t),
    flags: c_int,
    (addr, addr_len): (*const sockaddr, socklen_t),
) -> ssize_t {
    // SAFETY: the caller's promise.
    let to = unsafe { read_endpoint(addr, addr_len, datagram.is_inet6()) };
    if to.map_or(addr.is_null() && datagram.has_engine(), |to| !to.addr.is_loopback()) {
        // SAFETY: as above.
        let from = [IoSlice::new(unsafe { slice(buf, len) })];
        if let Some(sent) = send_by_engine(fd, datagram, to, &from, (&Details::default(), flags)) {
            return sent;
        }
    }
    if datagram.sends_by_lanes() && (addr.is_null() || to.is_some()) {
        // SAFETY: as above.
        let from = [IoSlice::new(unsafe { slice(buf, len) })];
        if let Some(sent) = send(datagram, to, &from, plain(flags)) {
            return sent;
        }
    }
    // SAFETY: the program's arguments, handed on.
    unsafe {
        let sent = real::sendto(fd, buf, len, flags, addr, addr_len);
        if sent >= 0 {
            went(fd, datagram, (addr, addr_len), 1);
        }
        sent
    }
}

/// # Safety
/// As writev(2).
pub unsafe fn send_vectors(
    fd: c_int,
    datagram: &'static Datagram,
    iov: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        if datagram.has_engine()
            && let Ok(vectors) = Vectors::new(iov, count as usize)
            && let details = (&Details::default(), 0)
            && let Some(sent) = send_by_engine(fd, datagram, None, vectors.buffers(), details)
        {
            return sent;
        }
        let by_lane =
            datagram.sends_by_lanes().then(|| send_scattered(datagram, None, iov, count as usize, plain(0)));
        if let Some(sent) = by_lane.flatten() {
            return sent;
        }
        let sent = real::writev(fd, iov, count);
        if sent >= 0 {
            went(fd, datagram, (core::ptr::null(), 0), 1);
        }
        sent
    }
}

/// # Safety
/// As writev(2).
unsafe fn send_scattered(
    datagram: &'static Datagram,
    to: Option<Endpoint>,
    iov: *const iovec,
    count: usize,
    details: Option<&Details>,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    let vectors = unsafe { Vectors::new(iov, count) }.ok()?;
    // SAFETY: as above.
    send(datagram, to, unsafe { vectors.buffers() }, details)
}

/// # Safety
/// The message is there, and what it points to is as sendmsg(2) asks.
unsafe fn send_by_lane(datagram: &'static Datagram, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    unsafe {
        let to = destination(datagram, message)?;
        let details = plain(flags).and_then(|_| details_of(message).ok());
        let details = details.filter(|(_, is_all)| *is_all).map(|(details, _)| details);
        send_scattered(datagram, to, (*message).msg_iov, (*message).msg_iovlen, details.as_ref())
    }
}

/// Where a message goes; `None`: nowhere that a lane leads to. `Some(None)`: to what the socket is connected to.
///
/// # Safety
/// As [`send_by_lane`].
unsafe fn destination(datagram: &'static Datagram, message: *const msghdr) -> Option<Option<Endpoint>> {
    // SAFETY: the caller's promise.
    let (name, len) =
        unsafe { ((*message).msg_name.cast_const().cast::<sockaddr>(), (*message).msg_namelen) };
    if name.is_null() {
        return Some(None);
    }
    // SAFETY: as above.
    unsafe { read_endpoint(name, len, datagram.is_inet6()) }.map(Some)
}

/// # Safety
/// As sendmsg(2).
pub unsafe fn send_message(
    fd: c_int,
    datagram: &'static Datagram,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on; a message that the kernel has taken is valid.
    unsafe {
        if check(message, 1).is_ok()
            && let Some(sent) = send_message_by_engine(fd, datagram, message, flags)
        {
            return sent;
        }
        if datagram.sends_by_lanes()
            && check(message, 1).is_ok()
            && let Some(sent) = send_by_lane(datagram, message, flags)
        {
            return sent;
        }
        let sent = real::sendmsg(fd, message, flags);
        if sent >= 0 {
            went(fd, datagram, ((*message).msg_name.cast_const().cast(), (*message).msg_namelen), 1);
        }
        sent
    }
}

/// Those that go by a lane do so one by one; those between them go by the kernel together.
///
/// # Safety
/// As sendmmsg(2).
pub unsafe fn send_messages(
    fd: c_int,
    datagram: &'static Datagram,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let count = count.min(crate::ffi::IOV_MAX as c_uint);
    let mut done = 0;
    while done < count {
        // SAFETY: the program's array has `count` messages.
        let message = unsafe { messages.add(done as usize) };
        let is_there = check(message, 1).is_ok();
        // SAFETY: it is there.
        let by_engine = is_there
            .then(|| unsafe { send_message_by_engine(fd, datagram, &raw const (*message).msg_hdr, flags) });
        let by_lane = || {
            // SAFETY: as above.
            (is_there && datagram.sends_by_lanes())
                .then(|| unsafe { send_by_lane(datagram, &raw const (*message).msg_hdr, flags) })
        };
        match by_engine.flatten().or_else(|| by_lane().flatten()) {
            // SAFETY: as above.
            Some(len @ 0..) => unsafe { (*message).msg_len = len as c_uint },
            Some(_) if done == 0 => return -1,
            Some(_) => break,
            None => {
                // SAFETY: the program's arguments, handed on.
                let (sent, run) = unsafe { send_run(fd, datagram, message, count - done, flags) };
                if sent <= 0 {
                    return if done == 0 { sent } else { done as c_int };
                }
                done += sent as c_uint;
                // An error ended it, which the kernel tells nobody of.
                if (sent as c_uint) < run {
                    return done as c_int;
                }
                continue;
            }
        }
        done += 1;
    }
    done as c_int
}

/// Sends messages by the kernel, up to the next one that a lane takes. What the kernel's call gave, and of how many messages it was.
///
/// # Safety
/// As sendmmsg(2).
unsafe fn send_run(
    fd: c_int,
    datagram: &'static Datagram,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> (c_int, c_uint) {
    let mut run = if datagram.has_engine() { 1 } else { count };
    if run > 1 && datagram.sends_by_lanes() {
        let is_for_kernel = |n: &c_uint| {
            // SAFETY: the program's array has `count` messages.
            let message = unsafe { messages.add(*n as usize) };
            // SAFETY: it is there, where it is looked at.
            let to = check(message, 1)
                .is_ok()
                .then(|| unsafe { destination(datagram, &raw const (*message).msg_hdr) });
            to.flatten().is_none_or(|to| !guarded(false, || datagram.takes(to)))
        };
        run = 1 + (1..run).take_while(is_for_kernel).count() as c_uint;
    }
    // SAFETY: the program's arguments, handed on; what the kernel has taken is valid.
    unsafe {
        let sent = real::sendmmsg(fd, messages, run, flags);
        if sent > 0 {
            let header = &(*messages).msg_hdr;
            went(fd, datagram, (header.msg_name.cast_const().cast(), header.msg_namelen), sent as u32);
        }
        (sent, run)
    }
}
