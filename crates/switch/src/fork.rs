//! What the switch layer itself does around fork and vfork; sessions, rings and sockets are the host library's
//! (`toe::fork`).
//!
//! A child of fork gets a why table of its own. A child of vfork shares the parent's memory until it execs: it must
//! change none of our tables, and is known by its process id. daemon() and system() need nothing: the one forks, the
//! other spawns inside the C library.

use core::ffi::{c_int, c_long};

/// Called once, when the library is loaded. The host library's handlers come first: in the child they run in this
/// order, and ours needs what the host library has set right.
pub fn install() {
    toe::fork::install_handlers();
    toe::fork::watch_shared_memory();
    // SAFETY: registers a function of ours that stays loaded as long as the process; it touches atomics, memory files
    // and mappings only, which a child of a program with several threads may do.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cold]
extern "C" fn in_child() {
    crate::ffi::guarded((), || {
        crate::twin_pool::clear();
        crate::replacing::after_fork_in_child();
        crate::aio::after_fork_in_child();
        crate::why::after_fork();
    });
}

/// A fork that is made by system call, past the handlers: what `call` gives, in parent and child.
pub fn around(call: impl FnOnce() -> c_long) -> c_long {
    toe::fork::prepare();
    let result = call();
    let error = crate::ffi::last_errno();
    if result == 0 {
        toe::fork::in_child();
        in_child();
    } else {
        toe::fork::in_parent();
    }
    crate::ffi::set_errno(c_int::from(error.0));
    result
}

/// Whether the caller runs in a child of vfork. Once there was one it costs a system call: asked only where one of our
/// tables would change.
pub fn in_vfork_child() -> bool {
    toe::fork::is_vfork_child()
}
