//! Sends with MSG_ZEROCOPY. An engine's connection copies what it is given, so the program may have its buffer back as soon as the call has returned, and
//! is told so as Linux tells it: by a range of calls' numbers on the error queue, marked as copied. Ranges that follow each other are one
//! (`skb_zerocopy_notify_extend`), so there is never more than one.
//!
//! Owned by a stream; another process that takes the connection over counts anew.

/// The numbers of a socket's calls.
#[derive(Debug, Default)]
pub struct ZeroCopy {
    next: u32,
    /// Calls that the program has not been told of, the last ones before `next`.
    untold: u32,
}

impl ZeroCopy {
    /// A call has sent something.
    pub(super) fn count(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.untold = self.untold.saturating_add(1);
    }

    /// The first and the last call that the program has not been told of; from now on it has.
    pub(super) fn tell(&mut self) -> Option<(u32, u32)> {
        let untold = std::mem::take(&mut self.untold);
        (untold > 0).then(|| (self.next.wrapping_sub(untold), self.next.wrapping_sub(1)))
    }

    /// POLLERR.
    pub fn has_untold(&self) -> bool {
        self.untold > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_once_and_as_one_range() {
        let mut zerocopy = ZeroCopy { next: u32::MAX, untold: 0 };
        assert_eq!(zerocopy.tell(), None);
        zerocopy.count();
        zerocopy.count();
        assert!(zerocopy.has_untold());
        assert_eq!(zerocopy.tell(), Some((u32::MAX, 0)));
        assert!(!zerocopy.has_untold());
        zerocopy.count();
        assert_eq!((zerocopy.tell(), zerocopy.tell()), (Some((1, 1)), None));
    }
}
