//! What the bytes of a stream are: a function of the connection, the direction and the place, so that any byte can be
//! judged wherever it turns up.

/// Which stream: the connection's number and who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId {
    pub conn: u32,
    /// 0: the side that connected sends; 1: the side that accepted.
    pub side: u8,
}

impl StreamId {
    /// Eight bytes of the stream, from the place `8 * index` on.
    fn word(self, index: u64) -> u64 {
        let key = (u64::from(self.conn) << 1 | u64::from(self.side)).wrapping_add(1);
        let mut z = index.wrapping_add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The stream's bytes from `at` on.
    pub fn fill(self, at: u64, out: &mut [u8]) {
        let head = ((8 - at % 8) % 8).min(out.len() as u64) as usize;
        let (front, rest) = out.split_at_mut(head);
        if head > 0 {
            let word = self.word(at / 8).to_le_bytes();
            front.copy_from_slice(&word[(at % 8) as usize..][..head]);
        }
        let first = (at + head as u64) / 8;
        for (index, chunk) in (first..).zip(rest.chunks_mut(8)) {
            chunk.copy_from_slice(&self.word(index).to_le_bytes()[..chunk.len()]);
        }
    }

    /// Where `bytes`, said to be the stream from `at` on, are not that.
    pub fn first_difference(self, at: u64, bytes: &[u8]) -> Option<usize> {
        let mut expected = [0; 1024];
        let mut done = 0;
        for chunk in bytes.chunks(expected.len()) {
            let expected = &mut expected[..chunk.len()];
            self.fill(at + done as u64, expected);
            if chunk != expected {
                let within = chunk.iter().zip(expected.iter()).position(|(a, b)| a != b);
                return Some(done + within.unwrap_or(0));
            }
            done += chunk.len();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        let stream = StreamId { conn: 7, side: 1 };
        let mut whole = vec![0; 5000];
        stream.fill(0, &mut whole);
        for (at, len) in [(0, 1), (3, 2), (7, 1), (5, 3), (8, 8), (1, 4999), (4095, 17)] {
            let mut part = vec![0; len];
            stream.fill(at as u64, &mut part);
            assert_eq!(part, whole[at..at + len], "{at} {len}");
            assert_eq!(stream.first_difference(at as u64, &part), None);
        }
        whole[4321] ^= 1;
        assert_eq!(stream.first_difference(0, &whole), Some(4321));
        assert_eq!(StreamId { conn: 7, side: 0 }.first_difference(4, &whole[4..12]).map(|_| ()), Some(()));
    }
}
