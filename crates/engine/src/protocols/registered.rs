//! Which protocols there are: the one place outside its folder that a new one touches.

use super::{IpProtocol, Protocols};

/// For tests alone.
#[cfg(test)]
#[path = "tally/mod.rs"]
mod tally;

pub fn all() -> Protocols {
    let all: Vec<Box<dyn IpProtocol>> = Vec::new();
    #[cfg(test)]
    let all = and(all, tally::Tally::default());
    Protocols::new(all)
}

#[cfg(test)]
fn and(mut all: Vec<Box<dyn IpProtocol>>, one: impl IpProtocol + 'static) -> Vec<Box<dyn IpProtocol>> {
    all.push(Box::new(one));
    all
}
