//! TCP options: maximum segment size (RFC 9293 section 3.7.1), window scale and timestamps (RFC 7323), selective
//! acknowledgement (RFC 2018), Fast Open (RFC 7413). Others are skipped.

use toe_base::SeqNum;
use toe_base::window::{WINDOW_SCALE_MAX, WindowScale};

use crate::ParseError;

/// Most bytes of options that a header can hold.
pub const OPTIONS_LEN_MAX: usize = 40;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const FAST_OPEN: u8 = 34;

/// The timestamps option (RFC 7323 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the latest clock value seen from the other side; meaningful only with ACK.
    pub echo: u32,
}

/// A range that was received out of order: from `left` up to, not including, `right`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    pub left: SeqNum,
    pub right: SeqNum,
}

/// Up to four SACK blocks, the most that a header has room for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SackBlock; 4],
    len: u8,
}

impl SackBlocks {
    pub const MAX: usize = 4;
    pub const NONE: SackBlocks =
        SackBlocks { blocks: [SackBlock { left: SeqNum::new(0), right: SeqNum::new(0) }; 4], len: 0 };

    /// Adds a block; one too many is left out and `false` says so.
    pub fn push(&mut self, block: SackBlock) -> bool {
        let Some(place) = self.blocks.get_mut(usize::from(self.len)) else { return false };
        *place = block;
        self.len += 1;
        true
    }

    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.len)]
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of a header that they take.
    pub const fn option_len(&self) -> usize {
        Self::len_of(self.len as usize)
    }

    const fn len_of(blocks: usize) -> usize {
        if blocks == 0 { 0 } else { 4 + 8 * blocks }
    }
}

impl core::fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// What a Fast Open option carries (RFC 7413 section 2): a cookie, or nothing, which asks for one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FastOpenCookie {
    bytes: [u8; 16],
    len: u8,
}

impl FastOpenCookie {
    /// Asks for a cookie.
    pub const REQUEST: FastOpenCookie = FastOpenCookie { bytes: [0; 16], len: 0 };

    /// 4 to 16 bytes, an even number of them, or none; another length is no cookie (RFC 7413 section 4.1.1).
    pub fn new(bytes: &[u8]) -> Option<FastOpenCookie> {
        let is_valid = matches!(bytes.len(), 0 | 4..=16) && bytes.len().is_multiple_of(2);
        let mut cookie = FastOpenCookie { bytes: [0; 16], len: bytes.len() as u8 };
        cookie.bytes.get_mut(..bytes.len()).filter(|_| is_valid)?.copy_from_slice(bytes);
        Some(cookie)
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub const fn is_request(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the option takes of a header, padding included.
    const fn encoded_len(&self) -> usize {
        (2 + self.len as usize).next_multiple_of(4)
    }
}

impl core::fmt::Debug for FastOpenCookie {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_request() {
            return f.write_str("request");
        }
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The options of one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    pub mss: Option<u16>,
    pub window_scale: Option<WindowScale>,
    /// That was above 14 (RFC 7323 section 2.3). Never emitted.
    pub is_scale_too_large: bool,
    pub timestamps: Option<Timestamps>,
    pub sack_permitted: bool,
    pub sack: SackBlocks,
    pub fast_open: Option<FastOpenCookie>,
}

impl TcpOptions {
    /// Reads the option bytes of a header. An option with an impossible length makes the segment bad (RFC 9293
    /// section 3.1, MUST-7); a known option with the wrong length is skipped like an unknown one.
    pub fn parse(mut bytes: &[u8]) -> Result<TcpOptions, ParseError> {
        let mut options = TcpOptions::default();
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOP => bytes = rest,
                kind => {
                    let len = usize::from(*rest.first().ok_or(ParseError::BadOption)?);
                    if len < 2 {
                        return Err(ParseError::BadOption);
                    }
                    let body = bytes.get(2..len).ok_or(ParseError::BadOption)?;
                    options.take(kind, body);
                    bytes = &bytes[len..];
                }
            }
        }
        Ok(options)
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (MSS, [a, b]) => self.mss = Some(u16::from_be_bytes([*a, *b])),
            (WINDOW_SCALE, [shift]) => {
                self.window_scale = Some(WindowScale::from_option(*shift));
                self.is_scale_too_large = *shift > WINDOW_SCALE_MAX;
            }
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (SACK, body) if body.len().is_multiple_of(8) => {
                self.sack = SackBlocks::NONE;
                for block in body.chunks_exact(8) {
                    self.sack.push(SackBlock { left: seq_at(block, 0), right: seq_at(block, 4) });
                }
            }
            (TIMESTAMPS, body) if body.len() == 8 => {
                self.timestamps =
                    Some(Timestamps { value: seq_at(body, 0).raw(), echo: seq_at(body, 4).raw() });
            }
            (FAST_OPEN, body) => self.fast_open = FastOpenCookie::new(body),
            _ => {}
        }
    }

    /// SACK blocks that there is room for beside the other options.
    fn sack_fitting(&self) -> &[SackBlock] {
        let room = OPTIONS_LEN_MAX - self.len_without_sack();
        let blocks = self.sack.as_slice();
        &blocks[..blocks.len().min(room.saturating_sub(4) / 8)]
    }

    const fn len_without_sack(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.timestamps.is_some() {
            len += 12;
        } else if self.sack_permitted {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        if let Some(cookie) = self.fast_open {
            len += cookie.encoded_len();
        }
        len
    }

    /// Bytes that [`TcpOptions::emit`] writes: a multiple of 4, at most [`OPTIONS_LEN_MAX`].
    pub fn encoded_len(&self) -> usize {
        self.len_without_sack() + SackBlocks::len_of(self.sack_fitting().len())
    }

    /// Writes the options, each padded in front to a multiple of 4; SACK blocks that do not fit are left out.
    pub fn emit(&self, out: &mut [u8]) {
        let mut writer = Writer { out, at: 0 };
        if let Some(mss) = self.mss {
            writer.put(&[MSS, 4]);
            writer.put(&mss.to_be_bytes());
        }
        match (self.timestamps, self.sack_permitted) {
            (Some(timestamps), permitted) => {
                // SACK-permitted takes the place of the padding.
                writer.put(if permitted { &[SACK_PERMITTED, 2] } else { &[NOP, NOP] });
                writer.put(&[TIMESTAMPS, 10]);
                writer.put(&timestamps.value.to_be_bytes());
                writer.put(&timestamps.echo.to_be_bytes());
            }
            (None, true) => writer.put(&[NOP, NOP, SACK_PERMITTED, 2]),
            (None, false) => {}
        }
        if let Some(scale) = self.window_scale {
            writer.put(&[NOP, WINDOW_SCALE, 3, scale.shift()]);
        }
        if let Some(cookie) = self.fast_open {
            let len = 2 + cookie.as_slice().len();
            writer.put(&[NOP, NOP, NOP][..cookie.encoded_len() - len]);
            writer.put(&[FAST_OPEN, len as u8]);
            writer.put(cookie.as_slice());
        }
        let blocks = self.sack_fitting();
        if !blocks.is_empty() {
            writer.put(&[NOP, NOP, SACK, 2 + 8 * blocks.len() as u8]);
            for block in blocks {
                writer.put(&block.left.raw().to_be_bytes());
                writer.put(&block.right.raw().to_be_bytes());
            }
        }
    }
}

