//! dlopen: what is loaded is put under this layer, too.
//!
//! A library that is loaded with RTLD_DEEPBIND finds the C library's functions before those of this layer, so its sockets
//! would pass by unseen, and those that it is given would be directories to it (PHP loads its extensions so). The flag is
//! left out, as the sanitizers do, where the program was given an engine.

use crate::{own_calls, policy, real};
use core::ffi::{c_int, c_void};

/// What is jumped to, and with which flags.
#[derive(Debug)]
#[repr(C)]
pub struct Jump {
    address: *const c_void,
    flags: usize,
}

extern "C" fn before_dlopen(flags: c_int) -> Jump {
    own_calls::note_loading();
    let is_ours = policy::may_have_engine();
    let flags = if is_ours { flags & !libc::RTLD_DEEPBIND } else { flags };
    Jump { address: real::address_of_dlopen(), flags: flags as u32 as usize }
}

/// The loader looks at whose call it is (the caller's RUNPATH and namespace count): so this jumps and does not call.
///
/// # Safety
/// As dlopen(3).
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen() -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi", "sub rsp, 16", "mov edi, esi",
        "call {before}",
        "add rsp, 16", "pop rdi", "mov esi, edx", "jmp rax",
        before = sym before_dlopen
    )
}

/// As on x86-64.
///
/// # Safety
/// As dlopen(3).
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen() -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!", "str x0, [sp, 16]", "mov w0, w1",
        "bl {before}",
        "mov x16, x0", "ldr x0, [sp, 16]", "ldp x29, x30, [sp], 32", "br x16",
        before = sym before_dlopen
    )
}
