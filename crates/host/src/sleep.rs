//! The last look before a system call that waits, and the call: one piece of machine code whose addresses a signal's handler
//! knows. A handler that finds that it has interrupted it before the call was made moves the thread to its end, as if the
//! call had been interrupted. Between look and call nothing can be lost then, wherever the signal comes.
//!
//! Likewise the call in which the handlers of what was kept run: a thread that ends in one of them is unwound through it.
//!
//! Used by [`crate::signals`] alone.

use std::ffi::{c_long, c_void};

const _: () = assert!(libc::EINTR == 4, "the constant below");

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.toe_sleep, \"ax\", @progbits",
    ".hidden toe_sleep, toe_sleep_look, toe_sleep_made, toe_sleep_end",
    ".globl toe_sleep, toe_sleep_look, toe_sleep_made, toe_sleep_end",
    ".type toe_sleep, @function",
    // toe_sleep(flag, number, args)
    "toe_sleep:",
    ".cfi_startproc",
    "mov r11, rdi",
    "mov rax, rsi",
    "mov rcx, rdx",
    "mov rdi, [rcx]",
    "mov rsi, [rcx + 8]",
    "mov rdx, [rcx + 16]",
    "mov r10, [rcx + 24]",
    "mov r8, [rcx + 32]",
    "mov r9, [rcx + 40]",
    "toe_sleep_look:",
    "cmp dword ptr [r11], 0",
    "jne toe_sleep_end",
    "syscall",
    "toe_sleep_made:",
    "ret",
    "toe_sleep_end:",
    "mov rax, -4",
    "ret",
    ".cfi_endproc",
    ".size toe_sleep, . - toe_sleep",
    ".hidden toe_let_in",
    ".globl toe_let_in",
    ".type toe_let_in, @function",
    // toe_let_in(number, args)
    "toe_let_in:",
    ".cfi_startproc",
    "mov rax, rdi",
    "mov rcx, rsi",
    "mov rdi, [rcx]",
    "mov rsi, [rcx + 8]",
    "mov rdx, [rcx + 16]",
    "mov r10, [rcx + 24]",
    "mov r8, [rcx + 32]",
    "mov r9, [rcx + 40]",
    "syscall",
    "ret",
    ".cfi_endproc",
    ".size toe_let_in, . - toe_let_in",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.toe_sleep, \"ax\", @progbits",
    ".hidden toe_sleep, toe_sleep_look, toe_sleep_made, toe_sleep_end",
    ".globl toe_sleep, toe_sleep_look, toe_sleep_made, toe_sleep_end",
    ".type toe_sleep, @function",
    "toe_sleep:",
    ".cfi_startproc",
    "mov x9, x0",
    "mov x8, x1",
    "mov x10, x2",
    "ldp x0, x1, [x10]",
    "ldp x2, x3, [x10, #16]",
    "ldp x4, x5, [x10, #32]",
    "toe_sleep_look:",
    "ldr w11, [x9]",
    "cbnz w11, toe_sleep_end",
    "svc 0",
    "toe_sleep_made:",
    "ret",
    "toe_sleep_end:",
    "mov x0, #-4",
    "ret",
    ".cfi_endproc",
    ".size toe_sleep, . - toe_sleep",
    ".hidden toe_let_in",
    ".globl toe_let_in",
    ".type toe_let_in, @function",
    "toe_let_in:",
    ".cfi_startproc",
    "mov x8, x0",
    "mov x10, x1",
    "ldp x0, x1, [x10]",
    "ldp x2, x3, [x10, #16]",
    "ldp x4, x5, [x10, #32]",
    "svc 0",
    "ret",
    ".cfi_endproc",
    ".size toe_let_in, . - toe_let_in",
    ".popsection",
);

unsafe extern "C-unwind" {
    fn toe_let_in(number: c_long, args: *const usize) -> isize;
}

unsafe extern "C" {
    fn toe_sleep(flag: *const u32, number: c_long, args: *const usize) -> isize;
    static toe_sleep_look: u8;
    static toe_sleep_made: u8;
    static toe_sleep_end: u8;
}

/// Makes a system call unless `flag` is set, or a handler sets it before the call is made: then it gives -EINTR.
///
/// # Safety
/// As the call asks of its arguments; `flag` is a word that only this thread writes.
pub unsafe fn call(flag: *const u32, number: c_long, args: &[usize; 6]) -> isize {
    // SAFETY: needed because the code is assembly. It reads the flag and the six arguments and makes the call, for whose
    // arguments the caller vouches.
    unsafe { toe_sleep(flag, number, args.as_ptr()) }
}

/// Makes a system call in which handlers run that may end their thread (pthread_exit(3)). The C library unwinds the stack then, and
/// a frame of Rust's that was interrupted anywhere but in a call would end the process; this is such a call, and the
/// routine's frame has nothing to clean up.
///
/// # Safety
/// As the call asks of its arguments.
pub unsafe fn let_in(number: c_long, args: &[usize; 6]) -> isize {
    // SAFETY: as above.
    unsafe { toe_let_in(number, args.as_ptr()) }
}

/// Called by a signal's handler: if it has interrupted [`call`] before the system call was made, that ends.
///
/// # Safety
/// `context` is what the kernel gave the handler.
pub unsafe fn leave(context: *mut c_void) {
    let address = |of: *const u8| of.addr() as u64;
    let begin = address(&raw const toe_sleep_look);
    let made = address(&raw const toe_sleep_made);
    let end = address(&raw const toe_sleep_end);
    // SAFETY: needed because the thread's registers are in the handler's context, which the kernel loads when it returns. All
    // of the code there leaves the stack as it found it, so going on at its end is going on where `call` returns.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        #[cfg(target_arch = "x86_64")]
        let at = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let at = &mut (*context).uc_mcontext.pc;
        if (begin..made).contains(&(*at as u64)) {
            *at = end as _;
        }
    }
}
