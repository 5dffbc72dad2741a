//! What happens when the library is loaded: little. Symbols are looked up, the fork handler is registered, and
//! sockets that came over exec are claimed when there are any. The engine is attached to at the first TCP socket
//! that it could serve, so that a program without sockets pays nothing.

use crate::policy;

extern "C" fn on_load() {
    crate::real::resolve_all();
    crate::ffi::guarded((), || {
        crate::debug::switch_on(toe::environment::var_os("TOE_DEBUG").is_some());
        crate::calls::exec::remember();
        crate::tally::open_if_wanted();
        toe::attach::engines();
        policy::load();
        crate::own_calls::heed(toe::environment::var_os(toe_abi::why::OWN_CALLS_VARIABLE).as_deref());
        crate::calls::process::install();
        crate::adopt::note_claims();
        crate::calls::signal::install();
        if policy::may_have_engine() {
            crate::adopt::inherited();
            (0..=2).for_each(crate::calls::stdio_stream::follow);
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
