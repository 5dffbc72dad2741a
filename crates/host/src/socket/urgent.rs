//! Urgent data, as Linux shows it: one byte of the stream is marked, and is not part of what `recv` gives but of what
//! `recv` with MSG_OOB gives, unless SO_OOBINLINE leaves it where it is. No read goes past the mark (`tcp_recvmsg`,
//! `tcp_recv_urg` and `tcp_ioctl` of Linux, as observed).
//!
//! Owned by [`crate::socket::stream`]. Places count the bytes that came in order, from the session's first one.

/// The mark of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Urgent {
    /// Where the urgent byte is, until it has been read past.
    at: Option<u64>,
    /// It has been read by MSG_OOB. Once it is next it is no part of the stream any more, and stands just before what is to be read: it
    /// must not come to another process that gets the connection.
    taken: bool,
    /// Where an earlier one is that was next when this one was announced: it is left out all the same (`tcp_check_urg`).
    earlier: Option<u64>,
    /// SO_OOBINLINE.
    pub inline: bool,
}

/// How a read is to go about the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// There is none in the way: any number of bytes.
    Free,
    /// So many bytes, then stop.
    Before(usize),
    /// The next byte is the urgent one and is to be left out.
    Skip,
}

impl Urgent {
    /// The peer has told of an urgent byte.
    pub fn announce(&mut self, at: u64, read: u64) {
        if self.at == Some(read) && at != read && !self.inline {
            self.earlier = self.at;
        }
        self.at = Some(at);
        self.taken = false;
    }

    /// Bytes from the next one to be read to the urgent one.
    fn distance(&self, read: u64) -> Option<u64> {
        self.at?.checked_sub(read)
    }

    /// The program has read up to `read`.
    pub fn on_read(&mut self, read: u64) {
        self.at = self.at.filter(|at| *at >= read);
        self.earlier = self.earlier.filter(|at| *at >= read);
    }

    /// How a read of the `unread` bytes that are there is to go.
    pub fn plan(&self, read: u64, unread: usize) -> Plan {
        if self.earlier == Some(read) && unread > 0 {
            return Plan::Skip;
        }
        match self.distance(read) {
            Some(0) if !self.inline && unread > 0 => Plan::Skip,
            Some(distance) if distance > 0 && distance <= unread as u64 => Plan::Before(distance as usize),
            _ => Plan::Free,
        }
    }

    /// How far a look may go that begins with a byte that is left out: to the mark, if that is not the byte itself.
    pub fn most_behind(&self, read: u64, unread: usize) -> usize {
        match self.distance(read) {
            Some(distance) if distance > 0 && distance <= unread as u64 => distance as usize,
            _ => usize::MAX,
        }
    }

    /// What FIONREAD says of `unread` bytes.
    pub fn countable(&self, read: u64, unread: usize) -> usize {
        let before = match self.distance(read) {
            Some(distance) if !self.inline && distance < unread as u64 => distance as usize,
            None if self.is_at_mark(read) => 0,
            _ => unread,
        };
        before.saturating_sub(usize::from(self.earlier == Some(read)))
    }

    /// SIOCATMARK.
    pub fn is_at_mark(&self, read: u64) -> bool {
        self.distance(read) == Some(0) || self.taken && self.at.is_some_and(|at| at + 1 == read)
    }

    /// Whether the next byte is the one that MSG_OOB has read.
    pub fn is_taken_next(&self, read: u64, unread: usize) -> bool {
        self.taken && self.distance(read) == Some(0) && unread > 0
    }

    /// Whether the byte is there and has not been taken: EPOLLPRI.
    pub fn is_here(&self, read: u64, unread: usize) -> bool {
        !self.taken && self.distance(read).is_some_and(|distance| distance < unread as u64)
    }

    /// Whether MSG_OOB has something to read or to wait for.
    pub fn may_take(&self) -> bool {
        !self.inline && !self.taken && self.at.is_some()
    }

    /// Where the byte is among the `unread` ones, if it is there.
    pub fn position(&self, read: u64, unread: usize) -> Option<usize> {
        self.distance(read).filter(|distance| *distance < unread as u64).map(|distance| distance as usize)
    }

    /// Where it is, counted from the first byte of all.
    pub fn position_in_stream(&self) -> Option<u64> {
        self.at
    }

    /// MSG_OOB has read it.
    pub fn take(&mut self) {
        self.taken = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_stops_at_the_mark_and_then_leaves_it_out() {
        let mut urgent = Urgent::default();
        assert_eq!(urgent.plan(0, 10), Plan::Free);
        urgent.announce(3, 0);
        assert_eq!(urgent.plan(0, 2), Plan::Free, "not there yet");
        assert_eq!(urgent.plan(0, 10), Plan::Before(3));
        assert_eq!((urgent.countable(0, 10), urgent.is_at_mark(0), urgent.is_here(0, 10)), (3, false, true));
        assert_eq!(urgent.plan(3, 7), Plan::Skip);
        assert!(urgent.is_at_mark(3) && urgent.may_take());
        urgent.take();
        assert!(!urgent.may_take() && !urgent.is_here(3, 7) && urgent.is_at_mark(3));
        assert!(urgent.is_taken_next(3, 7) && !urgent.is_taken_next(2, 8));
        assert_eq!(
            (urgent.plan(4, 6), urgent.countable(4, 6), urgent.is_at_mark(4)),
            (Plan::Free, 0, true),
            "left out"
        );
        urgent.on_read(4);
        assert_eq!((urgent.plan(4, 6), urgent.is_at_mark(4)), (Plan::Free, false));
    }

    #[test]
    fn one_that_was_next_is_left_out_also_when_another_one_is_announced() {
        let mut urgent = Urgent::default();
        urgent.announce(3, 0);
        urgent.announce(5, 3);
        assert_eq!((urgent.plan(3, 7), urgent.countable(3, 7)), (Plan::Skip, 1));
        assert_eq!(urgent.most_behind(3, 7), 2);
        urgent.on_read(4);
        assert_eq!((urgent.plan(4, 6), urgent.countable(4, 6)), (Plan::Before(1), 1));
        // Of one that was not next a byte like the others is left.
        let mut urgent = Urgent::default();
        urgent.announce(3, 0);
        urgent.announce(5, 2);
        assert_eq!((urgent.plan(2, 8), urgent.plan(3, 7)), (Plan::Before(3), Plan::Before(2)));
    }

    #[test]
    fn inline_it_is_read_like_the_others_but_reads_stop_before_it() {
        let mut urgent = Urgent { inline: true, ..Urgent::default() };
        urgent.announce(3, 0);
        assert_eq!(urgent.plan(0, 10), Plan::Before(3));
        assert_eq!(urgent.plan(3, 7), Plan::Free);
        assert_eq!((urgent.countable(0, 10), urgent.may_take()), (10, false));
    }
}
