//! Messages, and the peer's memory written and read: what programs post to endpoints.

use crate::ep::Bound;
use crate::ep::object::EpObject;
use crate::info::INJECT_MAX;
use crate::object::{Object, posted};
use crate::sys::{self, FidPtr, Msg, MsgOps, MsgRma, RmaOps, Ssize, iovec};
use std::ffi::c_void;
use toe_via::core::operation::DATA_MAX;
use toe_via::endpoint::post::{Buffers, Notify, PARTS_MAX, Part, Post, Receive, Target, Work};

pub static MSG_OPS: MsgOps = MsgOps {
    size: size_of::<MsgOps>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

pub static RMA_OPS: RmaOps = RmaOps {
    size: size_of::<RmaOps>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject: inject_write,
    writedata,
    injectdata: inject_writedata,
};

/// What the program's memory is, in one piece.
fn buffer(buf: *const c_void, len: usize) -> Option<Buffers> {
    let len = u32::try_from(len).ok().filter(|len| *len <= DATA_MAX)?;
    Some(Buffers::one(Part { address: buf.expose_provenance() as u64, handle: 0, len }))
}

/// The same in several.
///
/// # Safety
/// `count` entries.
unsafe fn buffers(iov: *const iovec, count: usize) -> Option<Buffers> {
    let mut buffers = Buffers::default();
    if count > PARTS_MAX {
        return None;
    }
    for index in 0..count {
        // SAFETY: needed to read what the program lists.
        let iovec { iov_base, iov_len } = unsafe { iov.add(index).read() };
        let len = u32::try_from(iov_len).ok()?;
        buffers.push(Part { address: iov_base.expose_provenance() as u64, handle: 0, len });
        buffers.len = buffers.len.checked_add(len).filter(|len| *len <= DATA_MAX)?;
    }
    Some(buffers)
}

/// How a post of a call with flags is told; without flags the endpoint's own count.
fn notify(bound: &Bound, flags: Option<u64>) -> Notify {
    let is_marked = flags.map_or(bound.is_marked, |flags| flags & sys::COMPLETION != 0);
    if is_marked || !bound.is_selective() { Notify::Always } else { Notify::Failure }
}

/// What a call wants, beside where its bytes are.
#[derive(Clone, Copy)]
struct Call {
    work: Work,
    context: *mut c_void,
    immediate: Option<u64>,
    flags: Option<u64>,
    /// The program wants its memory back at once, and to hear nothing.
    is_injected: bool,
}

impl Call {
    const fn new(work: Work, context: *mut c_void) -> Call {
        Call { work, context, immediate: None, flags: None, is_injected: false }
    }

    const fn injected(work: Work) -> Call {
        Call { is_injected: true, ..Call::new(work, std::ptr::null_mut()) }
    }

    /// # Safety
    /// `fid` is an endpoint of this provider's, and the bytes stay until the end of the post is told.
    unsafe fn post(self, fid: FidPtr, buffers: Option<Buffers>) -> Ssize {
        // SAFETY: needed to find what the program means.
        let ep = &unsafe { EpObject::of(fid) }.ep;
        let is_copied = self.is_injected || self.flags.is_some_and(|flags| flags & sys::INJECT != 0);
        let Some(buffers) = buffers.filter(|buffers| !is_copied || buffers.len as usize <= INJECT_MAX) else {
            return -(libc::EMSGSIZE as Ssize);
        };
        let notify = if self.is_injected { Notify::Never } else { notify(&ep.sends, self.flags) };
        let immediate = self.immediate.map(|data| data as u32);
        let context = self.context.expose_provenance();
        let post = Post { work: self.work, buffers, immediate, context, notify };
        let regions = ep.domain.regions();
        posted(ep.endpoint.post(post, is_copied, &regions, |completion| ep.tell(completion)))
    }
}

/// # Safety
/// As [`Call::post`].
unsafe fn receive(fid: FidPtr, buffers: Option<Buffers>, context: *mut c_void, flags: Option<u64>) -> Ssize {
    // SAFETY: needed to find what the program means.
    let ep = &unsafe { EpObject::of(fid) }.ep;
    let Some(buffers) = buffers else { return -(libc::EMSGSIZE as Ssize) };
    let notify = notify(&ep.receives, flags);
    posted(ep.endpoint.receive(Receive { buffers, context: context.expose_provenance(), notify }))
}

/// The key and offset that a program has of its peer. `None`: no key of this provider's.
fn target(offset: u64, key: u64) -> Option<Target> {
    Some(Target { offset, key: u32::try_from(key).ok()? })
}

const NO_KEY: Ssize = -(libc::EKEYREJECTED as Ssize);

// SAFETY of all that follow: libfabric's rules for each call (fi_msg(3), fi_rma(3)) are what `Call::post`, `receive` and `buffers` need.

unsafe extern "C" fn recv(
    fid: FidPtr,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    _from: u64,
    context: *mut c_void,
) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe { receive(fid, buffer(buf, len), context, None) }
}

unsafe extern "C" fn recvv(
    fid: FidPtr,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    _from: u64,
    context: *mut c_void,
) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe { receive(fid, buffers(iov, count), context, None) }
}

unsafe extern "C" fn recvmsg(fid: FidPtr, msg: *const Msg, flags: u64) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe { receive(fid, buffers((*msg).msg_iov, (*msg).iov_count), (*msg).context, Some(flags)) }
}

