//! Memory that a program names and that may not be there. Linux says EFAULT to a bad pointer; a library that follows one ends
//! the program. So what a program points at is copied, or touched first, by the routines here: where one faults, the handler of
//! SIGSEGV and SIGBUS, which the switch layer installs before the program's own, goes on at the routine's landing.
//!
//! No call and no lock is needed, and where memory is there it costs a load a page. A thread that has blocked SIGSEGV is
//! ended by the kernel as before, and so is one whose memory another thread unmaps between the touch and the copy. On machines
//! other than x86-64 the routines are plain ones, without a landing.
//!
//! Used by the host library for buffers ([`crate::socket`]) and by the switch layer for everything smaller.

use toe_abi::errno::Errno;

/// As errno.
pub const EFAULT: Errno = Errno(libc::EFAULT as u16);

#[cfg(target_arch = "x86_64")]
mod routines {
    core::arch::global_asm!(
        ".pushsection .text.toe_program_memory, \"ax\", @progbits",
        // usize toe_copy(u8 *to [rdi], const u8 *from [rsi], usize len [rdx]); 0: copied. It leaves the stack alone.
        ".p2align 5",
        ".globl toe_copy",
        ".hidden toe_copy",
        "toe_copy:",
        "cmp rdx, 16",
        "jb 20f",
        "cmp rdx, 64",
        "jb 10f",
        "cmp rdx, 1024",
        "ja 30f",
        // 64 to 1024: 64 at a time, and then what is left like a short one.
        "2: movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "jae 2b",
        "cmp rdx, 16",
        "jb 20f",
        // 16 to 63: 16 at a time, the last of which may overlap.
        "10: movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "cmp rdx, 32",
        "jbe 11f",
        "movups xmm0, [rsi + 16]",
        "movups [rdi + 16], xmm0",
        "cmp rdx, 48",
        "jbe 11f",
        "movups xmm0, [rsi + 32]",
        "movups [rdi + 32], xmm0",
        "11: movups [rdi + rdx - 16], xmm1",
        "xor eax, eax",
        "ret",
        "20: test dl, 8",
        "jz 21f",
        "mov rax, [rsi]",
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rcx",
        "xor eax, eax",
        "ret",
        "21: test dl, 4",
        "jz 22f",
        "mov eax, [rsi]",
        "mov ecx, [rsi + rdx - 4]",
        "mov [rdi], eax",
        "mov [rdi + rdx - 4], ecx",
        "xor eax, eax",
        "ret",
        "22: test rdx, rdx",
        "jz 23f",
        "mov al, [rsi]",
        "mov [rdi], al",
        "inc rsi",
        "inc rdi",
        "dec rdx",
        "jmp 22b",
        "23: xor eax, eax",
        "ret",
        // The processor's own copy is the fastest from here on.
        "30: mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
        ".globl toe_copy_landing",
        ".hidden toe_copy_landing",
        "toe_copy_landing: mov eax, 1",
        "ret",
        // usize toe_touch(const u8 *at [rdi], usize len [rsi]); how many bytes can be read, one of each page is.
        ".p2align 5",
        ".globl toe_touch",
        ".hidden toe_touch",
        "toe_touch: xor eax, eax",
        "2: test byte ptr [rdi + rax], 0",
        "lea rax, [rdi + rax]",
        "or rax, 4095",
        "inc rax",
        "sub rax, rdi",
        "cmp rax, rsi",
        "jb 2b",
        "mov rax, rsi",
        ".globl toe_touch_landing",
        ".hidden toe_touch_landing",
        "toe_touch_landing: ret",
        // usize toe_touch_to_write(u8 *at [rdi], usize len [rsi]); the same, for bytes that are to be written. They stay what they are, also
        // where another thread writes them meanwhile.
        ".p2align 5",
        ".globl toe_touch_to_write",
        ".hidden toe_touch_to_write",
        "toe_touch_to_write: xor eax, eax",
        "2: lock or byte ptr [rdi + rax], 0",
        "lea rax, [rdi + rax]",
        "or rax, 4095",
        "inc rax",
        "sub rax, rdi",
        "cmp rax, rsi",
        "jb 2b",
        "mov rax, rsi",
        ".globl toe_touch_to_write_landing",
        ".hidden toe_touch_to_write_landing",
        "toe_touch_to_write_landing: ret",
        ".popsection",
    );

    unsafe extern "C" {
        pub fn toe_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
        pub fn toe_touch(at: *const u8, len: usize) -> usize;
        pub fn toe_touch_to_write(at: *mut u8, len: usize) -> usize;
        fn toe_copy_landing();
        fn toe_touch_landing();
        fn toe_touch_to_write_landing();
    }

