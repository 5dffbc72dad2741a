//! Small scenes for what worlds come to by chance only, for the test that every counter is reached.

use crate::fuzz::{ENGINE, play, play_with};
use crate::pattern::StreamId;
use crate::program::plan::{Conn, Gate, PLAIN, Plan};
use crate::swarm::{EngineSpec, LinkFaults};
use crate::tally::Tallies;
use crate::world::World;
use toe_engine::{FastOpenMode, TcpConfig};

/// A program connects, ends the connection first, and connects from the same port again while the earlier connection is
/// still in TIME_WAIT (RFC 6191).
pub fn port_again_after_time_wait() -> Tallies {
    play(vec![ENGINE; 2], 0, |world| {
        world.set_up_sessions();
        for start_us in [1_000, 3_000_000] {
            let conn = conn_from_port(world, start_us);
            world.add_connection(conn);
        }
        world.heal();
        world.everything_completes()
    })
}

fn conn_from_port(world: &World, start_us: u64) -> Conn {
    let plans = [Plan { bytes: 1000, ..PLAIN }, PLAIN];
    Conn { from_port: 4100, ..Conn::new((0, 0), (1, 7000), 0, plans, world.now_us + start_us) }
}

/// A client comes to know a server, connects twice at once where only one may be early, and shows its cookie half a day
/// later (RFC 7413 section 4.1.2), once it may try again.
pub fn fast_open_beyond_its_limits() -> Tallies {
    const HALF_A_DAY_US: u64 = 13 * 3600 * 1_000_000;
    let tcp = TcpConfig { fast_open: FastOpenMode::Both, ..ENGINE.tcp };
    play(vec![EngineSpec { tcp, ..ENGINE }; 2], 0, |world| {
        world.set_up_sessions();
        world.nodes[1].sessions[0].listeners[0].fast_open = 1;
        for start_us in [1_000, 1_000_000, 1_000_000, 100_000_000] {
            let conn = Conn { from_port: 0, fast: true, ..conn_from_port(world, start_us) };
            world.add_connection(conn);
        }
        world.catch_up(world.now_us + 2_000_000)?;
        world.nodes[1].clock_ahead_us += HALF_A_DAY_US;
        world.heal();
        world.everything_completes()
    })
}

/// Every SYN with bytes comes once more, some of them when their connections have come to their ends (RFC 7413 section 2.1).
pub fn fast_open_comes_again() -> Tallies {
    let tcp = TcpConfig { fast_open: FastOpenMode::Both, ..ENGINE.tcp };
    play(vec![EngineSpec { tcp, ..ENGINE }; 2], 0, |world| {
        world.set_up_sessions();
        world.nodes[1].sessions[0].listeners[0].fast_open = 64;
        for number in 0..100 {
            let conn = conn_from_port(world, 1_000 + number * 100_000);
            // The server ends last, and keeps nothing.
            let plans = [conn.plans[0], Plan { bytes: 100, gate: Gate::AfterEnd, ..PLAIN }];
            world.add_connection(Conn { from_port: 0, fast: true, plans, ..conn });
        }
        world.catch_up(world.now_us + 50_000)?;
        world.network.set_faults(&LinkFaults {
            duplicate_ppm: 1_000_000,
            reorder_ppm: 100_000,
            reorder_us: 90_000,
            delay_us: 50,
            ..LinkFaults::default()
        });
        world.catch_up(world.now_us + 20_000_000)?;
        world.heal();
        world.everything_completes()
    })
}

/// Two programs talk over loopback for so long that their connection gets a channel, and hand its ends on all the while.
pub fn a_direct_connection_changes_hands() -> Tallies {
    let engine = EngineSpec { direct: true, sessions: 4, ..ENGINE };
    play(vec![engine, ENGINE], 0, |world| {
        world.set_up_sessions();
        let exchange = |first| Plan {
            bytes: 200 * 10,
            gate: Gate::Exchange { sends: 10, takes: 10, first },
            read_pause_us: 500,
            ..PLAIN
        };
        let conn = Conn {
            server: (0, 7001),
            server_session: 1,
            local: true,
            from_port: 0,
            plans: [exchange(true), exchange(false)],
            ..conn_from_port(world, 1_000)
        };
        world.add_connection(conn);
        world.catch_up(world.now_us + 40_000)?;
        for _ in 0..20 {
            world.pass_some_socket(0);
            world.catch_up(world.now_us + 3_000)?;
        }
        world.heal();
        world.everything_completes()
    })
}

/// A link that streams share, and what the scene made of it.
#[derive(Clone, Debug)]
pub struct Shared {
    pub link: LinkFaults,
    pub congestion: &'static str,
    pub bytes: u64,
    pub streams: u32,
}

/// Streams of so many bytes from one engine to another, all begun at once: how long they took, in µs, and what each had got when the
/// first was there.
pub fn streams_share_a_link(scene: &Shared) -> (u64, Vec<u64>) {
    let mut came = Vec::new();
    let mut took_us = 0;
    let engine = EngineSpec { gso_max: 65_536, takes_large: true, ..ENGINE };
    // No stream is to wait for memory.
    play_with(16 << 20, vec![engine; 2], 0, |world| {
        world.set_up_sessions();
        world.network.set_faults(&scene.link);
        let plan = Plan {
            bytes: scene.bytes,
            congestion: toe_abi::congestion::number_of(scene.congestion).map(u32::from),
            ..PLAIN
        };
        let begun_us = world.now_us + 1_000;
        for _ in 0..scene.streams {
            let conn = Conn { from_port: 0, plans: [plan, PLAIN], ..conn_from_port(world, 1_000) };
            world.add_connection(conn);
        }
        let got = |world: &World| -> Vec<u64> {
            let of = |conn| world.streams.get(StreamId { conn, side: 0 }).read;
            (0..scene.streams).map(of).collect()
        };
        while got(world).iter().all(|bytes| *bytes < scene.bytes) && world.advance(u64::MAX)? {}
        came = got(world);
        world.everything_completes()?;
        took_us = world.now_us - begun_us;
        Ok(())
    });
    (took_us, came)
}
