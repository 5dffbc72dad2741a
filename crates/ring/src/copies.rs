//! Copies of what is large, and comes from another core or goes to one. Called by [`crate::region`].
//!
//! By an ordinary store a line of memory that the other core has read comes over from there first, only to be written over, and goes
//! back when the other one reads it again. Non-temporal stores write it without having it: [`past_cache`].
//!
//! The C library's memcpy copies so much by `rep movsb`, which takes twice as long on some processors (AMD's EPYC, measured) where the target
//! is not aligned as the source is. [`in_vectors`] does not.
//!
//! What goes to another host is summed up while it is copied: [`crate::summed`].

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_store_si128};

    const UNIT: usize = size_of::<__m128i>();
    const LINE: usize = 4 * UNIT;

    /// Copies `len` bytes, those of whole lines at the target by `store`, 16 at a time.
    ///
    /// # Safety
    /// As of [`core::ptr::copy_nonoverlapping`]; `store` writes what it is given to where it is told, a multiple of 16.
    #[inline(always)]
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize, store: impl Fn(*mut __m128i, __m128i)) {
        let before = to.align_offset(LINE).min(len);
        let lines = (len - before) / LINE;
        // SAFETY: needed to copy so. All of it is within the `len` bytes at both pointers, which the caller has promised: `before`
        // bytes, then whole lines, then the rest. `to` is at a multiple of 64 after `before`, as the stores want it (16).
        unsafe {
            core::ptr::copy_nonoverlapping(from, to, before);
            for line in 0..lines {
                let at = before + line * LINE;
                let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
                let [a, b, c, d] = [0, 1, 2, 3].map(|unit| _mm_loadu_si128(from.add(unit)));
                store(to, a);
                store(to.add(1), b);
                store(to.add(2), c);
                store(to.add(3), d);
            }
            let done = before + lines * LINE;
            core::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
        }
    }

    /// # Safety
    /// As of [`core::ptr::copy_nonoverlapping`].
    pub unsafe fn past_cache(from: *const u8, to: *mut u8, len: usize) {
        use core::arch::x86_64::{_mm_sfence, _mm_stream_si128};
        // SAFETY: needed to copy so; the caller has promised what it needs. The stores are ordered against all that follows by the fence,
        // before anybody is told of them.
        unsafe {
            copy(from, to, len, |to, unit| _mm_stream_si128(to, unit));
            _mm_sfence();
        }
    }

    /// # Safety
    /// As of [`core::ptr::copy_nonoverlapping`].
    pub unsafe fn in_vectors(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: needed to copy so; the caller has promised what it needs.
        unsafe { copy(from, to, len, |to, unit| _mm_store_si128(to, unit)) };
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{in_vectors, past_cache};

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use core::ptr::{copy_nonoverlapping as in_vectors, copy_nonoverlapping as past_cache};

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_of_any_alignment_and_length_are_copied_and_no_others_touched() {
        let from: Vec<u8> = (0..1000u32).map(|at| (at * 7) as u8).collect();
        for copy in [super::past_cache, super::in_vectors] {
            for start in [0, 1, 15, 16, 63, 64] {
                for (skip, len) in [(0, 0), (3, 1), (0, 63), (0, 64), (1, 65), (5, 127), (0, 640), (9, 700)] {
                    let mut to = vec![0xee; 1000];
                    // SAFETY: needed to call it. Both have so many bytes from there on.
                    unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(start), len) };
                    assert!(to[start..start + len] == from[skip..skip + len], "{start} {skip} {len}");
                    let is_left = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xee);
                    assert!(is_left(&to[..start]) && is_left(&to[start + len..]), "{start} {skip} {len}");
                }
            }
        }
    }
}