    /// Where a thread goes on that has faulted at `instruction`; `None`: not in one of these.
    pub fn landing(instruction: usize) -> Option<usize> {
        let routines = [
            (toe_copy as *const () as usize, toe_copy_landing as *const () as usize),
            (toe_touch as *const () as usize, toe_touch_landing as *const () as usize),
            (toe_touch_to_write as *const () as usize, toe_touch_to_write_landing as *const () as usize),
        ];
        routines
            .into_iter()
            .find(|(start, end)| (*start..*end).contains(&instruction))
            .map(|(_, landing)| landing)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod routines {
    pub unsafe fn toe_copy(to: *mut u8, from: *const u8, len: usize) -> usize {
        // SAFETY: the caller's promise, without a landing.
        unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
        0
    }

    pub unsafe fn toe_touch(_: *const u8, len: usize) -> usize {
        len
    }

    pub unsafe fn toe_touch_to_write(_: *mut u8, len: usize) -> usize {
        len
    }

    pub fn landing(_: usize) -> Option<usize> {
        None
    }
}

pub use routines::landing;

/// Copies; EFAULT: some of it is not there, and what was copied before that is.
///
/// # Safety
/// Nothing in this process relies on what is at `to`, or reads it meanwhile; the ranges do not overlap. Either may be a
/// program's, and not be there.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> Result<(), Errno> {
    if is_nowhere(to) || is_nowhere(from) {
        return if len == 0 { Ok(()) } else { Err(EFAULT) };
    }
    // SAFETY: the caller's promise; a fault of the routine is its landing's.
    if unsafe { routines::toe_copy(to, from, len) } == 0 { Ok(()) } else { Err(EFAULT) }
}

/// Null, or next to it: nothing is ever there, and it is known without a fault, also where nobody has installed a handler.
#[inline]
fn is_nowhere(at: *const u8) -> bool {
    const FIRST_PAGE: usize = 4096;
    at.addr() < FIRST_PAGE
}

/// How many bytes from `at` on can be read, as far as `len`.
#[inline]
#[expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "whether it can be followed is the question; nothing is read out of it"
)]
pub fn readable(at: *const u8, len: usize) -> usize {
    if len == 0 || is_nowhere(at) || at.addr().checked_add(len).is_none() {
        return 0;
    }
    // SAFETY: needed because only a load tells. The value is dropped; a fault of the routine is its landing's, and devices'
    // memory, in which a load does something, is not what a program passes to a socket.
    unsafe { routines::toe_touch(at, len) }
}

/// Has the bytes' pages made present, and such as can be written: what a disk has to be asked for is waited for here, and not where they are
/// written under a lock. What is not there at all is found out there.
#[inline]
pub fn make_writable(bytes: &mut [u8]) {
    if !bytes.is_empty() && !is_nowhere(bytes.as_ptr()) {
        // SAFETY: needed because a page that is only read may have to be waited for again when it is written. The bytes keep their values; a
        // fault of the routine is its landing's.
        unsafe { routines::toe_touch_to_write(bytes.as_mut_ptr(), bytes.len()) };
    }
}

/// EFAULT: what a call is to read is not all there.
#[inline]
pub fn check<T>(at: *const T, count: usize) -> Result<(), Errno> {
    let len = count.saturating_mul(size_of::<T>());
    if readable(at.cast(), len) == len { Ok(()) } else { Err(EFAULT) }
}

/// A value that a program points to.
///
/// # Safety
/// Every pattern of bytes is a `T`.
#[inline]
pub unsafe fn read<T: Copy>(at: *const T) -> Result<T, Errno> {
    check(at, 1)?;
    // SAFETY: it was there a moment ago; no alignment is asked for.
    Ok(unsafe { at.read_unaligned() })
}

/// Gives a value to a program.
///
/// # Safety
/// The memory is the program's, which asked for it.
#[inline]
pub unsafe fn write<T: Copy>(at: *mut T, value: T) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the value is a local.
    unsafe { copy(at.cast(), (&raw const value).cast(), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_and_nothing_beside_it() {
        let from: Vec<u8> = (0..5000u32).map(|n| (n % 251) as u8).collect();
        for len in (0..200).chain([1000, 1023, 1024, 1025, 4096, 4990]) {
            let mut to = vec![0xaa; 5000];
            // SAFETY: two vectors.
            unsafe { copy(to[5..].as_mut_ptr(), from[3..].as_ptr(), len) }.expect("there");
            assert_eq!(to[5..5 + len], from[3..3 + len], "{len}");
            assert!(to[..5].iter().chain(&to[5 + len..]).all(|byte| *byte == 0xaa), "{len}");
            assert_eq!(readable(from.as_ptr(), len), len);
            let before = to.clone();
            make_writable(&mut to[3..3 + len]);
            assert_eq!(to, before);
        }
        assert_eq!(readable(usize::MAX as *const u8, 5), 0);
        assert_eq!(
            (check(core::ptr::null::<u64>(), 1), check(core::ptr::null::<u64>(), 0)),
            (Err(EFAULT), Ok(()))
        );
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_fault_of_the_routines_has_a_landing_and_no_other() {
        let start = routines::toe_copy as *const () as usize;
        assert!(landing(start).is_some() && landing(start + 20).is_some());
        assert_eq!(landing(landing(start).expect("one")), None);
        assert_eq!(landing(0), None);
    }
}
