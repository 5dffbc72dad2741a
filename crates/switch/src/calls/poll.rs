//! poll, ppoll, select, pselect. A set without a descriptor of an engine is the kernel's; a mixed one is the host
//! library's, which waits for both. select is poll in another form.

use super::cancel::point;
use super::wait_limits::{mask_at, select_timeout, timeout_ms, timeout_of};
use crate::ffi::{fail, guarded, number};
use crate::lookup;
use crate::{adopt, real};
use core::ffi::{c_int, c_ulong};
use core::time::Duration;
use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use toe::datagram::LaneWait;
use toe::{Errno, fd_table, program_memory, sys};

/// Whether a time limit that is given is not there. The C library would read it; of a call that is made by its number the kernel would.
fn is_nowhere<T>(timeout: *const T) -> bool {
    !timeout.is_null() && program_memory::check(timeout, 1).is_err()
}

/// The program's array, when one of its descriptors is an engine's.
///
/// # Safety
/// `fds` points to `count` entries that are valid while the result is used.
unsafe fn with_toe<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if count == 0 || count > c_int::MAX as nfds_t || program_memory::check(fds, count as usize).is_err() {
        return None;
    }
    // SAFETY: the caller's promise; it is there.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    if adopt::is_any_unused() {
        fds.iter().for_each(|polled| adopt::on_use(polled.fd));
    }
    toe::poll::has_toe(fds).then_some(fds)
}

fn wait(fds: &mut [pollfd], timeout: Option<Duration>, mask: Option<&sigset_t>) -> Result<c_int, Errno> {
    toe::poll::poll(fds, timeout, mask).map(|ready| ready as c_int)
}

/// Whether a datagram may be in a lane that makes this one readable.
fn concerns_lanes(fd: c_int) -> bool {
    fd_table::datagram(fd).is_some() || fd_table::epoll_set(fd).is_some()
}

/// A poll of a set in which there are UDP sockets: `call` makes it with its own time limit, or, where something is in a lane, with
/// none. Without such sockets there is nothing to do.
///
/// # Safety
/// As [`with_toe`].
unsafe fn with_lanes(fds: *mut pollfd, count: nfds_t, call: impl FnOnce(bool) -> c_int) -> c_int {
    let is_there =
        count > 0 && count <= c_int::MAX as nfds_t && program_memory::check(fds, count as usize).is_ok();
    if !is_there {
        return call(false);
    }
    // SAFETY: the caller's promise; it is there. Nobody else looks at it between the two uses.
    let polled = || unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    if !polled().iter().any(|polled| concerns_lanes(polled.fd)) {
        return call(false);
    }
    let reads = |polled: &&pollfd| polled.events & (libc::POLLIN | libc::POLLRDNORM) != 0;
    let lanes =
        LaneWait::begin(polled().iter().filter(reads).map(|polled| polled.fd), |look| guarded((), look));
    let ready = call(lanes.is_over());
    lanes.end_poll(polled(), ready)
}

/// # Safety
/// As poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let call = |is_over| {
        let timeout = if is_over { 0 } else { timeout };
        // SAFETY: the program's arguments, handed on.
        match unsafe { with_toe(fds, count) } {
            // SAFETY: as above.
            None => unsafe { real::poll(fds, count, timeout) },
            Some(fds) => point(-1, || number(wait(fds, timeout_ms(timeout), None))),
        }
    };
    // SAFETY: as above.
    unsafe { with_lanes(fds, count, call) }
}

/// # Safety
/// As ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if is_nowhere(timeout) {
        return fail(program_memory::EFAULT);
    }
    let call = |is_over| {
        let timeout = if is_over { &raw const AT_ONCE } else { timeout };
        // SAFETY: the program's arguments, handed on.
        match unsafe { with_toe(fds, count) } {
            // SAFETY: as above.
            None => unsafe { real::ppoll(fds, count, timeout, mask) },
            Some(fds) => point(-1, || {
                // SAFETY: as above.
                let limits = unsafe { timeout_of(timeout).and_then(|time| Ok((time, mask_at(mask)?))) };
                number(limits.and_then(|(time, mask)| wait(fds, time, mask)))
            }),
        }
    };
    // SAFETY: as above.
    unsafe { with_lanes(fds, count, call) }
}

/// A time limit that is over.
static AT_ONCE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// The three sets of select, as words.
struct Sets {
    sets: [*mut c_ulong; 3],
    count: c_int,
}

/// UDP sockets of one set that keep their lanes.
const LANES_LOOKED_AT: usize = 16;

