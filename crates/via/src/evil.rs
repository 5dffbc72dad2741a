//! The functions of `include/evil.h`: the six of the EVIL paper, and what it left open. Called by C programs and by the Python package.
//! The header is generated from the comments here.

use crate::channel::Channel;
use crate::error::Error;
use crate::link::Readiness;
use crate::sleep::{Deadline, until};
use crate::table::Table;
use std::ffi::{CStr, c_char, c_int, c_short, c_void};
use std::sync::Arc;
use std::time::Duration;
use toe_abi::via::{DATA_LEN, FRAGMENT_MAX, NodeName};

/// Bytes of a name with the zero behind it.
pub const VIA_NAME_LEN: usize = 36;
/// The other side has sent something, or has left.
pub const VIA_IN: c_short = 1;
/// A small message can be sent without waiting.
pub const VIA_OUT: c_short = 4;
/// The other side has left. Always reported.
pub const VIA_HUP: c_short = 16;

/// A channel. Filled in by via_open; to be passed on, not to be changed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ViaChann {
    /// The peer's name as via_open was given it, and the port.
    pub name: [c_char; VIA_NAME_LEN],
    /// The virtual interface: the library's number for the channel. 0: none.
    pub viHand: c_int,
    /// The network interface: 0, the process's engine.
    pub nicHand: c_int,
    /// The memory protection tag: 0, the library's own.
    pub ptag: c_int,
    /// The port.
    pub port: c_int,
    /// This node's name, and that of the peer.
    pub localAddr: [c_char; VIA_NAME_LEN],
    pub remoteAddr: [c_char; VIA_NAME_LEN],
    /// Receive buffers, used round robin: how many of what size. They lie in memory that is made when the two have met.
    pub buffers: c_int,
    pub bufferSize: c_int,
}

/// A channel to be waited for by via_poll.
#[derive(Debug)]
#[repr(C)]
pub struct ViaPoll {
    pub chann: *const ViaChann,
    /// VIA_IN, VIA_OUT.
    pub events: c_short,
    /// Filled in: VIA_IN, VIA_OUT, VIA_HUP.
    pub revents: c_short,
}

/// The channels of the process's records.
static CHANNELS: Table<Channel> = Table::new();

#[inline]
fn channel(handle: c_int) -> Result<Arc<Channel>, Error> {
    CHANNELS.get(handle).ok_or(Error::NoChannel)
}

fn status(result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => error.code(),
    }
}

fn name_of(name: Option<NodeName>) -> [c_char; VIA_NAME_LEN] {
    let mut bytes = [0; VIA_NAME_LEN];
    let name = name.as_ref().map_or(&b"*"[..], NodeName::as_bytes);
    bytes.iter_mut().zip(name).for_each(|(to, from)| *to = *from as c_char);
    bytes
}

/// Opens a channel to the node `peer` (see below) at `port`, 1 to 255, and fills in `vc`. A peer that is NULL, "" or "*" is
/// anybody for via_wait and this node for via_connect, as "localhost" is. The first channel attaches the process to its engine: that of the
/// environment variable TOE_ENGINE, else the user's engine named "default", else root's.
///
/// A node has the host's name, or that in the environment variable TOE_VIA_NODE. A peer that is an IP address is a program at another
/// host's engine; a program is found from there if the environment variable TOE_VIA_ADDRESS has that address when it waits.
///
/// Blocks until the engine has answered. Returns 0, or a negative number of which via_strerror tells the meaning.
///
/// # Safety
/// `vc` is NULL or can be written to; `peer` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn via_open(vc: *mut ViaChann, peer: *const c_char, port: c_int) -> c_int {
    let opened = || {
        if vc.is_null() {
            return Err(Error::Invalid);
        }
        let peer = if peer.is_null() {
            ""
        } else {
            // SAFETY: needed to read the caller's string; that it is one he has promised.
            unsafe { CStr::from_ptr(peer) }.to_str().map_err(|_| Error::Invalid)?
        };
        let channel = Channel::open(peer, u8::try_from(port).map_err(|_| Error::Invalid)?)?;
        let (local, remote) = (name_of(Some(channel.node())), name_of(channel.peer()));
        let record = ViaChann {
            name: remote,
            viHand: CHANNELS.add(Arc::new(channel)).ok_or(Error::NoRoom)?,
            nicHand: 0,
            ptag: 0,
            port,
            localAddr: local,
            remoteAddr: remote,
            buffers: (DATA_LEN / u64::from(FRAGMENT_MAX)) as c_int,
            bufferSize: FRAGMENT_MAX as c_int,
        };
        // SAFETY: needed to fill in the caller's record, of which he has promised that it can be written to.
        unsafe { vc.write(record) };
        Ok(())
    };
    status(opened())
}

