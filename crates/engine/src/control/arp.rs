//! Neighbours of a port and how their hardware addresses are learnt (RFC 826; RFC 4861 section 7.2).

use std::collections::HashMap;
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
/// Neighbours of one port. A full table gives up those that no connection holds.
pub const NEIGHBOURS_MAX: usize = 4096;
/// A full table is searched for such at every so-manieth wish, when the last search found none.
const SEARCH_EVERY: u32 = 1024;
/// Neighbours that are looked through one by one.
const FEW: usize = 8;

/// The neighbours of one port. A number stays a neighbour's own as long as a connection holds it.
#[derive(Debug, Default)]
pub struct Neighbours {
    table: Vec<Neighbour>,
    by_addr: HashMap<Addr, u16>,
    /// Numbers that are nobody's.
    free: Vec<u16>,
    /// Wishes that found the table full since numbers were last freed.
    refused: u32,
}

impl Neighbours {
    /// The number of `addr`, new ones included; `None` when the table is full.
    pub fn number(&mut self, addr: Addr) -> Option<u16> {
        if let Some(at) = self.find(addr) {
            return Some(at as u16);
        }
        let new = Neighbour { addr, state: NeighbourState::Unreachable, is_doubtful: false };
        if let Some(number) = self.free.pop() {
            self.table[usize::from(number)] = new;
            self.by_addr.insert(addr, number);
            return Some(number);
        }
        if self.table.len() == NEIGHBOURS_MAX {
            return None;
        }
        let number = self.table.len() as u16;
        self.table.push(new);
        self.by_addr.insert(addr, number);
        Some(number)
    }

    fn find(&self, addr: Addr) -> Option<usize> {
        // Each datagram asks. A few are found as fast without the index; what is free has no address.
        match self.table.len() <= FEW && !addr.is_unspecified() {
            true => self.table.iter().position(|n| n.addr == addr),
            false => self.by_addr.get(&addr).map(|number| usize::from(*number)),
        }
    }

    /// The table was full; whether it is worth looking for numbers that no connection holds.
    pub fn should_free(&mut self) -> bool {
        let is_due = self.refused.is_multiple_of(SEARCH_EVERY);
        self.refused = self.refused.wrapping_add(1);
        is_due
    }

    /// Frees all numbers but those that are held, one flag for each: of neighbours whose hardware address is not known, and if there are
    /// none, of the others. Who sends datagrams to many addresses where nobody is takes no known neighbour from anybody.
    pub fn free_all_but(&mut self, held: &[bool]) {
        if self.free_those(held, |state| !matches!(state, NeighbourState::Known(_))) == 0 {
            self.free_those(held, |_| true);
        }
    }

    fn free_those(&mut self, held: &[bool], may_go: impl Fn(NeighbourState) -> bool) -> usize {
        let mut freed = 0;
        for (number, neighbour) in self.table.iter_mut().enumerate() {
            if held.get(number) == Some(&true) || neighbour.addr.is_unspecified() || !may_go(neighbour.state)
            {
                continue;
            }
            self.by_addr.remove(&neighbour.addr);
            let (addr, state) = (Addr::UNSPECIFIED_V4, NeighbourState::Unreachable);
            *neighbour = Neighbour { addr, state, is_doubtful: false };
            self.free.push(number as u16);
            self.refused = 0;
            freed += 1;
        }
        freed
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
        waited.then_some(at as u16)
    }

    /// The kernel has forgotten the neighbour, or it did not answer. Returns its number when it is known here.
    pub fn forget(&mut self, addr: Addr) -> Option<u16> {
        let at = self.find(addr)?;
        self.table[at].state = NeighbourState::Unreachable;
        self.table[at].is_doubtful = false;
        Some(at as u16)
    }

    /// Asks for the neighbour unless that is under way; returns the address to ask for now.
    pub fn ask(&mut self, number: u16, now: Instant) -> Option<Addr> {
        let neighbour = self.table.get_mut(usize::from(number))?;
        if neighbour.state != NeighbourState::Unreachable {
            return None;
        }
        neighbour.state = NeighbourState::Asking { tries: 1, again_at: now.after_us(ASK_INTERVAL_US) };
        Some(neighbour.addr)
    }

