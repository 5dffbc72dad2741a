//! Small scenes for what worlds come to by chance only, for the test that every counter is reached.

use crate::fuzz::{ENGINE, play};
use crate::program::plan::{Conn, PLAIN, Plan};
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
