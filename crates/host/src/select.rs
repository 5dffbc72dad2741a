//! A sleep on more descriptors than poll(2) takes. It counts its entries against RLIMIT_NOFILE, and a wait of the library's has some
//! that the program knows nothing of; a limit may also fall while threads wait. select(2) counts none, but says less exactly what
//! has come, so poll is asked about that afterwards, as far as it may be.
//!
//! Used by [`crate::wait`], where poll has refused.

use crate::wait_calls;
use crate::waiter::STUCK;
use std::time::Duration;
use toe_abi::errno::Errno;

const BITS: usize = usize::BITS as usize;

/// What of poll's events makes a descriptor one of each of select's sets. Of an end alone (POLLRDHUP) it tells as of bytes.
const ASKED: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLRDHUP,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND,
    libc::POLLPRI,
];
const REPORTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];

/// As ppoll(2), for `polled` of which the first `own` entries are the library's and the others those of a call, which are told of
/// exactly. EINVAL: the call's alone are more than Linux takes. May also end within [`STUCK`] when nothing has come.
pub fn sleep(
    polled: &mut [libc::pollfd],
    own: usize,
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    match wait_calls::ppoll(&mut polled[own..], Some(Duration::ZERO), None) {
        Ok(0) => {}
        // Not even one: epoll_wait and accept wait for one, which Linux limits by nothing.
        Err(Errno::EINVAL) if polled.len() - own <= 1 => {}
        outcome => return outcome,
    }
    let soon = Some(timeout.map_or(STUCK, |timeout| timeout.min(STUCK)));
    let mut sets = Sets::of(polled);
    match wait_calls::pselect(&mut sets.0, timeout, sigmask) {
        // One was closed meanwhile, of which poll tells.
        Err(Errno::EBADF) => return wait_calls::ppoll(&mut [], soon, sigmask),
        Ok(found) if found > 0 => {}
        outcome => return outcome,
    }
    polled.iter_mut().for_each(|entry| entry.revents = sets.reported(entry));
    // Where even that is refused, what select has told stays.
    let _ = wait_calls::ppoll(&mut polled[own..], Some(Duration::ZERO), None);
    match polled.iter().filter(|entry| entry.revents != 0).count() {
        // It is nothing that was asked for, and select would tell of it again at once.
        0 => wait_calls::ppoll(&mut [], soon, sigmask),
        found => Ok(found),
    }
}

/// Those of select's, as bits.
struct Sets([Vec<usize>; 3]);

impl Sets {
    fn of(polled: &[libc::pollfd]) -> Sets {
        let highest = polled.iter().filter_map(|entry| usize::try_from(entry.fd).ok()).max();
        let words = highest.map_or(0, |fd| fd / BITS + 1);
        let mut sets = [const { Vec::new() }; 3].map(|_: Vec<usize>| vec![0; words]);
        for entry in polled {
            let Ok(fd) = usize::try_from(entry.fd) else { continue };
            for (set, asked) in sets.iter_mut().zip(ASKED) {
                if entry.events & asked != 0 {
                    set[fd / BITS] |= 1 << (fd % BITS);
                }
            }
            // An error or an end is told of whatever was asked.
            if entry.events & (ASKED[0] | ASKED[1]) == 0 {
                sets[0][fd / BITS] |= 1 << (fd % BITS);
            }
        }
        Sets(sets)
    }

    fn reported(&self, entry: &libc::pollfd) -> i16 {
        let Ok(fd) = usize::try_from(entry.fd) else { return 0 };
        let is_in = |set: &Vec<usize>| set[fd / BITS] & 1 << (fd % BITS) != 0;
        self.0.iter().zip(REPORTED).filter(|(set, _)| is_in(set)).fold(0, |revents, (_, bit)| revents | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;

    const LONG: Option<Duration> = Some(Duration::from_secs(10));

    fn entry(fd: i32, events: i16) -> libc::pollfd {
        libc::pollfd { fd, events, revents: 0 }
    }

    fn pipe() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        rustix::pipe::pipe().expect("a pipe")
    }

    #[test]
    fn an_entry_that_comes_is_told_of_and_no_other() {
        let ((empty, _writer), (full, writer)) = (pipe(), pipe());
        rustix::io::write(&writer, b"x").expect("room");
        let mut polled = [&empty, &full].map(|fd| entry(fd.as_raw_fd(), libc::POLLIN)).to_vec();
        polled.push(entry(-1, libc::POLLIN));
        assert_eq!(sleep(&mut polled, 2, LONG, None), Ok(1));
        assert_eq!(polled.iter().map(|entry| entry.revents).collect::<Vec<_>>(), [0, libc::POLLIN, 0]);
    }

    #[test]
    fn a_calls_entries_are_told_of_exactly() {
        let ((own, _other), (ended, writer)) = (pipe(), pipe());
        drop(writer);
        let mut polled = [entry(own.as_raw_fd(), libc::POLLIN), entry(ended.as_raw_fd(), libc::POLLIN)];
        assert_eq!(sleep(&mut polled, 1, LONG, None), Ok(1));
        assert_eq!(polled[1].revents, libc::POLLHUP);
    }

    #[test]
    fn nothing_is_told_where_nothing_that_was_asked_for_has_come() {
        let ((own, _other), (full, writer)) = (pipe(), pipe());
        rustix::io::write(&writer, b"x").expect("room");
        let mut polled = [entry(own.as_raw_fd(), libc::POLLIN), entry(full.as_raw_fd(), 0)];
        assert_eq!(sleep(&mut polled, 1, LONG, None), Ok(0));
        assert!(polled.iter().all(|entry| entry.revents == 0));
        let mut polled = [entry(own.as_raw_fd(), libc::POLLIN)];
        assert_eq!(sleep(&mut polled, 1, Some(Duration::ZERO), None), Ok(0));
    }

    #[test]
    fn what_is_not_open_is_told_of() {
        let (own, _other) = pipe();
        let mut polled = [entry(own.as_raw_fd(), libc::POLLIN), entry(i32::MAX, libc::POLLIN)];
        assert_eq!(sleep(&mut polled, 1, LONG, None), Ok(1));
        assert_eq!(polled[1].revents, libc::POLLNVAL);
    }
}