    /// Nobody waits for it any more: it is not asked for again before somebody wants it.
    pub fn cease(&mut self, number: u16) {
        if let Some(neighbour) = self.table.get_mut(usize::from(number))
            && matches!(neighbour.state, NeighbourState::Asking { .. })
        {
            neighbour.state = NeighbourState::Unreachable;
        }
    }

    /// `addr` is at `mac`, as it said itself. Returns its number when somebody waited for that.
    pub fn learn(&mut self, addr: Addr, mac: MacAddr) -> Option<u16> {
        let at = usize::from(self.number(addr)?);
        let waited = !matches!(self.table[at].state, NeighbourState::Known(_));
        self.table[at].state = NeighbourState::Known(mac);
        waited.then_some(at as u16)
    }

    /// Asks again, or gives up: calls `ask` with each address to ask for, `lost` with each number given up.
    pub fn on_timeout(&mut self, now: Instant, mut ask: impl FnMut(Addr), mut lost: impl FnMut(u16)) {
        for (number, neighbour) in self.table.iter_mut().enumerate() {
            let NeighbourState::Asking { tries, again_at } = neighbour.state else { continue };
            if again_at > now {
                continue;
            }
            if tries >= TRIES_MAX {
                neighbour.state = NeighbourState::Unreachable;
                lost(number as u16);
            } else {
                let again_at = now.after_us(ASK_INTERVAL_US);
                neighbour.state = NeighbourState::Asking { tries: tries + 1, again_at };
                ask(neighbour.addr);
            }
        }
    }

    /// When the next question is due.
    pub fn next_deadline(&self) -> Instant {
        let due = self.table.iter().filter_map(|n| match n.state {
            NeighbourState::Asking { again_at, .. } => Some(again_at),
            _ => None,
        });
        due.min().unwrap_or(Instant::FAR_FUTURE)
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

    #[test]
    fn a_full_table_gives_up_what_no_connection_holds() {
        let addr = |n: usize| Addr::from((0x0a00_0000 + n as u32).to_be_bytes());
        let mut neighbours = Neighbours::default();
        (1..=NEIGHBOURS_MAX).for_each(|n| assert_eq!(neighbours.number(addr(n)), Some(n as u16 - 1)));
        assert_eq!(neighbours.number(addr(NEIGHBOURS_MAX + 1)), None);
        let all = vec![true; NEIGHBOURS_MAX];
        assert!(neighbours.should_free(), "at first");
        neighbours.free_all_but(&all);
        assert_eq!(neighbours.number(addr(NEIGHBOURS_MAX + 1)), None);
        assert!(!neighbours.should_free(), "not for each wish, when there was nothing");
        let mut held = all;
        held[6] = false;
        neighbours.free_all_but(&held);
        assert_eq!(neighbours.number(addr(NEIGHBOURS_MAX + 1)), Some(6));
        assert_eq!(neighbours.number(addr(6)), Some(5), "held");
        assert_eq!(neighbours.number(addr(7)), None, "it was given up");
        assert!(neighbours.should_free(), "numbers were freed meanwhile");
        assert_eq!(neighbours.set(addr(7), MacAddr([1; 6]), false), None, "the kernel's news need no place");
    }

    #[test]
    fn who_is_not_there_gives_way_to_who_is() {
        let addr = |n: usize| Addr::from((0x0a00_0000 + n as u32).to_be_bytes());
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.learn(addr(1), MacAddr([1; 6])), Some(0));
        (2..=NEIGHBOURS_MAX).for_each(|n| assert!(neighbours.number(addr(n)).is_some()));
        assert_eq!(neighbours.number(addr(0)), None);
        neighbours.free_all_but(&[]);
        assert_eq!(neighbours.mac_of(addr(1)), Some(MacAddr([1; 6])), "known, and kept");
        assert_eq!(neighbours.mac_of(addr(2)), None);
        (2..=NEIGHBOURS_MAX).for_each(|n| {
            neighbours.learn(addr(n), MacAddr([2; 6]));
        });
        neighbours.free_all_but(&[]);
        assert_eq!(neighbours.mac_of(addr(1)), None, "all were known: somebody has to go");
        assert!(neighbours.number(addr(0)).is_some());
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
