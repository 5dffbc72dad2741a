//! Fast Open (RFC 7413) beside the connections: the cookies that we give, those that we were given, and how many
//! connections a listener may hand out before their handshake is complete.
//!
//! Used by the engine's `fast_open` alone; what a connection itself remembers is in [`toe_tcp::fast_open`].

use crate::flow::isn::fast_open_hash;
use crate::flow::key::{FlowKey, Scope};
use std::collections::{HashMap, VecDeque};
use toe_base::{Addr, Instant};
use toe_wire::tcp::FastOpenCookie;

/// Servers whose cookies are remembered; the one that was first heard of makes room.
const SERVERS_MAX: usize = 1024;
/// A cookie is made anew after this long, and believed for as long again (RFC 7413 section 4.1.2: keys are to be changed).
const PERIOD_US: u64 = 6 * 3600 * 1_000_000;
/// How long a server is left alone whose network lost a SYN with the option: doubled each time.
const BLOCKED_US: u64 = 60_000_000;
const BLOCKED_DOUBLINGS_MAX: u8 = 10;
/// So many servers in a row that were there, and not to be reached by Fast Open: it is our own network that swallows it.
const LOST_IN_A_ROW: u8 = 3;
/// How long nobody gets the option then: doubled each time until one works.
const ALL_BLOCKED_US: u64 = 3600 * 1_000_000;
const ALL_BLOCKED_DOUBLINGS_MAX: u8 = 6;
/// A connection that is reset before its handshake is complete holds its listener's place so long: else resets would let
/// a flood of forged SYNs through (RFC 7413 section 5.1; Linux: 60 s).
const RESET_HOLDS_US: u64 = 60_000_000;

/// What a cookie that came is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    Good,
    /// Good, and its time will be over soon: the peer gets a new one.
    Old,
    Bad,
}

/// The cookie for the peer of a connection: of both addresses, as our key says it for now (RFC 7413 section 4.1.2).
pub fn make(secret: &[u8; 16], key: &FlowKey, now: Instant) -> FastOpenCookie {
    of_period(secret, key, now.as_micros() / PERIOD_US)
}

pub fn check(secret: &[u8; 16], key: &FlowKey, cookie: &FastOpenCookie, now: Instant) -> Check {
    let period = now.as_micros() / PERIOD_US;
    if *cookie == of_period(secret, key, period) {
        Check::Good
    } else if period > 0 && *cookie == of_period(secret, key, period - 1) {
        Check::Old
    } else {
        Check::Bad
    }
}

fn of_period(secret: &[u8; 16], key: &FlowKey, period: u64) -> FastOpenCookie {
    let bytes = fast_open_hash(secret, key, period).to_be_bytes();
    // Eight bytes are a cookie.
    FastOpenCookie::new(&bytes).unwrap_or_default()
}

/// A client's address and a server's: a server with several clients on one machine gives each its own cookie.
type Pair = (Scope, Addr, Addr);

fn pair(key: &FlowKey) -> Pair {
    (key.scope, key.local.addr, key.remote.addr)
}

/// What a client knows of a server (RFC 7413 section 4.1.3).
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    cookie: Option<FastOpenCookie>,
    /// Largest segment that it takes, as it last said.
    mss: Option<u16>,
    losses: u8,
    blocked_until: Instant,
}

/// What the SYN to a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The program's first bytes may go in it.
    Cookie(FastOpenCookie, Option<u16>),
    Nothing,
    /// No option: it was not to be reached with one.
    Blocked,
}

/// What became of a SYN with the option, as the SYN-ACK says.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    pub cookie: Option<FastOpenCookie>,
    pub mss: Option<u16>,
    /// Bytes of the SYN were not taken.
    pub refused: bool,
    /// It had to be sent again without the option: [`Servers::lost`] knows.
    pub was_lost: bool,
}

/// The servers that this client has asked.
#[derive(Debug, Default)]
pub struct Servers {
    known: HashMap<Pair, Server>,
    /// In the order in which they came.
    order: VecDeque<Pair>,
    lost_in_a_row: u8,
    all_losses: u8,
    all_blocked_until: Instant,
}

impl Servers {
    pub fn known(&self, key: &FlowKey, now: Instant) -> Known {
        let server = self.known.get(&pair(key)).copied().unwrap_or_default();
        if now < self.all_blocked_until || now < server.blocked_until {
            return Known::Blocked;
        }
        server.cookie.map_or(Known::Nothing, |cookie| Known::Cookie(cookie, server.mss))
    }

