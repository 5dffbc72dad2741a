//! Neighbours of a port and how their hardware addresses are learnt (RFC 826; RFC 4861 section 7.2).

use std::collections::{HashMap, VecDeque};
use toe_base::limits::FLOWS_MAX;
use toe_base::{Addr, Instant};
use toe_wire::link::MacAddr;

/// A neighbour, by its number in the port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub addr: Addr,
    pub state: NeighbourState,
    /// To be asked for when it is used: the kernel, who keeps the table of this port, has not heard of it for a while, or it
    /// seems not to be there any more.
    pub is_doubtful: bool,
}

impl Neighbour {
    const fn new(addr: Addr) -> Neighbour {
        Neighbour { addr, state: NeighbourState::Unreachable, is_doubtful: false }
    }
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    Known(MacAddr),
    /// Asked for `tries` times; the next question is due then.
    Asking {
        tries: u8,
        again_at: Instant,
    },
    /// Did not answer; asked again when somebody wants it.
    Unreachable,
}

const ASK_INTERVAL_US: u64 = 1_000_000;
const TRIES_MAX: u8 = 3;
/// Neighbours of one port: as many as there may be connections, or those of a few would leave no place for another's.
pub const NEIGHBOURS_MAX: usize = FLOWS_MAX;
const _: () = assert!(NEIGHBOURS_MAX <= 1 << u16::BITS, "their numbers are of so many bits");
/// Places of a full table that one wish looks at.
const LOOKS: usize = 256;
/// Neighbours that are asked for again, or given up, in one call.
const TIMEOUTS_AT_ONCE: usize = 256;
/// Neighbours that are looked through one by one.
const FEW: usize = 8;

/// The neighbours of one port. A number stays a neighbour's own as long as somebody holds it.
#[derive(Debug, Default)]
pub struct Neighbours {
    table: Vec<Neighbour>,
    by_addr: HashMap<Addr, u16>,
    /// Where the search for a place that nobody holds goes on when the table is full.
    hand: usize,
    /// Those that are asked for, in the order in which the next question is due, and some that are not any more. The first one
    /// is.
    asking: VecDeque<(Instant, u16)>,
}

impl Neighbours {
    /// The number of `addr`, new ones included; `None` when the table is full.
    pub fn number(&mut self, addr: Addr) -> Option<u16> {
        if let Some(at) = self.find(addr) {
            return Some(at as u16);
        }
        if self.table.len() == NEIGHBOURS_MAX {
            return None;
        }
        let number = self.table.len() as u16;
        self.table.push(Neighbour::new(addr));
        self.by_addr.insert(addr, number);
        Some(number)
    }

    /// The table is full: gives `addr` the number of a neighbour that nobody holds, if one is found soon. Those whose hardware address is not
    /// known go first: who wants many addresses where nobody is takes no known neighbour from anybody.
    pub fn replace(&mut self, addr: Addr, is_held: impl Fn(u16) -> bool) -> Option<u16> {
        let (mut unknown, mut known) = (None, None);
        for _ in 0..LOOKS.min(self.table.len()) {
            let number = self.hand as u16;
            self.hand = (self.hand + 1) % self.table.len();
            let is_known = matches!(self.table[usize::from(number)].state, NeighbourState::Known(_));
            if is_known && known.is_some() || is_held(number) {
                continue;
            }
            if !is_known {
                unknown = Some(number);
                break;
            }
            known = Some(number);
        }
        let number = unknown.or(known)?;
        let old = core::mem::replace(&mut self.table[usize::from(number)], Neighbour::new(addr));
        self.by_addr.remove(&old.addr);
        self.by_addr.insert(addr, number);
        self.drop_stale();
        Some(number)
    }

    fn find(&self, addr: Addr) -> Option<usize> {
        // Each datagram asks. A few are found as fast without the index.
        match self.table.len() <= FEW {
            true => self.table.iter().position(|n| n.addr == addr),
            false => self.by_addr.get(&addr).map(|number| usize::from(*number)),
        }
    }

    /// The hardware address, if it is known.
    pub fn mac(&self, number: u16) -> Option<MacAddr> {
        match self.table.get(usize::from(number))?.state {
            NeighbourState::Known(mac) => Some(mac),
            _ => None,
        }
    }

