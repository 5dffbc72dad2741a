//! setrlimit and prlimit: a process that is about to have less gets what its sockets need before, and gives back what it can do
//! without (`toe::confine`, `toe::address_space`).

use crate::ffi::guarded;
use crate::{fork, policy, real};
use core::ffi::{c_int, c_uint};
use libc::{pid_t, rlimit};
use toe::program_memory;

/// A limit of the process `pid` is about to become `*new`.
fn before(pid: pid_t, resource: c_uint, new: *const rlimit) {
    let concerns = [libc::RLIMIT_NOFILE, libc::RLIMIT_AS].contains(&resource);
    let is_own = pid == 0 || pid == toe::sys::pid();
    if new.is_null() || !concerns || !is_own || policy::disabled() || fork::in_vfork_child() {
        return;
    }
    // SAFETY: two numbers.
    let Ok(new) = (unsafe { program_memory::read(new) }) else { return };
    guarded((), || match resource {
        libc::RLIMIT_NOFILE => toe::confine::before_few_descriptors(new.rlim_cur),
        _ => toe::address_space::before_little(new.rlim_cur),
    });
}

macro_rules! limiting {
    ($($set:ident $set_of:ident;)+) => {
        $(
            /// # Safety
            /// As setrlimit(2).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $set(resource: c_uint, new: *const rlimit) -> c_int {
                before(0, resource, new);
                // SAFETY: the program's arguments, handed on.
                unsafe { real::$set(resource, new) }
            }

            /// # Safety
            /// As prlimit(2).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $set_of(
                pid: pid_t,
                resource: c_uint,
                new: *const rlimit,
                old: *mut rlimit,
            ) -> c_int {
                before(pid, resource, new);
                // SAFETY: the program's arguments, handed on.
                unsafe { real::$set_of(pid, resource, new, old) }
            }
        )+
    };
}

// The second names are those of programs that ask for 64-bit offsets; on 64-bit machines they are the same calls.
limiting! {
    setrlimit prlimit;
    setrlimit64 prlimit64;
}
