//! The bytes of both streams: each place has its own, so that whatever is lost, doubled, moved or mixed up shows.

/// Who sends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The far end, to the stack that is tested.
    Far,
    /// The program above the stack.
    Program,
}

/// The byte at `place` of a stream. Places wrap as sequence numbers do.
pub fn byte(stream: Stream, place: u32) -> u8 {
    let salt = match stream {
        Stream::Far => 0x51ed_270b,
        Stream::Program => 0x2545_f491,
    };
    (place.wrapping_mul(0x9e37_79b1).wrapping_add(salt) >> 21) as u8
}

/// `len` bytes from `place` on.
pub fn bytes(stream: Stream, place: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| byte(stream, place.wrapping_add(at))).collect()
}

/// The first of `bytes` that is not what the stream has from `place` on, as its index.
pub fn first_wrong(stream: Stream, place: u32, bytes: &[u8]) -> Option<usize> {
    bytes.iter().enumerate().position(|(at, b)| *b != byte(stream, place.wrapping_add(at as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_or_the_other_stream_shows() {
        let far = bytes(Stream::Far, 1000, 400);
        assert_eq!(first_wrong(Stream::Far, 1000, &far), None);
        for shift in [1, 2, 4, 16, 100, 256, 1460, 4096, 65_536] {
            assert!(first_wrong(Stream::Far, 1000 + shift, &far).is_some_and(|at| at < 64), "{shift}");
        }
        assert!(first_wrong(Stream::Program, 1000, &far).is_some_and(|at| at < 8));
        assert_eq!(
            first_wrong(Stream::Far, u32::MAX, &bytes(Stream::Far, u32::MAX, 3)),
            None,
            "across the end"
        );
    }
}