    /// The same, unless it is doubtful.
    pub fn mac_without_doubt(&self, number: u16) -> Option<MacAddr> {
        let is_doubtful = self.table.get(usize::from(number))?.is_doubtful;
        self.mac(number).filter(|_| !is_doubtful)
    }

    /// The same by the address.
    pub fn mac_of(&self, addr: Addr) -> Option<MacAddr> {
        self.find(addr).and_then(|at| self.mac(at as u16))
    }

    /// What is sent to it is not answered (RFC 9293 section 3.8.3: negative advice).
    pub fn doubt(&mut self, number: u16) {
        if let Some(neighbour) = self.table.get_mut(usize::from(number)) {
            neighbour.is_doubtful = matches!(neighbour.state, NeighbourState::Known(_));
        }
    }

    /// The address of a doubtful neighbour, once: it is used, so somebody is to make sure of it.
    pub fn take_doubt(&mut self, number: u16) -> Option<Addr> {
        let neighbour = self.table.get_mut(usize::from(number))?;
        core::mem::take(&mut neighbour.is_doubtful).then_some(neighbour.addr)
    }

    /// What the kernel says of a neighbour: its hardware address, and whether it is sure of it. Returns its number when
    /// somebody waited for that. Of one that nobody here has used nothing is kept: the kernel may know very many.
    pub fn set(&mut self, addr: Addr, mac: MacAddr, is_doubtful: bool) -> Option<u16> {
        let at = self.find(addr)?;
        let waited = !matches!(self.table[at].state, NeighbourState::Known(_));
        self.table[at].state = NeighbourState::Known(mac);
        self.table[at].is_doubtful = is_doubtful;
        self.drop_stale();
        waited.then_some(at as u16)
    }

    /// The kernel has forgotten the neighbour, or it did not answer. Returns its number when it is known here.
    pub fn forget(&mut self, addr: Addr) -> Option<u16> {
        let at = self.find(addr)?;
        self.table[at].state = NeighbourState::Unreachable;
        self.table[at].is_doubtful = false;
        self.drop_stale();
        Some(at as u16)
    }

    /// Asks for the neighbour unless that is under way; returns the address to ask for now.
    pub fn ask(&mut self, number: u16, now: Instant) -> Option<Addr> {
        let neighbour = self.table.get_mut(usize::from(number))?;
        if neighbour.state != NeighbourState::Unreachable {
            return None;
        }
        let addr = neighbour.addr;
        self.will_ask(number, 1, now);
        Some(addr)
    }

    fn will_ask(&mut self, number: u16, tries: u8, now: Instant) {
        let again_at = now.after_us(ASK_INTERVAL_US);
        self.table[usize::from(number)].state = NeighbourState::Asking { tries, again_at };
        if self.asking.len() >= 2 * self.table.len().max(FEW) {
            self.drop_all_stale();
        }
        self.asking.push_back((again_at, number));
    }

    /// One entry for each that is asked for is left, behind the first one that still is, too: whoever asks and ceases without end
    /// would else leave as many as he asks in a second.
    fn drop_all_stale(&mut self) {
        let mut is_there = vec![false; self.table.len()];
        let asking = core::mem::take(&mut self.asking);
        let is_one = |(due, number): &(Instant, u16)| {
            self.tries((*due, *number)).is_some()
                && !core::mem::replace(&mut is_there[usize::from(*number)], true)
        };
        self.asking = asking.into_iter().filter(is_one).collect();
    }

    /// How often it was asked for whose next question is due then, unless that is over.
    fn tries(&self, (due, number): (Instant, u16)) -> Option<u8> {
        match self.table[usize::from(number)].state {
            NeighbourState::Asking { tries, again_at } if again_at == due => Some(tries),
            _ => None,
        }
    }

    fn drop_stale(&mut self) {
        while self.asking.front().is_some_and(|first| self.tries(*first).is_none()) {
            self.asking.pop_front();
        }
    }

    /// Nobody waits for it any more: it is not asked for again before somebody wants it.
    pub fn cease(&mut self, number: u16) {
        if let Some(neighbour) = self.table.get_mut(usize::from(number))
            && matches!(neighbour.state, NeighbourState::Asking { .. })
        {
            neighbour.state = NeighbourState::Unreachable;
            self.drop_stale();
        }
    }