    /// A SYN-ACK answers a SYN with the option.
    pub fn heard(&mut self, key: &FlowKey, heard: &Heard, now: Instant) {
        if heard.cookie.is_none() && heard.was_lost {
            // It answers only what has no option.
            self.swallowed(now);
            return;
        }
        if heard.cookie.is_none() && !heard.refused && !self.known.contains_key(&pair(key)) {
            // It knows nothing of Fast Open.
            return;
        }
        let server = self.server(key);
        server.mss = heard.mss.or(server.mss);
        server.cookie = heard.cookie.or(server.cookie);
        if heard.cookie.is_none() && heard.refused {
            // RFC 7413 section 4.1.3.1: not to acknowledge the data is an answer to be remembered.
            server.block(now);
            return;
        }
        (server.losses, server.blocked_until) = (0, Instant::ZERO);
        (self.lost_in_a_row, self.all_losses) = (0, 0);
        self.all_blocked_until = Instant::ZERO;
    }

    /// A SYN with the option brought no answer, or an ICMP error (RFC 7413 section 4.1.3.1). The server may be down.
    pub fn lost(&mut self, key: &FlowKey, now: Instant) {
        self.server(key).block(now);
    }

    /// Something on the way to a server that is there swallows SYNs with the option, or what comes after them (RFC 7413
    /// section 7.1).
    pub fn swallowed(&mut self, now: Instant) {
        self.lost_in_a_row += 1;
        if self.lost_in_a_row >= LOST_IN_A_ROW {
            self.lost_in_a_row = 0;
            self.all_blocked_until = now.after_us(ALL_BLOCKED_US << self.all_losses);
            self.all_losses = (self.all_losses + 1).min(ALL_BLOCKED_DOUBLINGS_MAX);
        }
    }

    fn server(&mut self, key: &FlowKey) -> &mut Server {
        let pair = pair(key);
        if !self.known.contains_key(&pair) {
            if self.order.len() >= SERVERS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
            self.order.push_back(pair);
        }
        self.known.entry(pair).or_default()
    }
}

impl Server {
    fn block(&mut self, now: Instant) {
        self.blocked_until = now.after_us(BLOCKED_US << self.losses);
        self.losses = (self.losses + 1).min(BLOCKED_DOUBLINGS_MAX);
    }
}

/// A listener's connections whose program may have them before their handshake is complete (Linux: TCP_FASTOPEN).
#[derive(Debug, Default)]
pub struct FastOpenQueue {
    /// 0: none.
    pub limit: u32,
    pending: u32,
    /// Until when the places of those are taken that were reset.
    reset: VecDeque<Instant>,
}

impl FastOpenQueue {
    /// Whether one more may come.
    pub fn has_room(&mut self, now: Instant) -> bool {
        while self.reset.front().is_some_and(|until| *until <= now) {
            self.reset.pop_front();
        }
        u64::from(self.pending) + (self.reset.len() as u64) < u64::from(self.limit)
    }

    pub fn came(&mut self) {
        self.pending += 1;
    }

