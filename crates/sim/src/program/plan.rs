//! What the two programs of a connection do, chosen before it begins.

use crate::frame::Way;
use crate::random::Random;
use crate::swarm::Swarm;
use crate::tally::{Tallies, Tally};
use std::collections::BTreeMap;
use toe_abi::errno::Errno;

/// When a side may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    /// Once the peer has sent all.
    AfterEnd,
    /// So many bytes for each so many that came; `first`: without having been asked.
    Exchange {
        sends: u32,
        takes: u32,
        first: bool,
    },
}

/// How a side ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Shutdown when all is sent, close when the peer has ended, too.
    Shutdown,
    /// Close when all is sent and the peer has ended or has nothing to send.
    Close,
    /// Close with RST once so many bytes have gone either way.
    Abort { after: u64 },
}

/// One side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub bytes: u64,
    pub gate: Gate,
    pub ending: Ending,
    pub chunk_max: u32,
    pub read_max: u32,
    /// Between two reads; 0: as soon as there is something.
    pub read_pause_us: u32,
    pub no_delay: bool,
    pub cork: bool,
    pub keepalive: bool,
    pub window_max: Option<u32>,
    /// The number of the algorithm that it wants.
    pub congestion: Option<u32>,
    pub urgent_ppm: u32,
    pub more_ppm: u32,
    /// MSG_EOR.
    pub record_ppm: u32,
    /// Nothing is done but what a fuzzer says.
    pub by_hand: bool,
}

/// How far a side is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes that it has given to its stack, and that it has read.
    pub handed: u64,
    pub consumed: u64,
    /// It has read all, and the end.
    pub all_read: bool,
    /// It has shut its sending side down.
    pub shut: bool,
}

/// What a side does next, besides sending and reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Nothing,
    Shutdown,
    Close,
    Abort,
}

impl Plan {
    /// Bytes that it may send now.
    pub fn may_send(&self, at: Progress) -> u64 {
        let allowed = match self.gate {
            Gate::Open => self.bytes,
            Gate::AfterEnd if at.all_read => self.bytes,
            Gate::AfterEnd => 0,
            Gate::Exchange { sends, takes, first } => {
                let rounds = at.consumed / u64::from(takes) + u64::from(first);
                (rounds * u64::from(sends)).min(self.bytes)
            }
        };
        allowed.saturating_sub(at.handed)
    }

    /// How it goes on to its end; `peer_bytes`: what the peer plans to send.
    pub fn due(&self, at: Progress, peer_bytes: u64) -> Due {
        let all_sent = at.handed == self.bytes;
        match self.ending {
            Ending::Abort { after } if at.handed + at.consumed >= after => Due::Abort,
            Ending::Close if all_sent && (at.all_read || peer_bytes == 0) => Due::Close,
            _ if all_sent && at.all_read => Due::Close,
            _ if all_sent && !at.shut => Due::Shutdown,
            _ => Due::Nothing,
        }
    }
}

/// A connection between two programs.
#[derive(Clone, Debug)]
pub struct Conn {
    /// Engine and session.
    pub client: (usize, usize),
    /// Engine and port.
    pub server: (usize, u16),
    pub server_session: usize,
    /// Over loopback: no frame is built.
    pub local: bool,
    /// By IPv6.
    pub v6: bool,
    /// The client's port; 0: the engine chooses.
    pub from_port: u16,
    /// The client has its first bytes go with the SYN, if it has any by then and the engine knows the server.
    pub fast: bool,
    pub plans: [Plan; 2],
    pub start_us: u64,
    pub opened: [bool; 2],
    /// The program has closed it, having come to the end of its plan.
    pub done: [bool; 2],
    /// An RST of it has left an engine.
    pub was_reset: bool,
    /// How often a listener has handed it out: RFC 7413 section 2.1.
    pub accepts: u32,
    /// Why it need not come to a good end.
    pub excuse: Option<&'static str>,
}

/// Every connection that programs make.
#[derive(Debug, Default)]
pub struct Conns {
    pub list: Vec<Conn>,
    /// From the server's engine and the way from the client's end to the server's.
    pub by_way: BTreeMap<(usize, Way), u32>,
    /// What may go wrong without anybody's fault.
    pub excuses: Excuses,
    /// All was healed and is being ended.
    pub ending: bool,
}

/// Errors that the faults of a run explain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Excuses {
    /// Frames do not arrive: neighbours may seem to be gone.
    pub lossy: bool,
    /// Clocks jump: time runs out that did not pass.
    pub jumps: bool,
    /// A queue overflows: while all send again at the same times, it may lose what one of them sends each time.
    pub jams: bool,
    /// Listeners or tables may be full for longer than a connect waits.
    pub crowded: bool,
    /// The table is so small that TIME_WAIT is cut short.
    pub forgetful: bool,
    /// Strangers on the path send what is nearly right.
    pub meddled: bool,
    /// A session's memory may be full for long: what arrives is dropped.
    pub scarce: bool,
}

impl Conn {
    /// One that nothing has happened to yet: over the links, by IPv4, from any port, with a handshake first.
    pub fn new(
        client: (usize, usize),
        server: (usize, u16),
        server_session: usize,
        plans: [Plan; 2],
        start_us: u64,
    ) -> Conn {
        Conn {
            client,
            server,
            server_session,
            local: false,
            v6: false,
            from_port: 0,
            fast: false,
            plans,
            start_us,
            opened: [false; 2],
            done: [false; 2],
            was_reset: false,
            accepts: 0,
            excuse: None,
        }
    }