/// Four bytes as a number; the callers pass slices of 8.
fn seq_at(bytes: &[u8], at: usize) -> SeqNum {
    SeqNum::new(u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn any_options() -> impl Strategy<Value = TcpOptions> {
        let stamps = proptest::option::of(any::<(u32, u32)>());
        let sack = proptest::collection::vec(any::<(u32, u32)>(), 0..=4);
        let scale = proptest::option::of(0u8..=14);
        let cookie = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..=16));
        (any::<Option<u16>>(), scale, stamps, any::<bool>(), sack, cookie).prop_map(
            |(mss, scale, stamps, sack_permitted, ranges, cookie)| {
                let mut sack = SackBlocks::NONE;
                for (left, right) in ranges {
                    sack.push(SackBlock { left: SeqNum::new(left), right: SeqNum::new(right) });
                }
                TcpOptions {
                    mss,
                    window_scale: scale.map(WindowScale::from_option),
                    is_scale_too_large: false,
                    timestamps: stamps.map(|(value, echo)| Timestamps { value, echo }),
                    sack_permitted,
                    sack,
                    fast_open: cookie.and_then(|bytes| FastOpenCookie::new(&bytes)),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn emit_then_parse(options in any_options()) {
            let len = options.encoded_len();
            prop_assert!(len <= OPTIONS_LEN_MAX && len.is_multiple_of(4));
            let mut bytes = vec![0xee; len];
            options.emit(&mut bytes);
            let parsed = TcpOptions::parse(&bytes).expect("what we emit we accept");
            let mut fitting = SackBlocks::NONE;
            for block in options.sack_fitting() {
                fitting.push(*block);
            }
            prop_assert_eq!(parsed, TcpOptions { sack: fitting, ..options });
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..=40)) {
            if let Ok(options) = TcpOptions::parse(&bytes) {
                let mut out = [0; OPTIONS_LEN_MAX];
                options.emit(&mut out);
            }
        }
    }

    #[test]
    fn impossible_lengths_are_refused_and_odd_ones_skipped() {
        assert_eq!(TcpOptions::parse(&[99, 0]), Err(ParseError::BadOption));
        assert_eq!(TcpOptions::parse(&[99, 1, 0, 0]), Err(ParseError::BadOption));
        assert_eq!(TcpOptions::parse(&[99]), Err(ParseError::BadOption));
        assert_eq!(TcpOptions::parse(&[MSS, 4, 5]), Err(ParseError::BadOption));
        assert_eq!(TcpOptions::parse(&[MSS, 3, 5, NOP]), Ok(TcpOptions::default()));
        assert_eq!(TcpOptions::parse(&[END, 99, 0]), Ok(TcpOptions::default()));
        let parsed = TcpOptions::parse(&[254, 4, 1, 2, MSS, 4, 5, 0xb4]);
        assert_eq!(parsed, Ok(TcpOptions { mss: Some(1460), ..TcpOptions::default() }));
    }

    #[test]
    fn a_cookie_has_4_to_16_bytes_or_none() {
        let parsed = |len: u8| {
            let bytes: Vec<u8> = [FAST_OPEN, 2 + len].into_iter().chain(0..len).collect();
            TcpOptions::parse(&bytes).expect("well formed").fast_open
        };
        assert_eq!(parsed(0), Some(FastOpenCookie::REQUEST));
        for len in (4..=16).step_by(2) {
            assert_eq!(parsed(len).map(|cookie| cookie.as_slice().len()), Some(usize::from(len)));
        }
        for len in [1, 2, 3, 5, 15, 17, 18] {
            assert_eq!(parsed(len), None, "{len} bytes");
        }
    }

    #[test]
    fn an_oversized_window_scale_counts_as_fourteen() {
        let parsed = TcpOptions::parse(&[WINDOW_SCALE, 3, 255]).expect("well formed");
        assert_eq!(parsed.window_scale.map(WindowScale::shift), Some(14));
        assert!(parsed.is_scale_too_large);
        let largest = TcpOptions::parse(&[WINDOW_SCALE, 3, 14]).expect("well formed");
        assert!(!largest.is_scale_too_large);
    }
}
