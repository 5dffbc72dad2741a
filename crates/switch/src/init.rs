//! What happens when the library is loaded: little. Symbols are looked up, the fork handler is registered, and
//! sockets that came over exec are claimed when there are any. The engine is attached to at the first TCP socket
//! that it could serve, so that a program without sockets pays nothing.

use core::sync::atomic::{AtomicBool, Ordering};

/// TOE_DISABLE: every socket stays on the kernel's stack.
static DISABLED: AtomicBool = AtomicBool::new(false);

/// TOE_ENGINE: the program runs under `toe run`.
static HAS_ENGINE: AtomicBool = AtomicBool::new(false);

/// Whether the program was given an engine, attached or not.
pub fn has_engine() -> bool {
    HAS_ENGINE.load(Ordering::Relaxed)
}

pub fn disabled() -> bool {
    DISABLED.load(Ordering::Relaxed)
}

extern "C" fn on_load() {
    crate::real::resolve_all();
    crate::ffi::guarded((), || {
        crate::debug::switch_on(toe::environment::var_os("TOE_DEBUG").is_some());
        DISABLED.store(toe::environment::var_os("TOE_DISABLE").is_some(), Ordering::Relaxed);
        crate::calls::exec::remember();
        crate::tally::open_if_wanted();
        toe::attach::engines();
        crate::policy::load();
        crate::own_calls::heed(toe::environment::var_os(toe_abi::why::OWN_CALLS_VARIABLE).as_deref());
        crate::fork::install();
        crate::adopt::note_claims();
        HAS_ENGINE.store(toe::environment::var_os("TOE_ENGINE").is_some(), Ordering::Relaxed);
        crate::calls::signal::install();
        if !disabled() && has_engine() {
            crate::adopt::inherited();
        }
    });
}

/// The loader calls what stands here before the program's `main`.
#[cfg(not(test))]
#[used]
// SAFETY: .init_array holds pointers to functions of the C calling convention; extra arguments that the loader passes
// are ignored by a function that takes none.
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

#[cfg(test)]
mod tests {
    #[test]
    fn loading_finds_every_symbol_that_this_system_has() {
        super::on_load();
        // SAFETY: getsockname with a number that is no descriptor fails and touches nothing.
        let result = unsafe { crate::real::getsockname(-1, core::ptr::null_mut(), core::ptr::null_mut()) };
        assert_eq!((result, crate::ffi::last_errno()), (-1, toe::Errno::EBADF));
    }
}
