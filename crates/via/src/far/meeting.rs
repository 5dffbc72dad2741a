//! How two programs of different hosts meet: who connects tries again until somebody is there, who waits has a [`super::door`]. Called by
//! [`crate::meet`].

use super::carrier::{Answer, Carrier};
use super::door::{Guest, Waiting, Wish};
use super::introduction::{Introduction, socket_address};
use super::wire::prepare;
use crate::error::Error;
use crate::link::Link;
use crate::session::Session;
use crate::sleep::{Deadline, until};
use std::net::IpAddr;
use std::time::Duration;
use toe::native::Connection;
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NAME_LEN, NodeName};
use toe_ring::ViaMemory;

/// Says at which address this node's programs wait for connections from other hosts; else they wait for none.
pub const ADDRESS_VARIABLE: &str = "TOE_VIA_ADDRESS";

const TRY_AGAIN_MIN: Duration = Duration::from_millis(10);
const TRY_AGAIN_MAX: Duration = Duration::from_millis(500);
/// Connects to a discriminator of another host, where somebody may come to wait later.
pub fn connect(
    session: &Session,
    (host, discriminator): (IpAddr, u64),
    attributes: Attributes,
    deadline: Deadline,
) -> Result<Link, Error> {
    let mut pause = TRY_AGAIN_MIN;
    loop {
        let me =
            Introduction { attributes, discriminator, node: session.node, early: Vec::new(), refusal: None };
        if let Some(link) = attempt(session, host, me, deadline)? {
            return Ok(link);
        }
        match until(session, deadline.at_most(pause), || (), || Ok(None::<()>)) {
            Err(Error::TimedOut) if !deadline.is_over() => {}
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        pause = (pause * 2).min(TRY_AGAIN_MAX);
    }
}

/// `None`: nobody was there.
fn attempt(
    session: &Session,
    host: IpAddr,
    me: Introduction,
    deadline: Deadline,
) -> Result<Option<Link>, Error> {
    let connection = match Connection::connect(socket_address(host, me.discriminator)) {
        Ok(connection) => connection,
        Err(Errno::ECONNREFUSED | Errno::ETIMEDOUT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    prepare(&connection);
    let memory = ViaMemory::create_far().map_err(|_| Error::NoRoom)?;
    let far = session.far.carry(Carrier::asking(Box::new(connection), memory.clone(), me));
    let link = Link::to_far(memory, Side::Zero, far, name_of(host).unwrap_or(session.node));
    let answered = || {
        link.pull();
        Ok(link.far_answer())
    };
    match until(session, deadline, || link.memory.arm(Side::Zero), answered)? {
        Answer::Accepted => Ok(Some(link)),
        Answer::Rejected => Err(Error::Rejected),
        Answer::Wrong => Err(Error::Broken),
        Answer::NotThere => Ok(None),
    }
}

/// The name of a node that is known by its address.
fn name_of(host: IpAddr) -> Option<NodeName> {
    let text = host.to_string();
    // The longest way to write an IPv6 address is longer than a name.
    NodeName::new(&text.as_bytes()[..text.len().min(NAME_LEN)])
}

/// Whether one who waits is found by other hosts.
#[derive(Debug)]
pub enum Entrance {
    /// The environment names no address.
    Nowhere,
    /// Those of other hosts find another program, as long as that one waits.
    Taken,
    Open(Waiting),
}

impl Entrance {
    pub fn of(session: &Session, from: Option<NodeName>, discriminator: u64) -> Result<Entrance, Error> {
        let Some(address) = toe::environment::var_os(ADDRESS_VARIABLE).filter(|address| !address.is_empty())
        else {
            return Ok(Entrance::Nowhere);
        };
        let address = address.to_str().and_then(|text| text.parse().ok()).ok_or(Error::Invalid)?;
        match session.doors.door(session.node, &session.far, socket_address(address, discriminator)) {
            Ok(door) => Ok(Entrance::Open(Waiting::at(door, &session.far, Wish { from, discriminator }))),
            Err(Errno::EADDRINUSE) => Ok(Entrance::Taken),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next one of another host who wants a connection, and what he says of himself.
    pub fn take(&self) -> Option<(Link, Attributes)> {
        let Entrance::Open(waiting) = self else { return None };
        let Guest { memory, far, node, attributes } = waiting.take()?;
        let link = Link::to_far(memory, Side::One, far, node);
        // Who has gone while he waited here is not to be taken for one who is there.
        link.pull();
        Some((link, attributes))
    }
}