unsafe extern "C" fn send(
    fid: FidPtr,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    _to: u64,
    context: *mut c_void,
) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe { Call::new(Work::Send, context).post(fid, buffer(buf, len)) }
}

unsafe extern "C" fn sendv(
    fid: FidPtr,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    _to: u64,
    context: *mut c_void,
) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe { Call::new(Work::Send, context).post(fid, buffers(iov, count)) }
}

unsafe extern "C" fn sendmsg(fid: FidPtr, msg: *const Msg, flags: u64) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe {
        let immediate = (flags & sys::REMOTE_CQ_DATA != 0).then_some((*msg).data);
        let call = Call { immediate, flags: Some(flags), ..Call::new(Work::Send, (*msg).context) };
        call.post(fid, buffers((*msg).msg_iov, (*msg).iov_count))
    }
}

unsafe extern "C" fn inject(fid: FidPtr, buf: *const c_void, len: usize, _to: u64) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe { Call::injected(Work::Send).post(fid, buffer(buf, len)) }
}

unsafe extern "C" fn senddata(
    fid: FidPtr,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    _to: u64,
    context: *mut c_void,
) -> Ssize {
    let call = Call { immediate: Some(data), ..Call::new(Work::Send, context) };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { call.post(fid, buffer(buf, len)) }
}

unsafe extern "C" fn injectdata(fid: FidPtr, buf: *const c_void, len: usize, data: u64, _to: u64) -> Ssize {
    let call = Call { immediate: Some(data), ..Call::injected(Work::Send) };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { call.post(fid, buffer(buf, len)) }
}

unsafe extern "C" fn read(
    fid: FidPtr,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    _from: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> Ssize {
    let Some(target) = target(offset, key) else { return NO_KEY };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { Call::new(Work::Read(target), context).post(fid, buffer(buf, len)) }
}

unsafe extern "C" fn readv(
    fid: FidPtr,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    _from: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> Ssize {
    let Some(target) = target(offset, key) else { return NO_KEY };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { Call::new(Work::Read(target), context).post(fid, buffers(iov, count)) }
}

/// The one part of the peer's memory that a message names.
///
/// # Safety
/// As libfabric has it.
unsafe fn target_of(msg: *const MsgRma) -> Result<Target, Ssize> {
    // SAFETY: needed to read what the program passes.
    let (iov, count) = unsafe { ((*msg).rma_iov, (*msg).rma_iov_count) };
    if count != 1 {
        return Err(-(libc::EINVAL as Ssize));
    }
    // SAFETY: needed as above, of the one that there is.
    let (addr, key) = unsafe { ((*iov).addr, (*iov).key) };
    target(addr, key).ok_or(NO_KEY)
}

unsafe extern "C" fn readmsg(fid: FidPtr, msg: *const MsgRma, flags: u64) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe {
        let target = match target_of(msg) {
            Ok(target) => target,
            Err(errno) => return errno,
        };
        let call =
            Call { flags: Some(flags & !sys::INJECT), ..Call::new(Work::Read(target), (*msg).context) };
        call.post(fid, buffers((*msg).msg_iov, (*msg).iov_count))
    }
}

unsafe extern "C" fn write(
    fid: FidPtr,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    _to: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> Ssize {
    let Some(target) = target(offset, key) else { return NO_KEY };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { Call::new(Work::Write(target), context).post(fid, buffer(buf, len)) }
}

unsafe extern "C" fn writev(
    fid: FidPtr,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    _to: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> Ssize {
    let Some(target) = target(offset, key) else { return NO_KEY };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { Call::new(Work::Write(target), context).post(fid, buffers(iov, count)) }
}

unsafe extern "C" fn writemsg(fid: FidPtr, msg: *const MsgRma, flags: u64) -> Ssize {
    // SAFETY: needed to do what the program asks (see above).
    unsafe {
        let target = match target_of(msg) {
            Ok(target) => target,
            Err(errno) => return errno,
        };
        let immediate = (flags & sys::REMOTE_CQ_DATA != 0).then_some((*msg).data);
        let call = Call::new(Work::Write(target), (*msg).context);
        let call = Call { immediate, flags: Some(flags), ..call };
        call.post(fid, buffers((*msg).msg_iov, (*msg).iov_count))
    }
}

unsafe extern "C" fn inject_write(
    fid: FidPtr,
    buf: *const c_void,
    len: usize,
    _to: u64,
    offset: u64,
    key: u64,
) -> Ssize {
    let Some(target) = target(offset, key) else { return NO_KEY };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { Call::injected(Work::Write(target)).post(fid, buffer(buf, len)) }
}

unsafe extern "C" fn writedata(
    fid: FidPtr,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    _to: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> Ssize {
    let Some(target) = target(offset, key) else { return NO_KEY };
    let call = Call { immediate: Some(data), ..Call::new(Work::Write(target), context) };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { call.post(fid, buffer(buf, len)) }
}

unsafe extern "C" fn inject_writedata(
    fid: FidPtr,
    buf: *const c_void,
    len: usize,
    data: u64,
    _to: u64,
    offset: u64,
    key: u64,
) -> Ssize {
    let Some(target) = target(offset, key) else { return NO_KEY };
    let call = Call { immediate: Some(data), ..Call::injected(Work::Write(target)) };
    // SAFETY: needed to do what the program asks (see above).
    unsafe { call.post(fid, buffer(buf, len)) }
}
