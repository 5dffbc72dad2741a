//! Receive and send windows (RFC 9293 section 3.8.6) and their scale (RFC 7323 section 2).

/// RFC 7323 section 2.3: a shift above 14 must be taken as 14.
pub const WINDOW_SCALE_MAX: u8 = 14;

/// A window in bytes, as the state machine uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowSize(u32);

/// The 16-bit window field as it stands in a header: meaningless without a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UnscaledWindow(pub u16);

/// A window scale, never above 14.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WindowScale(u8);

impl WindowSize {
    pub const ZERO: WindowSize = WindowSize(0);
    /// Largest window that any scale can express.
    pub const MAX: WindowSize = WindowSize((u16::MAX as u32) << WINDOW_SCALE_MAX);

    pub const fn new(bytes: u32) -> WindowSize {
        if bytes > Self::MAX.0 { Self::MAX } else { WindowSize(bytes) }
    }

    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// The header field for this window: rounded down, so that it never promises room that is not there.
    pub const fn to_field(self, scale: WindowScale) -> UnscaledWindow {
        let field = self.0 >> scale.0;
        UnscaledWindow(if field > u16::MAX as u32 { u16::MAX } else { field as u16 })
    }
}

impl UnscaledWindow {
    pub const fn scaled(self, scale: WindowScale) -> WindowSize {
        WindowSize((self.0 as u32) << scale.0)
    }
}

impl WindowScale {
    pub const ZERO: WindowScale = WindowScale(0);

    /// The scale as received; anything above 14 counts as 14 (RFC 7323 section 2.3).
    pub const fn from_option(shift: u8) -> WindowScale {
        WindowScale(if shift > WINDOW_SCALE_MAX { WINDOW_SCALE_MAX } else { shift })
    }

    /// The smallest scale with which `largest` fits the 16-bit field.
    pub const fn to_cover(largest: WindowSize) -> WindowScale {
        let mut shift = 0;
        while shift < WINDOW_SCALE_MAX && (largest.0 >> shift) > u16::MAX as u32 {
            shift += 1;
        }
        WindowScale(shift)
    }

    pub const fn shift(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_never_promises_more_than_the_window() {
        for shift in 0..=WINDOW_SCALE_MAX {
            let scale = WindowScale::from_option(shift);
            for bytes in [0u32, 1, 536, 65_535, 65_536, 1 << 20, u32::MAX] {
                let window = WindowSize::new(bytes);
                assert!(window.to_field(scale).scaled(scale) <= window);
            }
        }
    }

    #[test]
    fn an_oversized_shift_counts_as_fourteen() {
        assert_eq!(WindowScale::from_option(200).shift(), 14);
        assert_eq!(WindowScale::to_cover(WindowSize::new(65_535)).shift(), 0);
        assert_eq!(WindowScale::to_cover(WindowSize::new(65_536)).shift(), 1);
        assert_eq!(WindowScale::to_cover(WindowSize::new(16 << 20)).shift(), 9);
    }
}
