//! What programs do with their sockets, operation by operation, on two engines and over loopback, while links lose and
//! delay, with Fast Open or without. Afterwards nothing is lost any more, and all that was sent must arrive.

use super::{Bytes, ENGINE, play, step_us};
use crate::checkers::Failure;
use crate::program::plan::{Conn, Ending, PLAIN, Plan};
use crate::swarm::{EngineSpec, LinkFaults};
use crate::tally::Tallies;
use crate::world::{What, World};
use toe_abi::entry::{Command, FlowOption};
use toe_engine::{FastOpenMode, TcpConfig};

/// Connections of one run.
const CONNS_MAX: usize = 6;
/// Bytes that a socket sends in one run.
const BYTES_MAX: u64 = 200_000;

/// No connection gives up when less is lost: one that its program has closed sends its FIN once more after 51 s, and not
/// again (a retransmission time-out of 0.2 s, doubled eight times).
const PATIENCE_US: u64 = 50_000_000;

/// Connections that a listener takes by Fast Open, where there is that.
const FAST_OPEN_LIMIT: u32 = 4;

/// A side does what it is told and nothing else.
const BY_HAND: Plan = Plan { by_hand: true, ..PLAIN };

/// See the module.
pub fn run(data: &[u8]) -> Tallies {
    let mut bytes = Bytes(data);
    let shape = bytes.u8();
    let second = EngineSpec {
        mtu: if shape & 1 != 0 { 576 } else { 9000 },
        tx_checksum: true,
        gso_max: if shape & 2 != 0 { 65_000 } else { 0 },
        takes_large: shape & 4 != 0,
        takes_partial: shape & 8 != 0,
        ..ENGINE
    };
    let is_fast = shape & 16 != 0;
    let fast_open = if is_fast { FastOpenMode::Both } else { ENGINE.tcp.fast_open };
    let of = |engine: EngineSpec| EngineSpec { tcp: TcpConfig { fast_open, ..engine.tcp }, ..engine };
    play(vec![of(ENGINE), of(second)], 0, |world| {
        world.set_up_sessions();
        let listeners = world.nodes.iter_mut().flat_map(|node| &mut node.sessions);
        for listening in listeners.flat_map(|session| &mut session.listeners).filter(|_| is_fast) {
            listening.fast_open = FAST_OPEN_LIMIT;
        }
        world.conns.excuses.lossy = true;
        world.conns.excuses.crowded = true;
        while !bytes.is_empty() {
            once(world, &mut bytes)?;
            world.catch_up(world.now_us)?;
        }
        finish(world)
    })
}

fn once(world: &mut World, bytes: &mut Bytes<'_>) -> Result<(), Failure> {
    let (what, which) = (bytes.u8(), bytes.u8());
    let (node, session) = (usize::from(which & 1), usize::from(which >> 1 & 1));
    let socket = usize::from(which >> 2);
    match what & 0xf {
        0 | 1 => {
            if world.conns.list.len() < CONNS_MAX {
                connect(world, (node, session), which, what & 0x10 != 0);
            }
        }
        2..=4 => send(world, (node, session, socket), u32::from(bytes.u16()) << (what >> 6), what),
        5 | 6 => {
            let plan = Plan { read_max: u32::from(bytes.u16()).max(1), ..BY_HAND };
            on_socket(world, (node, session, socket), |session, cx, at| session.read(cx, at, Some(&plan)));
        }
        7 => on_socket(world, (node, session, socket), |session, cx, at| session.shut_down(cx, at)),
        8 => {
            let abort = what & 0x10 != 0;
            on_socket(world, (node, session, socket), |session, cx, at| {
                session.excuse(cx, at, "it is closed at any moment");
                session.close(cx, at, abort);
            });
        }
        9 => set_option(world, (node, session, socket), bytes),
        10..=12 => {
            world.catch_up(world.now_us + step_us(what >> 4))?;
            // Who waited that long may have given up.
            world.conns.excuses.jumps |= world.now_us > PATIENCE_US;
        }
        13 => {
            let faults = LinkFaults {
                loss_ppm: [0, 50_000, 400_000, 1_000_000][usize::from(what >> 4 & 3)],
                delay_us: 1 + (u32::from(which) << 4),
                reorder_ppm: if what & 0x40 != 0 { 200_000 } else { 0 },
                reorder_us: 20_000,
                duplicate_ppm: if what & 0x80 != 0 { 200_000 } else { 0 },
                ..LinkFaults::default()
            };
            world.network.set_faults(&faults);
        }
        14 => {
            let of = &mut world.nodes[node].sessions[session];
            of.stalled_until_us = world.now_us + step_us(what >> 4);
        }
        _ if what & 0x80 != 0 => {
            world.conns.excuses.jumps = true;
            let (ahead, step) = (&mut world.nodes[node].clock_ahead_us, step_us(what >> 4 & 3));
            *ahead = if what & 0x40 != 0 { ahead.saturating_sub(step) } else { *ahead + step * 10 };
        }
        _ => world.nodes[node].engine.rebuild_derived(),
    }
    world.nodes[node].touched = true;
    Ok(())
}