    /// `addr` is at `mac`, as it said itself. Returns its number when somebody waited for that. If it was elsewhere, that is made sure of when
    /// it is used: anybody can say so.
    pub fn learn(&mut self, addr: Addr, mac: MacAddr) -> Option<u16> {
        self.number(addr)?;
        self.hear(addr, mac)
    }

    /// The same of one that is known here, if it is.
    pub fn hear(&mut self, addr: Addr, mac: MacAddr) -> Option<u16> {
        let was_elsewhere = self.mac_of(addr).is_some_and(|known| known != mac);
        self.set(addr, mac, was_elsewhere)
    }

    /// Asks again, or gives up: calls `ask` with each address to ask for, `lost` with each number given up. Those that are left are due
    /// still: a program decides how many are asked for at one moment.
    pub fn on_timeout(&mut self, now: Instant, mut ask: impl FnMut(Addr), mut lost: impl FnMut(u16)) {
        for _ in 0..TIMEOUTS_AT_ONCE {
            let Some(first) = self.asking.front().copied().filter(|(due, _)| *due <= now) else { break };
            self.asking.pop_front();
            let number = first.1;
            match self.tries(first) {
                Some(tries) if tries < TRIES_MAX => {
                    ask(self.table[usize::from(number)].addr);
                    self.will_ask(number, tries + 1, now);
                }
                Some(_) => {
                    self.table[usize::from(number)].state = NeighbourState::Unreachable;
                    lost(number);
                }
                None => {}
            }
        }
        self.drop_stale();
    }

