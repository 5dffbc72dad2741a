//! Random programs over a random wire, from a seed: first anything may happen and nothing may be wrong (bytes,
//! counts, no panic), then all is healed and everything must come to its end (data arrives, records, memory and
//! slots come back).

use super::crowd::Crowd;
use super::crowd_parts::{Faults, Socket};
use crate::Counter;
use toe_base::SessionId;

/// Enough for everything to happen.
const SEEDS: u64 = 100;

/// How many seeds; the acceptance run sets thousands.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let first = number("TOE_SWARM_FIRST").unwrap_or(0);
    first..first + number("TOE_SWARM_SEEDS").unwrap_or(SEEDS)
}

#[test]
fn whatever_programs_and_wire_do_all_ends_well() {
    let (seeds, mut direct, mut yields) = (seeds(), 0, 0);
    for seed in seeds.clone() {
        // A panic unwinds through this and says which seed it was.
        let told = Seed(seed);
        let crowd = one_life(seed);
        core::mem::forget(told);
        let count = |counter| crowd.hosts.iter().map(|h| h.engine.counter(counter)).sum::<u64>();
        direct += count(Counter::DirectConnections);
        yields += count(Counter::Yields);
    }
    // Else the swarm says nothing of them.
    assert!(
        seeds.count() < SEEDS as usize || (direct > 0 && yields > 0),
        "{direct} direct, {yields} asked to yield"
    );
}

struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        println!("failing seed: TOE_SWARM_FIRST={} TOE_SWARM_SEEDS=1", self.0);
    }
}

fn one_life(seed: u64) -> Crowd {
    let mut crowd = Crowd::new(seed);
    let steps = 50 + crowd.random.below(400);
    for _ in 0..steps {
        act(&mut crowd);
        check_counts(&crowd);
        if !crowd.random.one_in(4) {
            let us = [10, 300, 5_000, 300_000, 3_000_000][crowd.random.below(5) as usize];
            let us = 1 + crowd.random.below(us);
            crowd.run_us(u64::from(us));
            check_counts(&crowd);
        }
    }
    heal(&mut crowd);
    everything_arrives(&mut crowd);
    everything_ends(&mut crowd);
    crowd
}

// ---- what may happen ----

fn alive(crowd: &mut Crowd, host: usize) -> Option<usize> {
    let all: Vec<usize> =
        (0..crowd.hosts[host].processes.len()).filter(|p| crowd.hosts[host].processes[*p].alive).collect();
    crowd.random.pick(all.len()).map(|i| all[i])
}

/// A socket that programs have and its owner lives.
fn some_socket(crowd: &mut Crowd) -> Option<usize> {
    let all: Vec<usize> = (0..crowd.sockets.len())
        .filter(|i| {
            let s = &crowd.sockets[*i];
            s.anchor.is_some() && !s.gone && s.owner.is_some()
        })
        .collect();
    crowd.random.pick(all.len()).map(|i| all[i])
}

fn act(crowd: &mut Crowd) {
    match crowd.random.below(100) {
        0..12 => connect(crowd),
        12..20 => on_listener(crowd),
        20..32 => accept_some(crowd),
        32..60 => {
            let Some(at) = some_socket(crowd) else { return };
            let len = [10, 1448, 20_000, 100_000][crowd.random.below(4) as usize];
            let len = 1 + crowd.random.below(len);
            crowd.send(at, len);
        }
        60..75 => {
            let Some(at) = some_socket(crowd) else { return };
            let len = [10, 3000, 1 << 20][crowd.random.below(3) as usize];
            if crowd.sockets[at].reads {
                crowd.read(at, len);
            }
        }
        75..92 => on_socket(crowd),
        92..96 => on_process(crowd),
        _ => weather(crowd),
    }
}

fn connect(crowd: &mut Crowd) {
    let host = crowd.random.below(2) as usize;
    let open: Vec<_> = crowd.listeners.iter().filter(|l| l.open).map(|l| (l.host, l.at)).collect();
    let (Some(process), Some(i)) = (alive(crowd, host), crowd.random.pick(open.len())) else { return };
    if crowd.sockets.iter().filter(|s| !s.gone).count() > 40 {
        return;
    }
    let (there, mut at) = open[i];
    let loopback = at.ip().is_loopback();
    if loopback && there != host {
        return;
    }
    if crowd.random.one_in(20) {
        at.set_port(9999);
    }
    crowd.connect(host, process, at);
}

