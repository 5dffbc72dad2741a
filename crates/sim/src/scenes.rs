//! Small scenes for what worlds come to by chance only, for the test that every counter is reached.

use crate::fuzz::{ENGINE, play};
use crate::program::plan::{Conn, Gate, PLAIN, Plan};
use crate::swarm::EngineSpec;
use crate::tally::Tallies;
use crate::world::World;

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
    Conn {
        client: (0, 0),
        server: (1, 7000),
        server_session: 0,
        local: false,
        v6: false,
        from_port: 4100,
        plans: [Plan { octets: 1000, ..PLAIN }, PLAIN],
        start_us: world.now_us + start_us,
        opened: [false; 2],
        done: [false; 2],
        was_reset: false,
        excuse: None,
    }
}

/// Two programs talk over loopback for so long that their connection gets a channel, and hand its ends on all the while.
pub fn a_direct_connection_changes_hands() -> Tallies {
    let engine = EngineSpec { direct: true, sessions: 4, ..ENGINE };
    play(vec![engine, ENGINE], 0, |world| {
        world.set_up_sessions();
        let exchange = |first| Plan {
            octets: 200 * 10,
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