/// What poll asks and answers for each of select's sets (Linux: POLLIN_SET, POLLOUT_SET, POLLEX_SET).
const ASKED: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND,
    libc::POLLPRI,
];
const ANSWERED: [i16; 3] = [ASKED[0] | libc::POLLHUP | libc::POLLERR, ASKED[1] | libc::POLLERR, ASKED[2]];

impl Sets {
    const BITS: usize = c_ulong::BITS as usize;

    fn new(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set) -> Sets {
        Sets { sets: [read.cast(), write.cast(), except.cast()], count }
    }

    fn words(&self) -> usize {
        usize::try_from(self.count).unwrap_or(0).div_ceil(Sets::BITS)
    }

    /// Calls `each` with every descriptor in a set and what poll should ask for it, until it returns `true`.
    ///
    /// # Safety
    /// The sets that are not null have `count` bits.
    unsafe fn any(&self, mut each: impl FnMut(c_int, i16) -> bool) -> bool {
        for word in 0..self.words() {
            let bits = self.sets.map(|set| {
                // SAFETY: the caller's promise.
                if set.is_null() { 0 } else { unsafe { set.add(word).read() } }
            });
            let mut left = bits[0] | bits[1] | bits[2];
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let fd = (word * Sets::BITS) as c_int + bit as c_int;
                let asked =
                    (0..3).filter(|&n| bits[n] & (1 << bit) != 0).fold(0, |asked, n| asked | ASKED[n]);
                if fd < self.count && each(fd, asked) {
                    return true;
                }
            }
        }
        false
    }

    /// # Safety
    /// As [`Sets::any`].
    unsafe fn has_toe(&self) -> bool {
        if self.sets.iter().any(|set| !set.is_null() && program_memory::check(*set, self.words()).is_err()) {
            return false;
        }
        if adopt::is_any_unused() {
            // SAFETY: the caller's promise.
            unsafe {
                self.any(|fd, _| {
                    adopt::on_use(fd);
                    false
                });
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.any(|fd, asked| toe::poll::has_toe(&[pollfd { fd, events: asked, revents: 0 }])) }
    }

    /// As [`with_lanes`], for select.
    ///
    /// # Safety
    /// As [`Sets::any`], and the sets are writable.
    unsafe fn with_lanes(&self, call: impl FnOnce(bool) -> c_int) -> c_int {
        let is_there =
            |set: &*mut c_ulong| set.is_null() || program_memory::check(*set, self.words()).is_ok();
        let is_of_lanes = |fd, asked| asked & ASKED[0] != 0 && concerns_lanes(fd);
        if !self.sets.iter().all(is_there) {
            return call(false);
        }
        // SAFETY: the caller's promise; it is there.
        let concerns = unsafe { self.any(is_of_lanes) };
        if !concerns {
            return call(false);
        }
        // A set of select's is for so many descriptors at most that they are looked at one by one.
        let mut fds = [-1; LANES_LOOKED_AT];
        let mut count = 0;
        // SAFETY: as above.
        unsafe {
            self.any(|fd, asked| {
                if is_of_lanes(fd, asked) {
                    match fds.get_mut(count) {
                        Some(slot) => *slot = fd,
                        None => lookup::leave_lanes(fd),
                    }
                    count += 1;
                }
                false
            });
        }
        let lanes = LaneWait::begin(fds.into_iter().take(count), |look| guarded((), look));
        let ready = call(lanes.is_over());
        lanes.end_select(ready, |fd| {
            let (word, bit) = (fd as usize / Sets::BITS, 1 << (fd as usize % Sets::BITS));
            // SAFETY: the caller's promise; the descriptor was in the set.
            unsafe {
                let set = self.sets[0].add(word);
                let was_in = *set & bit != 0;
                *set |= bit;
                !was_in
            }
        })
    }

    /// In a set with sockets of an engine's, UDP sockets are the kernel's alone.
    ///
    /// # Safety
    /// As [`Sets::any`].
    unsafe fn leave_lanes(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.any(|fd, _| {
                lookup::leave_lanes(fd);
                false
            });
        }
    }

    /// Writes poll's answers to the sets and counts the bits.
    ///
    /// # Safety
    /// As [`Sets::any`], and the sets are writable.
    unsafe fn answer(&self, fds: &[pollfd]) -> c_int {
        let mut ready = 0;
        for (n, set) in self.sets.into_iter().enumerate().filter(|(_, set)| !set.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { core::ptr::write_bytes(set, 0, self.words()) };
            for entry in fds.iter().filter(|e| e.events & ASKED[n] != 0 && e.revents & ANSWERED[n] != 0) {
                let fd = entry.fd as usize;
                // SAFETY: the caller's promise; `fd` is below `count`.
                unsafe { *set.add(fd / Sets::BITS) |= 1 << (fd % Sets::BITS) };
                ready += 1;
            }
        }
        ready
    }

    /// # Safety
    /// As [`Sets::answer`].
    unsafe fn wait(&self, timeout: Option<Duration>, mask: Option<&sigset_t>) -> Result<c_int, Errno> {
        let mut fds = Vec::new();
        // SAFETY: the caller's promise.
        unsafe {
            self.any(|fd, events| {
                fds.push(pollfd { fd, events, revents: 0 });
                false
            });
        }
        let was_ours: Vec<bool> = fds.iter().map(|e| fd_table::get(e.fd).is_some()).collect();
        wait(&mut fds, timeout, mask)?;
        for (entry, was_ours) in fds.iter_mut().zip(was_ours).filter(|(e, _)| e.revents & libc::POLLNVAL != 0)
        {
            if !was_ours {
                return Err(Errno::EBADF);
            }
            // Closed by another thread meanwhile: of Linux it is ready for all that was asked.
            entry.revents = libc::POLLIN | libc::POLLOUT | libc::POLLPRI;
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { self.answer(&fds) })
    }
}