fn on_listener(crowd: &mut Crowd) {
    let host = crowd.random.below(2) as usize;
    let Some(process) = alive(crowd, host) else { return };
    let open: Vec<usize> = (0..crowd.listeners.len())
        .filter(|l| crowd.listeners[*l].open && crowd.listeners[*l].host == host)
        .collect();
    let pick = crowd.random.pick(open.len()).map(|i| open[i]);
    let Some(at) = pick.filter(|_| open.len() >= 2) else {
        let port = 8000 + crowd.random.below(4) as u16;
        let ip = if crowd.random.one_in(2) { [127, 0, 0, 1] } else { [10, 0, 0, host as u8 + 1] };
        crowd.listen(host, process, (ip, port).into());
        return;
    };
    match crowd.random.below(10) {
        0 => crowd.drop_listener(at, process),
        1 => crowd.close_listening_descriptor(at, process),
        2..4 => crowd.claim_listener(at, process),
        _ => credit(crowd, at),
    }
}

fn credit(crowd: &mut Crowd, at: usize) {
    use toe_abi::entry::Command;
    let host = crowd.listeners[at].host;
    for (process, listener) in crowd.listeners[at].ids.clone() {
        let count = crowd.random.below(4);
        crowd.command(host, process, Command::AcceptCredit { listener, count }, &[]);
    }
}

fn accept_some(crowd: &mut Crowd) {
    for at in 0..crowd.sockets.len() {
        if crowd.sockets[at].anchor.is_none() && !crowd.sockets[at].gone && crowd.random.one_in(2) {
            crowd.accept(at);
        }
    }
}

fn on_socket(crowd: &mut Crowd) {
    let Some(at) = some_socket(crowd) else { return };
    let host = crowd.sockets[at].host;
    match crowd.random.below(10) {
        0..2 => crowd.shutdown(at),
        2..4 if crowd.sockets[at].holders.len() == 1 => {
            let abort = crowd.random.one_in(4);
            crowd.close(at, abort);
        }
        4..6 => {
            let holders = crowd.sockets[at].holders.clone();
            if let Some(i) = crowd.random.pick(holders.len()) {
                crowd.close_descriptor(at, holders[i]);
            }
        }
        6..8 => {
            if let Some(process) = alive(crowd, host) {
                crowd.claim(at, process);
            }
        }
        _ => crowd.sockets[at].reads = !crowd.sockets[at].reads,
    }
}

fn on_process(crowd: &mut Crowd) {
    let host = crowd.random.below(2) as usize;
    let Some(process) = alive(crowd, host) else { return };
    match crowd.random.below(5) {
        0 => {
            let fenced = crowd.random.one_in(3);
            crowd.kill(host, process, fenced);
            crowd.start_process(host);
        }
        1 if crowd.hosts[host].processes.iter().filter(|p| p.alive).count() < 4 => crowd.start_process(host),
        2 => crowd.hosts[host].engine.rebuild_derived(),
        _ => {
            let frozen = &mut crowd.hosts[host].processes[process].frozen;
            *frozen = !*frozen;
        }
    }
}

fn weather(crowd: &mut Crowd) {
    let any = |crowd: &mut Crowd, max: u32| if crowd.random.one_in(2) { 0 } else { crowd.random.below(max) };
    crowd.faults = Faults { drop: any(crowd, 400), reorder: any(crowd, 300), duplicate: any(crowd, 300) };
    if crowd.random.one_in(10) {
        crowd.faults.drop = 1000;
    }
    for host in 0..2 {
        crowd.hosts[host].memory.ring_len = [1, 2, 64, 64][crowd.random.below(4) as usize];
    }
}

// ---- what must hold at any moment ----

fn check_counts(crowd: &Crowd) {
    for host in &crowd.hosts {
        host.engine.audit_listeners().unwrap();
        host.engine.audit_memory().unwrap();
        host.engine.check_channels();
        assert_eq!(host.engine.channel_count(), host.memory.channels.open.len());
    }
}