    pub fn is_complete(&self) -> bool {
        self.done == [true, true]
    }

    /// One of its ends is another program's from now on.
    pub fn set_program(&mut self, side: u8, to: (usize, usize)) {
        if side == 0 {
            self.client = to;
        } else {
            self.server_session = to.1;
        }
    }

    /// Whether an error that an end was told of needs somebody who caused it.
    pub fn is_explained(&self, connecting: bool, errno: Errno, excuses: &Excuses) -> bool {
        let timed_out = errno == Errno::ETIMEDOUT || !connecting && is_soft(errno);
        // Whom the peer had sent FIN before is told so by EPIPE.
        let reset = errno == Errno::ECONNRESET || errno == Errno::EPIPE;
        let restless = excuses.jumps && (timed_out || reset) || excuses.forgetful && reset;
        if self.excuse.is_some() || restless {
            return true;
        }
        let keepalive = self.plans.iter().any(|plan| plan.keepalive);
        if keepalive && excuses.lossy && (timed_out || reset) {
            return true;
        }
        // The handshake's last segment was lost, and again all that the server sent to learn of it.
        if excuses.lossy && !self.opened[1] && reset {
            return true;
        }
        // A stranger's SYN within the window ends a handshake, and its last segment finds nobody (RFC 9293 section
        // 3.10.7.4, fourth step).
        if excuses.meddled && !self.opened[1] && reset {
            return true;
        }
        connecting
            && (excuses.crowded && (timed_out || errno == Errno::ENOBUFS)
                || excuses.lossy && errno == Errno::EHOSTUNREACH)
    }
}

/// Told in the place of ETIMEDOUT: the neighbour on the way was silent, too.
pub fn is_soft(errno: Errno) -> bool {
    errno == Errno::EHOSTUNREACH
}

/// Sends nothing, reads at once, ends when the peer has.
pub const PLAIN: Plan = Plan {
    bytes: 0,
    gate: Gate::Open,
    ending: Ending::Shutdown,
    chunk_max: 65_536,
    read_max: u32::MAX,
    read_pause_us: 0,
    no_delay: false,
    cork: false,
    keepalive: false,
    window_max: None,
    congestion: None,
    urgent_ppm: 0,
    more_ppm: 0,
    record_ppm: 0,
    by_hand: false,
};

/// What the client and the server of a connection do.
pub fn choose(random: &mut Random, swarm: &Swarm, tallies: &mut Tallies) -> [Plan; 2] {
    let max = swarm.bytes_max;
    let mut plans = [habits(random, swarm), habits(random, swarm)];
    match random.below(20) {
        0..6 => {
            tallies.add(Tally::Bulk);
            let sender = random.below(2) as usize;
            plans[sender].bytes = u64::from(random.any_size(max));
        }
        6..10 => {
            tallies.add(Tally::BothWays);
            plans.iter_mut().for_each(|plan| plan.bytes = u64::from(random.any_size(max)));
        }
        10..15 => {
            tallies.add(Tally::Exchanges);
            exchange(random, max, &mut plans);
        }
        15..18 => {
            tallies.add(Tally::HalfClosed);
            plans.iter_mut().for_each(|plan| plan.bytes = u64::from(random.any_size(max)));
            plans[random.below(2) as usize].gate = Gate::AfterEnd;
        }
        _ => tallies.add(Tally::EmptyConnections),
    }
    for plan in &mut plans {
        if random.one_in(12) {
            tallies.add(Tally::Aborts);
            let after = u64::from(random.any_size(max));
            plan.ending = Ending::Abort { after };
        } else if random.one_in(3) {
            plan.ending = Ending::Close;
        }
        if plan.read_pause_us > 0 {
            tallies.add(Tally::SlowReaders);
        }
    }
    plans
}

/// A request and a response, so many times.
pub fn exchange(random: &mut Random, max: u32, plans: &mut [Plan; 2]) {
    let (request, response) = (1 + random.any_size(max / 20), 1 + random.any_size(max / 20));
    let rounds = u64::from(1 + random.below(20));
    let [client, server] = plans;
    client.bytes = u64::from(request) * rounds;
    server.bytes = u64::from(response) * rounds;
    client.gate = Gate::Exchange { sends: request, takes: response, first: true };
    server.gate = Gate::Exchange { sends: response, takes: request, first: false };
}

/// How a program sends and reads, whatever it is about.
fn habits(random: &mut Random, swarm: &Swarm) -> Plan {
    // So many pieces of a session's send memory must fit that no socket waits for ever.
    let chunk_limit = (swarm.send_len / 8) as u32;
    let slow = random.one_in(8);
    Plan {
        chunk_max: random.pick(&[100, 1448, 10_000, 65_536]).min(chunk_limit),
        read_max: if slow { 1 + random.any_size(5_000) } else { u32::MAX },
        read_pause_us: if slow { 1 + random.any_size(20_000) } else { 0 },
        no_delay: random.one_in(3),
        cork: random.one_in(10),
        keepalive: random.one_in(10),
        window_max: random.one_in(6).then(|| random.between(4096, 100_000)),
        urgent_ppm: if random.one_in(12) { 200_000 } else { 0 },
        more_ppm: if random.one_in(5) { 300_000 } else { 0 },
        ..PLAIN
    }
}