/// # Safety
/// As select(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = Sets::new(count, read, write, except);
    if is_nowhere(timeout) {
        return fail(program_memory::EFAULT);
    }
    // SAFETY: the program's arguments, handed on.
    if !unsafe { sets.has_toe() } {
        let call = |is_over| {
            let mut at_once = timeval { tv_sec: 0, tv_usec: 0 };
            let timeout = if is_over { &raw mut at_once } else { timeout };
            // SAFETY: as above.
            unsafe { real::select(count, read, write, except, timeout) }
        };
        // SAFETY: as above.
        return unsafe { sets.with_lanes(call) };
    }
    // SAFETY: as above.
    unsafe { sets.leave_lanes() };
    point(-1, || {
        // SAFETY: as above.
        let time = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) => match select_timeout(time) {
                Some(time) => Some(time),
                None => return fail(Errno::EINVAL),
            },
        };
        let deadline = time.map(|time| sys::now() + time);
        // SAFETY: as above.
        let result = unsafe { sets.wait(time, None) };
        // SAFETY: as above. Linux leaves the time that was left there.
        if let (Some(deadline), Some(timeout)) = (deadline, unsafe { timeout.as_mut() }) {
            let left = deadline.saturating_sub(sys::now());
            timeout.tv_sec = left.as_secs() as libc::time_t;
            timeout.tv_usec = libc::suseconds_t::from(left.subsec_micros() as i32);
        }
        number(result)
    })
}

/// # Safety
/// As pselect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = Sets::new(count, read, write, except);
    if is_nowhere(timeout) {
        return fail(program_memory::EFAULT);
    }
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if !sets.has_toe() {
            return sets.with_lanes(|is_over| {
                let timeout = if is_over { &raw const AT_ONCE } else { timeout };
                real::pselect(count, read, write, except, timeout, mask)
            });
        }
        sets.leave_lanes();
        point(-1, || number(timeout_of(timeout).and_then(|time| sets.wait(time, mask_at(mask)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(fds: &[usize]) -> fd_set {
        // SAFETY: an all-zero set is the empty one.
        let mut set: fd_set = unsafe { core::mem::zeroed() };
        let words = (&raw mut set).cast::<c_ulong>();
        for fd in fds {
            // SAFETY: below FD_SETSIZE.
            unsafe { *words.add(fd / Sets::BITS) |= 1 << (fd % Sets::BITS) };
        }
        set
    }

    #[test]
    fn sets_become_poll_entries_and_back() {
        let (mut read, mut write) = (set(&[0, 5, 64, 700]), set(&[5]));
        let sets = Sets::new(700, &mut read, &mut write, core::ptr::null_mut());
        let mut fds = Vec::new();
        // SAFETY: full-size sets.
        unsafe {
            sets.any(|fd, events| {
                fds.push(pollfd { fd, events, revents: 0 });
                false
            });
        }
        assert_eq!(fds.iter().map(|e| e.fd).collect::<Vec<_>>(), [0, 5, 64]);
        assert_eq!(fds[1].events, ASKED[0] | ASKED[1]);
        fds[1].revents = libc::POLLERR;
        fds[2].revents = libc::POLLOUT | libc::POLLHUP;
        // SAFETY: as above.
        assert_eq!(unsafe { sets.answer(&fds) }, 3);
        // SAFETY: plain data.
        unsafe {
            assert!(libc::FD_ISSET(5, &read) && libc::FD_ISSET(64, &read) && libc::FD_ISSET(5, &write));
            assert!(!libc::FD_ISSET(0, &read));
        }
    }
}
