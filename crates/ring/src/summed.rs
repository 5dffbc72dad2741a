//! A copy and the CRC32C of what was copied, in one pass: each byte is loaded once, so that the CRC is that of the copy also where somebody else
//! writes the source meanwhile. Called by [`crate::region`].
//!
//! With carry-less multiplication of 512 bits at a time it takes little longer than the copy alone; the CRC instruction takes one cycle for
//! 8 bytes at best. (V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.)

/// Bytes that are copied at a time where there is no such instruction: they stay in the nearest cache for the pass that follows.
const STEP: usize = 4 << 10;

/// Copies `len` bytes, and goes on with `crc`, which is that of the bytes before them.
///
/// # Safety
/// As of [`core::ptr::copy_nonoverlapping`].
#[inline]
pub unsafe fn copy(crc: u32, from: *const u8, to: *mut u8, len: usize) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if len >= x86_64::LEAST && x86_64::is_there() {
        // SAFETY: needed to copy so; the caller has promised what it needs, and the instructions are there.
        return unsafe { x86_64::copy(crc, from, to, len) };
    }
    // SAFETY: needed to copy so; the caller has promised what it needs.
    unsafe { by_steps::<STEP>(crc, from, to, len) }
}

/// By way of memory that nobody else has.
///
/// # Safety
/// As of [`core::ptr::copy_nonoverlapping`].
unsafe fn by_steps<const STEP: usize>(mut crc: u32, from: *const u8, to: *mut u8, len: usize) -> u32 {
    let mut own = [0; STEP];
    let mut done = 0;
    while done < len {
        let step = STEP.min(len - done);
        let own = &mut own[..step];
        // SAFETY: needed to copy so. These are a part of the `len` bytes at both pointers, which the caller has promised; `own` is apart.
        unsafe { core::ptr::copy_nonoverlapping(from.add(done), own.as_mut_ptr(), step) };
        crc = crc32c::crc32c_append(crc, own);
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(own.as_ptr(), to.add(done), step) };
        done += step;
    }
    crc
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::x86_64::{
        __m128i, __m512i, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_unpackhi_epi64,
        _mm_xor_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
        _mm512_set_epi64, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
        _mm512_zextsi128_si512,
    };

    const UNIT: usize = size_of::<__m512i>();
    const UNITS: usize = 4;
    const ROUND: usize = UNIT * UNITS;
    /// Fewer bytes than this are not worth the way down from 2048 bits to 32.
    pub const LEAST: usize = 2 * ROUND;

    /// x^(distance + 31) and x^(distance - 33) modulo the polynomial, bits reversed: what the two halves of 128 bits are multiplied with to go on
    /// by `distance` bits.
    const fn onward(distance: u32) -> (i64, i64) {
        (power(distance + 31), power(distance - 33))
    }

    const fn power(exponent: u32) -> i64 {
        // x^0 is the highest bit; a step is one to the right.
        let (mut value, mut at): (u32, u32) = (1 << 31, 0);
        while at < exponent {
            value = (value >> 1) ^ (0x82f6_3b78 * (value & 1));
            at += 1;
        }
        value as i64
    }

    pub fn is_there() -> bool {
        is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("sse4.2")
    }

    /// `unit`, as many bits further on as `by` says, and `next`.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold(unit: __m512i, by: __m512i, next: __m512i) -> __m512i {
        let (low, high) =
            (_mm512_clmulepi64_epi128::<0x00>(unit, by), _mm512_clmulepi64_epi128::<0x11>(unit, by));
        // A xor of three.
        _mm512_ternarylogic_epi64::<0x96>(low, high, next)
    }

    /// # Safety
    /// As of [`core::ptr::copy_nonoverlapping`]; at least [`ROUND`] bytes, and the instructions are there.
    #[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
    pub unsafe fn copy(crc: u32, from: *const u8, to: *mut u8, len: usize) -> u32 {
        const FAR: (i64, i64) = onward(8 * ROUND as u32);
        const NEAR: (i64, i64) = onward(8 * UNIT as u32);
        const WITHIN: [(i64, i64); 3] = [onward(384), onward(256), onward(128)];
        let by = |(low, high)| _mm512_set_epi64(high, low, high, low, high, low, high, low);
        let load_and_store = |at: usize| {
            // SAFETY: needed to copy so. `at` is a unit's beginning in whole rounds of the `len` bytes, which the caller has promised at both
            // pointers; neither access wants an alignment.
            unsafe {
                let unit = _mm512_loadu_si512(from.add(at).cast());
                _mm512_storeu_si512(to.add(at).cast(), unit);
                unit
            }
        };
        let mut units = [0, UNIT, 2 * UNIT, 3 * UNIT].map(&load_and_store);
        units[0] = _mm512_xor_si512(units[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(!crc as i32)));
        let far = by(FAR);
        let rounds = len / ROUND;
        for round in 1..rounds {
            for (place, unit) in units.iter_mut().enumerate() {
                *unit = fold(*unit, far, load_and_store(round * ROUND + place * UNIT));
            }
        }
        let near = by(NEAR);
        let [first, rest @ ..] = units;
        let last = rest.into_iter().fold(first, |unit, next| fold(unit, near, next));
        let [(a, b), (c, d), (e, f)] = WITHIN;
        let within = _mm512_set_epi64(0, 0, f, e, d, c, b, a);
        // The last 128 bits stay as they are.
        let fourth = _mm512_extracti32x4_epi32::<3>(last);
        let sum = fold(last, within, _mm512_zextsi128_si512(fourth));
        let parts: [__m128i; 3] = [
            _mm512_extracti32x4_epi32::<0>(sum),
            _mm512_extracti32x4_epi32::<1>(sum),
            _mm512_extracti32x4_epi32::<2>(sum),
        ];
        let all = _mm_xor_si128(_mm_xor_si128(parts[0], parts[1]), parts[2]);
        let crc = _mm_crc32_u64(0, _mm_cvtsi128_si64(all) as u64);
        let crc = _mm_crc32_u64(crc, _mm_cvtsi128_si64(_mm_unpackhi_epi64(all, all)) as u64);
        let done = rounds * ROUND;
        // SAFETY: needed to copy the rest, which is within the `len` bytes.
        unsafe { super::by_steps::<ROUND>(!(crc as u32), from.add(done), to.add(done), len - done) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_copy_for_any_alignment_and_length() {
        let from: Vec<u8> = (0..20_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for way in [copy, by_steps::<STEP>] {
            for (start, skip) in [(0, 0), (1, 0), (0, 3), (63, 17), (64, 64)] {
                for len in [0, 1, 7, 255, 256, 511, 512, 513, 767, 1024, 4095, 4097, 16_384, 16_421] {
                    for before in [0, 5] {
                        let mut to = vec![0xee; 20_000];
                        let crc = crc32c::crc32c(&from[..before]);
                        // SAFETY: needed to call it. Both have so many bytes from there on.
                        let crc =
                            unsafe { way(crc, from.as_ptr().add(skip), to.as_mut_ptr().add(start), len) };
                        assert!(to[start..start + len] == from[skip..skip + len], "{start} {skip} {len}");
                        let whole = [&from[..before], &from[skip..skip + len]].concat();
                        assert_eq!(crc, crc32c::crc32c(&whole), "{start} {skip} {len} {before}");
                        let is_left = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xee);
                        assert!(is_left(&to[..start]) && is_left(&to[start + len..]), "{start} {skip} {len}");
                    }
                }
            }
        }
    }

    /// Another core writes the source all the time: the sum is still that of what is in the copy.
    #[test]
    fn the_sum_is_that_of_the_copy_whoever_writes_the_source() {
        use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        const LEN: usize = 16 << 10;
        let source: Vec<AtomicU64> = (0..LEN as u64 / 8).map(AtomicU64::new).collect();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    source.iter().for_each(|word| word.store(value, Ordering::Relaxed));
                }
            });
            let mut to = vec![0u8; LEN];
            for round in 0..300 {
                for way in [copy, by_steps::<STEP>] {
                    // SAFETY: needed to call it. Both have so many bytes, and those of the source are atomics.
                    let crc = unsafe { way(0, source.as_ptr().cast(), to.as_mut_ptr(), LEN) };
                    assert_eq!(crc, crc32c::crc32c(&to), "round {round}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
