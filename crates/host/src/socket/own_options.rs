//! Options that the library acts on itself: SO_LINGER, the sizes of buffers; and how many a program has set at all.

use super::{Socket, stream};
use toe_abi::entry::FlowOption;
use toe_abi::errno::Errno;
use toe_base::limits::RECEIVE_WINDOW_MAX;

/// Linux's smallest receive buffer.
const RECEIVE_BUFFER_MIN: u32 = 2304;
/// Younger than some libc crates, and its values: SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK.
const SO_BUF_LOCK: i32 = 72;
const SEND_LOCKED: i32 = 1;
const RECEIVE_LOCKED: i32 = 2;
/// What Linux makes of the size of a buffer: twice the value, which of a negative one is as large as can be, unless it is forced.
fn buffer(value: i32, is_forced: bool) -> u32 {
    let value = if is_forced { value.max(0) } else { value };
    (value as u32).min(i32::MAX as u32 / 2).max(1) * 2
}

/// SO_BUF_LOCK shows which sizes were set.
fn lock_buffer(socket: &'static Socket, level: i32, which: i32) {
    let mut locked = 0;
    socket.with_saved_option(level, SO_BUF_LOCK, |value| {
        locked = crate::socket::options::values::int(value).unwrap_or(0)
    });
    if locked & which == 0 {
        socket.keep_option(level, SO_BUF_LOCK, &(locked | which).to_ne_bytes());
    }
}

impl Socket {
    pub(super) fn set_linger(&'static self, level: i32, value: &[u8]) -> Result<(), Errno> {
        let (before, now) = {
            let linger = &mut self.settings.lock().linger;
            let before = *linger;
            linger.set(value)?;
            (before, *linger)
        };
        // However the last descriptor is closed: the engine sees that, and may be the only one that does.
        if now.aborts() != before.aborts() {
            self.tell_engine(level, FlowOption::AbortAtClose, now.aborts().into());
        }
        Ok(())
    }

    /// SO_RCVBUF and SO_SNDBUF, and their forced kind.
    pub(super) fn set_buffer(&'static self, level: i32, name: i32, value: i32) {
        let is_forced = matches!(name, libc::SO_RCVBUFFORCE | libc::SO_SNDBUFFORCE);
        let size = buffer(value, is_forced);
        let is_receive = matches!(name, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE);
        lock_buffer(self, level, if is_receive { RECEIVE_LOCKED } else { SEND_LOCKED });
        if is_receive {
            let size = size.clamp(RECEIVE_BUFFER_MIN, RECEIVE_WINDOW_MAX);
            self.settings.lock().receive_window = Some(size);
            self.bound_window(level);
            return;
        }
        self.settings.lock().send_limit = Some(size);
        self.with_stream(|_, stream, _| {
            stream.send.set_limit(stream.direct.as_deref_mut(), size);
            // Who waits for room may have it now. Linux says so each time: edge-triggered sets tell it again.
            stream.publish(stream.ready() & stream::OUT);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::options::values::Linger;
    use std::time::Duration;

    fn linger(on: i32, secs: i32) -> Vec<u8> {
        [on.to_ne_bytes(), secs.to_ne_bytes()].concat()
    }

    #[test]
    fn a_linger_that_is_off_shows_the_time_that_it_had() {
        let mut saved = Linger::default();
        assert_eq!(saved.set(&linger(0, 5)), Ok(()));
        assert_eq!((saved.time(), saved.value().to_vec()), (None, linger(0, 0)));
        assert_eq!(saved.set(&linger(7, 5)), Ok(()));
        assert_eq!((saved.time(), saved.value().to_vec()), (Some(Duration::from_secs(5)), linger(1, 5)));
        assert_eq!(saved.set(&linger(0, 9)), Ok(()));
        assert_eq!((saved.time(), saved.value().to_vec()), (None, linger(0, 5)));
        assert_eq!(saved.set(&linger(1, 2)[..4]), Err(Errno::EINVAL));
    }

    #[test]
    fn a_negative_size_is_the_largest_unless_it_is_forced() {
        assert_eq!(buffer(-1, false), i32::MAX as u32 / 2 * 2);
        assert_eq!((buffer(-1, true), buffer(0, false), buffer(5000, false)), (2, 2, 10_000));
    }

    #[test]
    fn what_was_set_can_be_set_again() {
        let socket = Socket::allocate();
        assert_eq!(socket.options_set(), []);
        let set = [
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1i32.to_ne_bytes().to_vec()),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, 70_000i32.to_ne_bytes().to_vec()),
            (libc::SOL_SOCKET, libc::SO_LINGER, linger(1, 3)),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO, [2i64.to_ne_bytes(), 5i64.to_ne_bytes()].concat()),
        ];
        for (level, name, value) in &set {
            assert_eq!(socket.set_option(*level, *name, value), Ok(()));
        }
        socket.keep_option(libc::SOL_SOCKET, libc::SO_MARK, &7i32.to_ne_bytes());
        let mut found = socket.options_set();
        found.sort();
        let mut set = set.to_vec();
        set.push((libc::SOL_SOCKET, libc::SO_MARK, 7i32.to_ne_bytes().to_vec()));
        set.push((libc::SOL_SOCKET, SO_BUF_LOCK, SEND_LOCKED.to_ne_bytes().to_vec()));
        set.sort();
        assert_eq!(found, set);
        socket.abandon();
    }
}
