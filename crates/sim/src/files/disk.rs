//! A file: what it has, what it had during a call, and what goes wrong with it.

use crate::random::Random;
use std::collections::BTreeSet;
use toe_abi::errno::Errno;
use toe_transfer::Looked;

const PAGE: usize = 4096;
pub(super) const LEN_MAX: usize = 350_000;

/// What kind of file it is, towards who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It says what is at hand, and how long it is.
    Ordinary,
    /// It cannot say what is at hand.
    Dumb,
    /// It does not say how long it is.
    Endless,
    /// It is read by whole blocks.
    Blocks,
}

/// Often small, often of any size.
pub(super) fn some_size(random: &mut Random, max: usize) -> usize {
    let max = max as u32;
    if random.one_in(2) { random.any_size(max) as usize } else { random.between(0, max) as usize }
}

/// One file. Each byte follows from its place and from how often its page was written; 0: a hole.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) kind: Kind,
    pub(super) len: usize,
    pages: Vec<u8>,
    /// What a page was while the call is under way: a bit each.
    had: Vec<u64>,
    at_hand: BTreeSet<usize>,
    broken: BTreeSet<usize>,
    /// It was made shorter or longer, or failed, or a signal came: not all has to come.
    pub(super) was_disturbed: bool,
    calm: bool,
}

fn byte(place: usize, version: u8) -> u8 {
    if version == 0 {
        0
    } else {
        (place as u32).wrapping_mul(2_654_435_761).rotate_left(7) as u8 ^ version.wrapping_mul(97) | 1
    }
}

impl Disk {
    pub(super) fn new(random: &mut Random) -> Disk {
        let len = some_size(random, LEN_MAX);
        let kind = random.pick(&[Kind::Ordinary, Kind::Ordinary, Kind::Dumb, Kind::Endless, Kind::Blocks]);
        let pages = LEN_MAX / PAGE + 1;
        let calm = random.one_in(3);
        let some = |random: &mut Random, n: u32| -> BTreeSet<usize> {
            (0..n).map(|_| random.below(pages as u32) as usize).collect()
        };
        let at_hand = random.pick(&[0, pages as u32 / 2, 8 * pages as u32]);
        let broken = if calm { 0 } else { random.below(3) };
        Disk {
            kind,
            len,
            pages: vec![1; pages],
            had: vec![1 << 1; pages],
            at_hand: some(random, at_hand),
            broken: some(random, broken),
            was_disturbed: false,
            calm,
        }
    }

    /// A call begins: what is there now is what was there.
    pub(super) fn begin(&mut self) {
        self.had.iter_mut().zip(&self.pages).for_each(|(had, page)| *had = 1 << page);
        self.was_disturbed = false;
    }

    /// Whether this byte was in the file at this place at some time during the call.
    pub(super) fn had(&self, place: usize, what: u8) -> bool {
        let (page, had) = (self.pages[place / PAGE], self.had[place / PAGE]);
        // Nearly always what it is now.
        byte(place, page) == what
            || (0..64).any(|version| had & 1 << version != 0 && byte(place, version) == what)
    }

    /// Something happens to the file.
    pub(super) fn change(&mut self, random: &mut Random) {
        let page = random.below(self.pages.len() as u32) as usize;
        if random.one_in(2) {
            self.at_hand.insert(page);
        } else {
            self.at_hand.remove(&page);
        }
        if self.calm || !random.one_in(20) {
            return;
        }
        self.was_disturbed = true;
        let len = some_size(random, LEN_MAX);
        if random.one_in(2) {
            // Whoever makes it longer again finds nothing there.
            for page in len / PAGE + 1..self.pages.len() {
                self.set(page, 0);
            }
            self.len = len;
        } else if self.pages[page] < 60 {
            let version = self.pages[page] + 1;
            self.set(page, version);
        }
    }

    fn set(&mut self, page: usize, version: u8) {
        self.pages[page] = version;
        self.had[page] |= 1 << version;
    }

    pub(super) fn look(&self) -> Looked {
        let len = (self.kind != Kind::Endless).then_some(self.len as u64);
        Looked { len, by_blocks: self.kind == Kind::Blocks }
    }

    fn bytes(&self, from: usize, to: usize) -> Vec<u8> {
        (from..to).map(|place| byte(place, self.pages[place / PAGE])).collect()
    }

    /// Up to where a read from here may go, or why it cannot.
    fn readable(&mut self, at: usize, max: usize, random: &mut Random) -> Result<usize, Errno> {
        if !self.calm && random.one_in(50) {
            return Err(Errno::EINTR);
        }
        let mut to = self.len.min(at + max).max(at);
        if !self.calm && to > at && random.one_in(4) {
            to = at + 1 + random.below((to - at) as u32) as usize;
        }
        match self.broken.range(at / PAGE..).next() {
            Some(page) if to > at && page * PAGE <= at => {
                self.was_disturbed = true;
                Err(Errno::EIO)
            }
            Some(page) => Ok(to.min((page * PAGE).max(at))),
            None => Ok(to),
        }
    }

    /// Reads, and waits for it.
    pub(super) fn read(&mut self, at: u64, max: usize, random: &mut Random) -> Result<Vec<u8>, Errno> {
        let at = at as usize;
        let to = self.readable(at, max, random)?;
        Ok(self.bytes(at, to))
    }

    /// Reads what needs no waiting. `false`: it is not known yet that it goes by blocks.
    pub(super) fn read_at_hand(
        &mut self,
        at: u64,
        max: usize,
        random: &mut Random,
    ) -> Result<Vec<u8>, Errno> {
        let at = at as usize;
        match self.kind {
            Kind::Blocks => return Err(Errno::EINVAL),
            Kind::Dumb => return Err(Errno::EOPNOTSUPP),
            Kind::Ordinary | Kind::Endless => {}
        }
        let to = self.readable(at, max, random)?;
        let ready = (at / PAGE..).take_while(|page| self.at_hand.contains(page)).last();
        let to = match ready {
            Some(page) => to.min((page + 1) * PAGE),
            None if to > at => return Err(Errno::EAGAIN),
            None => to,
        };
        Ok(self.bytes(at, to))
    }
}