fn connect(world: &mut World, (node, session): (usize, usize), which: u8, fast: bool) {
    let server = if which & 0x80 != 0 { node } else { 1 - node };
    let server_session = usize::from(which >> 6 & 1);
    let place = (server, 7000 + server_session as u16);
    // What it will send, or never: its SYN waits for that.
    let client = if fast { Plan { bytes: BYTES_MAX, ..BY_HAND } } else { BY_HAND };
    let conn = Conn::new((node, session), place, server_session, [client, BY_HAND], world.now_us);
    world.add_connection(Conn { local: server == node, fast, ..conn });
}

type Which = (usize, usize, usize);

/// One of the session's open sockets does something.
fn on_socket(
    world: &mut World,
    (node, session, socket): Which,
    act: impl FnOnce(&mut crate::node::Session, &mut crate::program::Cx<'_>, usize),
) {
    world.with_session(node, session, |session, cx| {
        if session.sockets.is_empty() {
            return;
        }
        let at = socket % session.sockets.len();
        let socket = &session.sockets[at];
        if socket.open && !socket.closed {
            act(session, cx, at);
        }
    });
}

fn send(world: &mut World, which: Which, len: u32, what: u8) {
    on_socket(world, which, |session, cx, at| {
        let handed = session.sockets[at].handed();
        let bytes = (handed + u64::from(len)).min(BYTES_MAX);
        let plan = Plan {
            bytes,
            chunk_max: 16_384,
            more_ppm: if what & 0x10 != 0 { 1_000_000 } else { 0 },
            urgent_ppm: if what & 0x20 != 0 { 1_000_000 } else { 0 },
            record_ppm: if len & 3 == 3 { 1_000_000 } else { 0 },
            ..BY_HAND
        };
        session.send(cx, at, &plan);
    });
}

fn set_option(world: &mut World, which: Which, bytes: &mut Bytes<'_>) {
    let raw = bytes.u8();
    let value = u32::from(bytes.u16());
    let (option, value) = match raw % 7 {
        0 => (FlowOption::NoDelay, value & 1),
        1 => (FlowOption::Cork, value & 1),
        2 => (FlowOption::ReceiveWindowMax, value),
        3 => (FlowOption::Congestion, value & 7),
        4 => (FlowOption::KeepIdleSecs, value),
        5 => (FlowOption::KeepIntervalSecs, value),
        // Probes that nobody answers end a connection.
        _ => (FlowOption::KeepCount, 100),
    };
    on_socket(world, which, |session, cx, at| {
        if let Some(flow) = session.sockets[at].id {
            cx.command(session, Command::SetOption { flow, option, value }, &[]);
        }
    });
}

/// The links are good again, everybody reads, and ends its side: what was sent arrives, and the end behind it.
fn finish(world: &mut World) -> Result<(), Failure> {
    world.network.set_faults(&LinkFaults { delay_us: 50, ..LinkFaults::default() });
    world.heal();
    for (number, conn) in world.conns.list.iter_mut().enumerate() {
        for side in [0, 1] {
            let id = crate::pattern::StreamId { conn: number as u32, side: side as u8 };
            conn.plans[side] =
                Plan { bytes: world.streams.get(id).handed, ending: Ending::Shutdown, ..PLAIN };
        }
    }
    for node in 0..world.nodes.len() {
        for session in 0..world.nodes[node].sessions.len() {
            for socket in 0..world.nodes[node].sessions[session].sockets.len() {
                world.schedule(world.now_us, What::Step { node, session, socket });
            }
        }
    }
    world.everything_completes()
}
