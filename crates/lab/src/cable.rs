//! A slow wire between the two sides of a lab: `toe-cable` between two TAP interfaces.

use crate::Result;
use crate::child::Program;
use crate::lab::{Lab, Side};
use crate::wait::SOON;

/// More than any transfer has under way: a wire that is slow, and loses nothing.
const QUEUE_BYTES: u64 = 64 << 20;

/// A wire; gone when this is dropped, with its interfaces.
#[derive(Debug)]
pub struct Cable {
    name: String,
    _program: Program,
}

impl Cable {
    /// A wire of `rate_kbit` kilobits a second each way, by itself: `name` is unlike that of others and has eight letters at most.
    pub fn new(lab: &Lab, name: &str, rate_kbit: u32) -> Result<Cable> {
        let end = |side| end_of(name, side);
        let spec =
            |side| format!("tap:{}?rx_rate_kbit={rate_kbit}&rx_queue_bytes={QUEUE_BYTES}&seed=1", end(side));
        let mut command = lab.command(Side::Server, lab.program("toe-cable"));
        command.args([spec(Side::Server), spec(Side::Client)]);
        let mut program = Program::spawn("toe-cable", &mut command)?;
        program.wait_for_line("ready", SOON)?;
        let there = lab.namespace(Side::Client);
        lab.ip(Side::Server, &["link", "set", &end(Side::Client), "netns", &there])?;
        for side in [Side::Server, Side::Client] {
            lab.ip(side, &["link", "set", &end(side), "up"])?;
        }
        Ok(Cable { name: name.to_owned(), _program: program })
    }

    /// The interface at one side.
    pub fn link(&self, side: Side) -> String {
        end_of(&self.name, side)
    }

    /// Gives a side's kernel an address on it.
    pub fn give_addr(&self, lab: &Lab, side: Side, addr: &str) -> Result<()> {
        lab.ip(side, &["addr", "add", &format!("{addr}/24"), "dev", &self.link(side)])
    }
}

fn end_of(name: &str, side: Side) -> String {
    let letter = match side {
        Side::Server => "s",
        Side::Client => "c",
    };
    format!("{name}-{letter}")
}
