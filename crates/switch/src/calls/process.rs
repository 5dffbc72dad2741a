//! Calls that make processes past fork's handlers, and calls that change who the process is: they are let through and
//! noted. A child may have copies of the program's descriptors, or share its memory until it executes something; a
//! socket made before belongs to the user and the network namespace of before.
//!
//! Sessions, rings and sockets are the host library's (`toe::fork`). A child of fork gets a why table of its own. daemon() needs nothing.

use crate::ffi::{guarded, last_errno, set_errno};
use crate::{aio, fork, policy, real, replacing, tables, twin_pool, why};
use core::ffi::{c_char, c_int, c_long, c_void};
use libc::{FILE, gid_t, pid_t, uid_t};

/// Called once, when the library is loaded. The host library's handlers come first: in the child they run in this
/// order, and ours needs what the host library has set right.
pub fn install() {
    toe::fork::install_handlers();
    toe::process::watch_shared_memory();
    // SAFETY: registers a function of ours that stays loaded as long as the process; it touches atomics, memory files
    // and mappings only, which a child of a program with several threads may do.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cold]
extern "C" fn in_child() {
    guarded((), || {
        twin_pool::clear();
        replacing::after_fork_in_child();
        aio::after_fork_in_child();
        why::after_fork();
    });
}

/// A fork that is made by system call, past the handlers: what `call` gives, in parent and child.
pub fn around(call: impl FnOnce() -> c_long) -> c_long {
    toe::fork::prepare();
    let result = call();
    let error = last_errno();
    if result == 0 {
        toe::fork::in_child();
        in_child();
    } else {
        toe::fork::in_parent();
    }
    set_errno(c_int::from(error.0));
    result
}

/// Before a child that may get copies of descriptors.
pub fn before_child() {
    fork::note_new_process();
    guarded((), toe::fork::before_child);
}

/// Before a child that runs in this process's memory until it executes a program, which has the descriptors without FD_CLOEXEC. Where no socket is among
/// them, connections stay in their channels. A call by which the child puts one there shares them then (`descriptor.rs`).
pub fn before_spawn() {
    if guarded(true, tables::passes_sockets) {
        before_child();
    } else {
        fork::note_new_process();
    }
}

/// Before vfork and clone: the child may run in this process's memory. Returns the address of the real call.
extern "C" fn before_vfork() -> *const c_void {
    before_spawn();
    toe::process::note_shared_memory();
    real::address_of_vfork()
}

/// With the first arguments of the call.
extern "C" fn before_clone(_start: *const c_void, _stack: *const c_void, flags: c_int) -> *const c_void {
    const AS_VFORK: c_int = libc::CLONE_VM | libc::CLONE_VFORK;
    if flags & AS_VFORK == AS_VFORK {
        before_spawn();
    } else {
        before_child();
    }
    toe::process::note_shared_memory();
    real::address_of_clone()
}

/// vfork returns twice, and the parent's frame must still be there at the second time: so this jumps and does not call.
///
/// # Safety
/// As vfork(2).
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!("sub rsp, 8", "call {before}", "add rsp, 8", "jmp rax", before = sym before_vfork)
}

/// Its arguments stay where the caller put them, whatever their number.
///
/// # Safety
/// As clone(2).
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn clone() -> c_int {
    core::arch::naked_asm!(
        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "sub rsp, 8",
        "call {before}",
        "add rsp, 8", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "jmp rax",
        before = sym before_clone
    )
}

/// As on x86-64.
///
/// # Safety
/// As vfork(2).
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, -16]!", "bl {before}", "ldp x29, x30, [sp], 16", "br x0",
        before = sym before_vfork
    )
}

/// As on x86-64.
///
/// # Safety
/// As clone(2).
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn clone() -> c_int {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, -80]!", "stp x0, x1, [sp, 16]", "stp x2, x3, [sp, 32]", "stp x4, x5, [sp, 48]",
        "stp x6, x7, [sp, 64]",
        "bl {before}", "mov x16, x0",
        "ldp x6, x7, [sp, 64]", "ldp x4, x5, [sp, 48]", "ldp x2, x3, [sp, 32]", "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 80", "br x16",
        before = sym before_clone
    )
}

/// fork without the handlers of pthread_atfork: ours run all the same.
///
/// # Safety
/// As _Fork(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: the call takes nothing.
    around(|| unsafe { real::fork_alone() }.into()) as pid_t
}

macro_rules! noted {
    ($before:path, $after:path: $($name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)+) => {
        $(
            /// # Safety
            /// As the call of this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
                $before();
                // SAFETY: the program's arguments, handed on.
                let result = unsafe { real::$name($($arg),*) };
                // Once more, for what other threads did in between.
                $after();
                result
            }
        )+
    };
}

/// The process is about to become another user: `uid` is the effective one, by which engines go.
pub fn before_becoming(uid: uid_t) {
    twin_pool::close();
    if !policy::disabled() {
        guarded((), || toe::admit::before_becoming(uid));
    }
}

macro_rules! becoming {
    ($($name:ident($($arg:ident),*) => $effective:ident;)+) => {
        $(
            /// # Safety
            /// As the call of this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($arg: uid_t),*) -> c_int {
                before_becoming($effective);
                // SAFETY: the program's arguments, handed on.
                let result = unsafe { real::$name($($arg),*) };
                // Once more, for what other threads did in between.
                twin_pool::close();
                result
            }
        )+
    };
}

becoming! {
    setuid(uid) => uid;
    seteuid(uid) => uid;
    setreuid(real, effective) => effective;
    setresuid(real, effective, saved) => effective;
}

noted! { before_spawn, fork::note_new_process:
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
}

noted! { twin_pool::close, twin_pool::close:
    setfsuid(uid: uid_t) -> c_int;
    setgid(gid: gid_t) -> c_int;
    setegid(gid: gid_t) -> c_int;
    setregid(real: gid_t, effective: gid_t) -> c_int;
    setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int;
}

/// Whether a call that has succeeded may have changed the network namespace. `setns` takes 0 for any kind.
const fn concerns_network(kinds: c_int) -> bool {
    kinds & libc::CLONE_NEWNET != 0
}

fn note_moved(result: c_int, concerns: bool) -> c_int {
    if result == 0 && concerns {
        fork::note_moved();
    }
    result
}

/// # Safety
/// As the call of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    twin_pool::close();
    // SAFETY: numbers only.
    let result = note_moved(unsafe { real::unshare(flags) }, concerns_network(flags));
    twin_pool::close();
    result
}

/// # Safety
/// As the call of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn setns(fd: c_int, kind: c_int) -> c_int {
    twin_pool::close();
    // SAFETY: numbers only.
    let result = note_moved(unsafe { real::setns(fd, kind) }, kind == 0 || concerns_network(kind));
    twin_pool::close();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_concern_the_network_move_a_program() {
        assert!(
            !concerns_network(libc::CLONE_NEWNS) && concerns_network(libc::CLONE_NEWNET | libc::CLONE_NEWNS)
        );
        assert_eq!((note_moved(0, false), fork::may_have_moved()), (0, false));
        assert_eq!((note_moved(-1, true), fork::may_have_moved()), (-1, false), "it failed");
    }
}