    /// Its handshake is complete, or it has gone before it was.
    pub fn left(&mut self, reset_at: Option<Instant>) {
        self.pending = self.pending.saturating_sub(1);
        self.reset.extend(reset_at.map(|now| now.after_us(RESET_HOLDS_US)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::Endpoint;

    const SECRET: [u8; 16] = [9; 16];
    const START: Instant = Instant::from_micros(100 * PERIOD_US);

    fn key(server: [u8; 4], port: u16) -> FlowKey {
        let at = |ip: [u8; 4], port| Endpoint::new(ip, port);
        FlowKey::new(at([10, 0, 0, 1], port), at(server, 80))
    }

    fn cookie(byte: u8) -> FastOpenCookie {
        FastOpenCookie::new(&[byte; 8]).expect("8 bytes")
    }

    fn heard(cookie: Option<FastOpenCookie>) -> Heard {
        Heard { cookie, mss: Some(1460), refused: false, was_lost: false }
    }

    #[test]
    fn a_cookie_is_of_the_addresses_and_of_the_time() {
        let here = key([10, 0, 0, 2], 1);
        let given = make(&SECRET, &here, START);
        assert_eq!(check(&SECRET, &here, &given, START), Check::Good);
        assert_eq!(check(&SECRET, &key([10, 0, 0, 2], 77), &given, START), Check::Good, "another port");
        assert_eq!(check(&SECRET, &key([10, 0, 0, 3], 1), &given, START), Check::Bad, "another address");
        assert_eq!(check(&[8; 16], &here, &given, START), Check::Bad, "another engine");
        assert_eq!(check(&SECRET, &here, &given, START.after_us(PERIOD_US)), Check::Old);
        assert_eq!(check(&SECRET, &here, &given, START.after_us(2 * PERIOD_US)), Check::Bad);
        assert_eq!(check(&SECRET, &here, &FastOpenCookie::REQUEST, START), Check::Bad);
    }

    #[test]
    fn the_oldest_server_makes_room() {
        let mut servers = Servers::default();
        let server = |n: usize| key([10, 1, (n >> 8) as u8, n as u8], 1);
        for n in 0..=SERVERS_MAX {
            servers.heard(&server(n), &heard(Some(cookie(1))), START);
        }
        assert_eq!((servers.known.len(), servers.order.len()), (SERVERS_MAX, SERVERS_MAX));
        assert_eq!(servers.known(&server(0), START), Known::Nothing);
        assert_eq!(servers.known(&server(1), START), Known::Cookie(cookie(1), Some(1460)));
    }

    /// RFC 7413 section 4.1.3: for each pair of addresses, as a server's cookies are its clients'.
    #[test]
    fn another_address_of_ours_has_another_cookie() {
        let mut servers = Servers::default();
        let first = key([10, 0, 0, 2], 1);
        let second = FlowKey::new(Endpoint::new([10, 0, 0, 9], 1), first.remote);
        servers.heard(&first, &heard(Some(cookie(1))), START);
        assert_eq!(servers.known(&second, START), Known::Nothing);
        servers.heard(&second, &heard(Some(cookie(2))), START);
        assert_eq!(servers.known(&first, START), Known::Cookie(cookie(1), Some(1460)));
    }

    #[test]
    fn a_server_without_fast_open_takes_no_place() {
        let mut servers = Servers::default();
        servers.heard(&key([10, 0, 0, 2], 1), &heard(None), START);
        assert!(servers.known.is_empty());
    }

    #[test]
    fn who_was_not_reached_is_left_alone_for_ever_longer() {
        let mut servers = Servers::default();
        let here = key([10, 0, 0, 2], 1);
        servers.heard(&here, &heard(Some(cookie(1))), START);
        servers.lost(&here, START);
        assert_eq!(servers.known(&here, START.after_us(BLOCKED_US - 1)), Known::Blocked);
        let later = START.after_us(BLOCKED_US);
        assert!(matches!(servers.known(&here, later), Known::Cookie(..)));
        servers.lost(&here, later);
        assert_eq!(servers.known(&here, later.after_us(2 * BLOCKED_US - 1)), Known::Blocked);
        servers.heard(&here, &heard(None), later.after_us(2 * BLOCKED_US));
        assert!(matches!(servers.known(&here, later), Known::Cookie(..)), "it worked");
    }

    #[test]
    fn data_that_a_server_refuses_is_not_offered_again_at_once() {
        let mut servers = Servers::default();
        let here = key([10, 0, 0, 2], 1);
        servers.heard(&here, &heard(Some(cookie(1))), START);
        servers.heard(&here, &Heard { refused: true, ..heard(None) }, START);
        assert_eq!(servers.known(&here, START), Known::Blocked);
        servers.heard(&here, &Heard { refused: true, ..heard(Some(cookie(2))) }, START);
        assert!(matches!(servers.known(&here, START), Known::Cookie(..)), "it gave a new cookie");
    }

    #[test]
    fn a_network_that_swallows_the_option_is_found_out() {
        let mut servers = Servers::default();
        for n in 0..LOST_IN_A_ROW {
            assert_eq!(servers.known(&key([10, 0, 9, 9], 1), START), Known::Nothing);
            let here = key([10, 0, 0, n], 1);
            servers.lost(&here, START);
            servers.heard(&here, &Heard { was_lost: true, ..heard(None) }, START);
        }
        assert_eq!(servers.known(&key([10, 0, 9, 9], 1), START), Known::Blocked, "never asked");
        assert_eq!(servers.known(&key([10, 0, 9, 9], 1), START.after_us(ALL_BLOCKED_US)), Known::Nothing);
    }

    #[test]
    fn servers_that_are_down_say_nothing_of_the_network() {
        let mut servers = Servers::default();
        for n in 0..3 * LOST_IN_A_ROW {
            servers.lost(&key([10, 0, 0, n], 1), START);
        }
        assert_eq!(servers.known(&key([10, 0, 9, 9], 1), START), Known::Nothing);
    }

    #[test]
    fn resets_do_not_make_room_at_once() {
        let mut queue = FastOpenQueue { limit: 2, ..FastOpenQueue::default() };
        for _ in 0..2 {
            assert!(queue.has_room(START));
            queue.came();
        }
        assert!(!queue.has_room(START));
        queue.left(Some(START));
        assert!(!queue.has_room(START));
        queue.left(None);
        assert!(queue.has_room(START));
        queue.came();
        assert!(!queue.has_room(START) && queue.has_room(START.after_us(RESET_HOLDS_US)));
        assert!(!FastOpenQueue::default().has_room(START), "it is not asked for");
    }
}