/// Waits until the channel's peer connects at its port, and accepts.
///
/// Blocks as long as via_timeout says. Returns 0 or a negative number.
#[unsafe(no_mangle)]
pub extern "C" fn via_wait(vc: ViaChann) -> c_int {
    status(channel(vc.viHand).and_then(|channel| channel.wait()))
}

/// Connects to the channel's peer at its port. The peer may come to wait there later.
///
/// Blocks as long as via_timeout says, and half a minute if that was not called. Returns 0 or a negative number.
#[unsafe(no_mangle)]
pub extern "C" fn via_connect(vc: ViaChann) -> c_int {
    status(channel(vc.viHand).and_then(|channel| channel.connect()))
}

/// Sends a message of `size` bytes. Messages are received in their order, whole, and none is lost: while the other side has no room for
/// more, the call waits.
///
/// Blocks as long as via_timeout says; returns 0 once `data` may be used again, or a negative number. One thread may send while another
/// receives.
///
/// # Safety
/// `data` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn via_send(vc: ViaChann, data: *const c_void, size: c_int) -> c_int {
    let Ok(len) = usize::try_from(size) else { return Error::Invalid.code() };
    if data.is_null() && len > 0 {
        return Error::Invalid.code();
    }
    let bytes = match len {
        0 => &[],
        // SAFETY: needed to read what the caller sends, of which he has promised that it is there.
        _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) },
    };
    status(channel(vc.viHand).and_then(|channel| channel.send(bytes)))
}

/// Receives the next message into `data`, where there is room for `size` bytes. A message that is longer is not taken (via_size tells its
/// length).
///
/// Blocks as long as via_timeout says. Returns the length of the message, or a negative number.
///
/// # Safety
/// `data` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn via_recv(vc: ViaChann, data: *mut c_void, size: c_int) -> c_int {
    let Ok(len) = usize::try_from(size) else { return Error::Invalid.code() };
    if data.is_null() && len > 0 {
        return Error::Invalid.code();
    }
    let bytes = match len {
        0 => &mut [],
        // SAFETY: needed to write to the caller's buffer, of which he has promised that it is there.
        _ => unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), len) },
    };
    match channel(vc.viHand).and_then(|channel| channel.recv(bytes)) {
        Ok(len) => len as c_int,
        Err(error) => error.code(),
    }
}

/// Closes the channel: the other side receives what was sent, and then hears of the end. Not while another thread is in a call on it.
///
/// Returns 0 or a negative number.
#[unsafe(no_mangle)]
pub extern "C" fn via_close(vc: ViaChann) -> c_int {
    status(CHANNELS.remove(vc.viHand).ok_or(Error::NoChannel).map(|channel| channel.close()))
}

/// The length of the next message. Blocks until one comes, as long as via_timeout says. Returns it, or a negative number.
#[unsafe(no_mangle)]
pub extern "C" fn via_size(vc: ViaChann) -> c_int {
    match channel(vc.viHand).and_then(|channel| channel.size()) {
        Ok(len) => c_int::try_from(len).unwrap_or(c_int::MAX),
        Err(error) => error.code(),
    }
}

