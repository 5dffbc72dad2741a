//! Threads of the library's own. A program that asks for nothing that needs one has none.
//!
//! Started by [`crate::signal_io`], and by the switch layer for POSIX AIO.

use toe_abi::errno::Errno;

/// All that such a thread needs, with the C library's own.
const STACK: usize = 256 << 10;

/// From here on all signals are blocked in this thread but those `let_in`; returns what was blocked before.
pub fn block_signals(let_in: &[i32]) -> libc::sigset_t {
    // SAFETY: needed because only the C library knows which signals are its own. All are locals; all ones and all zeros are sets,
    // and a number that is no signal's changes nothing.
    unsafe {
        let (mut blocked, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut blocked);
        for signal in let_in {
            libc::sigdelset(&mut blocked, *signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, &mut before);
        before
    }
}

/// Starts a thread. Signals are for the program's own threads, so this one has them all blocked but those `let_in`.
///
/// EAGAIN: there can be no thread.
pub fn start(name: &str, let_in: &[i32], body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    // A thread has the mask of the one that makes it.
    let before = block_signals(let_in);
    let started = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(body);
    // SAFETY: needed to put back what was; both are locals.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    started.map(|_| ()).map_err(|_| Errno::EAGAIN)
}