// ---- what must come true ----

fn heal(crowd: &mut Crowd) {
    crowd.faults = Faults::default();
    for host in 0..2 {
        crowd.hosts[host].memory.ring_len = 64;
        for process in &mut crowd.hosts[host].processes {
            process.frozen = false;
        }
    }
    for socket in &mut crowd.sockets {
        socket.reads = true;
    }
}

/// Everybody accepts and reads; whoever has a descriptor but not the flow claims it.
fn serve(crowd: &mut Crowd) {
    for at in 0..crowd.listeners.len() {
        credit_all(crowd, at);
    }
    for at in 0..crowd.sockets.len() {
        let socket = &crowd.sockets[at];
        if socket.gone {
            continue;
        }
        if socket.anchor.is_none() {
            crowd.accept(at);
        } else if socket.owner.is_none() {
            let holder = socket.holders[0];
            crowd.claim(at, holder);
        }
        crowd.read(at, u32::MAX);
    }
}

fn credit_all(crowd: &mut Crowd, at: usize) {
    use toe_abi::entry::Command;
    let host = crowd.listeners[at].host;
    for (process, listener) in crowd.listeners[at].ids.clone() {
        crowd.command(host, process, Command::AcceptCredit { listener, count: 4 }, &[]);
    }
}

/// Data of connections whose both ends are held and whole.
fn everything_arrives(crowd: &mut Crowd) {
    // Longer than the longest time-out, and anew whenever something still moves.
    let (mut quiet, mut before) = (0, 0);
    while quiet < 30 {
        serve(crowd);
        crowd.run_us(10_000_000);
        let moved = crowd.sockets.iter().map(|s| s.consumed + s.unread()).sum();
        quiet = if moved == before { quiet + 1 } else { 0 };
        before = moved;
    }
    serve(crowd);
    for receiver in crowd.sockets.iter().filter(|s| !s.gone && s.connected && s.error.is_none()) {
        if receiver.owner.is_none() {
            // Its holder has too little memory for what is unread, and cannot claim it.
            continue;
        }
        let from = (receiver.key.1, receiver.key.0);
        let whole = |s: &&Socket| s.key == from && !s.gone && s.connected && s.error.is_none();
        let Some(sender) = crowd.sockets.iter().find(whole) else { continue };
        let all = crowd.sent.get(&from).copied().unwrap_or(0);
        assert_eq!(receiver.consumed, all, "all arrives:\n{sender:?}\n{receiver:?}");
        assert_eq!(receiver.unread(), 0);
        assert_eq!(receiver.eof, sender.shut, "the end arrives:\n{sender:?}\n{receiver:?}");
    }
}

fn everything_ends(crowd: &mut Crowd) {
    for at in 0..crowd.sockets.len() {
        for process in crowd.sockets[at].holders.clone() {
            crowd.close_descriptor(at, process);
        }
        if crowd.random.one_in(10) {
            crowd.run_us(1000);
        }
    }
    for at in 0..crowd.listeners.len() {
        for process in crowd.listeners[at].holders.clone() {
            crowd.close_listening_descriptor(at, process);
        }
    }
    crowd.run_us(3_600_000_000);
    for (number, host) in crowd.hosts.iter().enumerate() {
        let left = host.engine.sockets();
        assert!(left.is_empty(), "host {number}: {left:?}");
        assert_eq!(host.engine.flow_count(), 0, "host {number}");
        assert_eq!(host.engine.session_view(SessionId(0)).receive_memory_used, 0, "staging of host {number}");
        assert!(host.engine.poll_timeout().is_far_future() && !host.engine.has_local());
        for process in &host.processes {
            let view = host.engine.session_view(process.session);
            if process.alive {
                assert_eq!(
                    (view.flows, view.listeners, view.receive_memory_used),
                    (0, 0, 0),
                    "host {number}"
                );
                let waiting: Vec<_> = crowd.sockets.iter().filter(|s| s.waits_for_memory()).collect();
                assert_eq!(process.send_arena.used(), 0, "send memory of {:?}: {waiting:?}", process.session);
            }
        }
        assert!(host.closing.is_empty(), "closed sessions drain");
    }
}