/// How long each call on the channel may take from now on, in milliseconds; negative: as long as it takes, as at first all but via_connect. Returns 0 or a
/// negative number.
#[unsafe(no_mangle)]
pub extern "C" fn via_timeout(vc: ViaChann, limit_ms: c_int) -> c_int {
    status(channel(vc.viHand).map(|channel| channel.set_timeout_ms(limit_ms)))
}

/// Waits until one of `count` connected channels can do what its `events` ask for, and fills in `revents`. `limit_ms`: at most so long,
/// negative: as long as it takes, 0: does not block.
///
/// Returns how many channels have events, 0 when the time is over, or a negative number.
///
/// # Safety
/// `set` has `count` entries, each with a record to point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn via_poll(set: *mut ViaPoll, count: c_int, limit_ms: c_int) -> c_int {
    let Ok(count) = usize::try_from(count) else { return Error::Invalid.code() };
    if set.is_null() || count == 0 {
        return Error::Invalid.code();
    }
    // SAFETY: needed to read and fill in the caller's entries, of which he has promised that they are there.
    let set = unsafe { std::slice::from_raw_parts_mut(set, count) };
    if set.iter().any(|entry| entry.chann.is_null()) {
        return Error::Invalid.code();
    }
    // SAFETY: needed to read the caller's records, of which he has promised that they are there.
    let handles = set.iter().map(|entry| unsafe { (*entry.chann).viHand });
    let channels: Result<Vec<_>, Error> = handles.map(channel).collect();
    match channels.and_then(|channels| poll(set, &channels, limit_ms)) {
        Ok(found) => found as c_int,
        Err(error) => error.code(),
    }
}

fn poll(set: &mut [ViaPoll], channels: &[Arc<Channel>], limit_ms: c_int) -> Result<usize, Error> {
    let session = channels[0].session();
    session.sleepers.take_interrupt(&**session);
    let mut look = || {
        session.look_at_engine();
        let is_over = session.is_gone();
        let mut found = 0;
        for (entry, channel) in set.iter_mut().zip(channels) {
            let wanted = Readiness {
                receives: entry.events & VIA_IN != 0,
                sends: entry.events & VIA_OUT != 0,
                is_closed: true,
            };
            let ready = channel.readiness(wanted)?;
            let is_closed = ready.is_closed || is_over;
            let mut revents = if is_closed { VIA_HUP | entry.events & VIA_IN } else { 0 };
            revents |= if ready.receives { entry.events & VIA_IN } else { 0 };
            revents |= if ready.sends { entry.events & VIA_OUT } else { 0 };
            entry.revents = revents;
            found += usize::from(revents != 0);
        }
        Ok((found > 0).then_some(found))
    };
    let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
    match until(session, Deadline::after(limit), || (), &mut look) {
        Err(Error::TimedOut) => Ok(0),
        found => found,
    }
}

/// A descriptor for poll or epoll, the same for all channels of the process: after via_poll with a limit of 0 has found nothing, it
/// becomes readable when there may be something for a channel that was asked about. Then call via_poll again. It is the library's: do not
/// close it, and let no other thread wait in a call meanwhile.
///
/// Returns it, or a negative number.
#[unsafe(no_mangle)]
pub extern "C" fn via_fd(vc: ViaChann) -> c_int {
    match channel(vc.viHand).and_then(|channel| channel.session().poll_fd()) {
        Ok(fd) => fd,
        Err(error) => error.code(),
    }
}

/// What a negative number means: the cause, and what to do.
#[unsafe(no_mangle)]
pub extern "C" fn via_strerror(error: c_int) -> *const c_char {
    let unknown = if error < 0 { "no such error of this library\0" } else { "no error\0" };
    Error::from_code(error).map_or(unknown, Error::text).as_ptr().cast()
}