    /// When the next question is due.
    pub fn next_deadline(&self) -> Instant {
        self.asking.front().map_or(Instant::FAR_FUTURE, |(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDR: Addr = Addr::v4(core::net::Ipv4Addr::new(10, 0, 0, 9));

    #[test]
    fn three_questions_then_unreachable_then_asked_anew() {
        let mut neighbours = Neighbours::default();
        let number = neighbours.number(ADDR).expect("room");
        assert_eq!(neighbours.ask(number, Instant::ZERO), Some(ADDR));
        assert_eq!(neighbours.ask(number, Instant::ZERO), None, "under way");
        let (mut asked, mut lost) = (0, 0);
        for second in 1..=5 {
            neighbours.on_timeout(Instant::from_millis(second * 1000), |_| asked += 1, |_| lost += 1);
        }
        assert_eq!((asked, lost), (2, 1));
        assert!(neighbours.next_deadline().is_far_future());
        assert_eq!(neighbours.ask(number, Instant::from_millis(6000)), Some(ADDR));
        assert_eq!(neighbours.learn(ADDR, MacAddr([1; 6])), Some(number));
        assert_eq!(neighbours.learn(ADDR, MacAddr([2; 6])), None, "nobody waited");
        assert_eq!(neighbours.mac(number), Some(MacAddr([2; 6])));
    }

    fn addr(n: usize) -> Addr {
        Addr::from((0x0a00_0000 + n as u32).to_be_bytes())
    }

    /// A full table of neighbours that are not known, from `addr(first)` on.
    fn fill(neighbours: &mut Neighbours, first: usize) {
        (first..).find(|n| neighbours.number(addr(*n)).is_none());
        assert_eq!(neighbours.table.len(), NEIGHBOURS_MAX);
    }

    #[test]
    fn a_full_table_gives_up_what_nobody_holds_and_finds_it_soon() {
        let mut neighbours = Neighbours::default();
        fill(&mut neighbours, 1);
        let new = addr(NEIGHBOURS_MAX + 1);
        let wishes = NEIGHBOURS_MAX / LOOKS;
        assert!((0..2 * wishes).all(|_| neighbours.replace(new, |_| true).is_none()), "all are held");
        // One is given back, wherever it is: so many wishes later at most somebody has it.
        let free = 40_000;
        assert!((0..wishes).any(|_| neighbours.replace(new, |number| number != free) == Some(free)));
        assert_eq!(neighbours.number(new), Some(free));
        assert_eq!(neighbours.number(addr(usize::from(free) + 1)), None, "it was given up");
        assert_eq!(neighbours.number(addr(1)), Some(0), "held");
        let of_the_old = addr(usize::from(free) + 1);
        assert_eq!(
            neighbours.set(of_the_old, MacAddr([1; 6]), false),
            None,
            "the kernel's news need no place"
        );
    }

    #[test]
    fn who_is_not_there_gives_way_to_who_is() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.learn(addr(1), MacAddr([1; 6])), Some(0));
        fill(&mut neighbours, 2);
        assert_eq!(neighbours.replace(addr(0), |_| false), Some(1), "the first that is not known");
        assert_eq!(neighbours.mac_of(addr(1)), Some(MacAddr([1; 6])), "known, and kept");
        (0..=NEIGHBOURS_MAX).for_each(|n| _ = neighbours.learn(addr(n), MacAddr([2; 6])));
        assert!(neighbours.replace(addr(2), |_| false).is_some(), "all were known: somebody has to go");
    }

    #[test]
    fn whoever_is_asked_for_with_others_has_its_turn_and_nobody_else() {
        let mut neighbours = Neighbours::default();
        let count = 2 * TIMEOUTS_AT_ONCE;
        for n in 0..count {
            let number = neighbours.number(addr(n)).expect("room");
            assert_eq!(neighbours.ask(number, Instant::ZERO), Some(addr(n)));
        }
        neighbours.learn(addr(0), MacAddr([1; 6]));
        neighbours.cease(7);
        let second = neighbours.next_deadline();
        let mut asked = Vec::new();
        while neighbours.next_deadline() <= second {
            let before = asked.len();
            neighbours.on_timeout(second, |addr| asked.push(addr), |_| {});
            assert!(asked.len() <= before + TIMEOUTS_AT_ONCE);
        }
        assert_eq!(asked.len(), count - 2);
        assert!(!asked.contains(&addr(0)) && !asked.contains(&addr(7)));
        // Whoever has the number of one that was asked for is not asked for.
        let mut one = Neighbours::default();
        let number = one.number(addr(1)).expect("room");
        one.ask(number, Instant::ZERO);
        fill(&mut one, 2);
        assert_eq!(one.replace(addr(0), |held| held != number), Some(number));
        assert!(one.next_deadline().is_far_future());
    }

    #[test]
    fn who_asks_and_ceases_without_end_leaves_no_more_than_there_are_neighbours() {
        let mut neighbours = Neighbours::default();
        let waits = neighbours.number(addr(1)).expect("room");
        neighbours.ask(waits, Instant::ZERO);
        let ceases = neighbours.number(addr(2)).expect("room");
        for us in 0..1000 {
            // Twice at one moment: both entries are of what is asked for then.
            for _ in 0..2 {
                neighbours.cease(ceases);
                assert_eq!(neighbours.ask(ceases, Instant::from_micros(us)), Some(addr(2)));
            }
            assert!(neighbours.asking.len() <= 2 * FEW, "{us}: {:?}", neighbours.asking);
        }
        let mut asked = Vec::new();
        neighbours.on_timeout(Instant::from_millis(1_500), |addr| asked.push(addr), |_| {});
        assert_eq!(asked, [addr(1), addr(2)], "each once");
    }

    #[test]
    fn the_kernels_doubt_is_asked_about_once_when_the_neighbour_is_used() {
        let mut neighbours = Neighbours::default();
        let number = neighbours.number(ADDR).expect("room");
        assert_eq!(neighbours.set(ADDR, MacAddr([1; 6]), true), Some(number), "it was wanted");
        assert_eq!(neighbours.mac(number), Some(MacAddr([1; 6])), "used all the same");
        assert_eq!(neighbours.take_doubt(number), Some(ADDR));
        assert_eq!(neighbours.take_doubt(number), None);
        assert_eq!(neighbours.set(ADDR, MacAddr([3; 6]), false), None);
        assert_eq!((neighbours.mac(number), neighbours.take_doubt(number)), (Some(MacAddr([3; 6])), None));
        assert_eq!(neighbours.forget(ADDR), Some(number));
        assert_eq!(neighbours.mac(number), None);
        assert_eq!(neighbours.forget(Addr::LOCALHOST_V4), None);
    }
}
