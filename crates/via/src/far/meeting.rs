//! How two programs of different hosts meet: who connects tries again until somebody is there, who waits has a door. Called by
//! [`crate::meet`].

use super::carrier::{Answer, Carrier};
use super::introduction::{Introduction, Refusal, far_host, place};
use super::mpa::{PRIVATE_MAX, START_LEN, Start};
use super::set::{Bells, Member};
use super::wire::{Wire, prepare};
use crate::error::Error;
use crate::link::{Link, lock};
use crate::session::Session;
use crate::sleep::{Deadline, until};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use toe::native::{Connection, Listener};
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NAME_LEN, NodeName};
use toe_ring::ViaMemory;

/// Says at which address this node's programs wait for connections from other hosts; else they wait for none.
pub const ADDRESS_VARIABLE: &str = "TOE_VIA_ADDRESS";

const TRY_AGAIN_MIN: Duration = Duration::from_millis(10);
const TRY_AGAIN_MAX: Duration = Duration::from_millis(500);
/// Those who have connected and not said yet what they want; one more, and the first of them has to go.
const SILENT_MAX: usize = 64;
/// Those who have said it and are not taken.
const READY_MAX: usize = 64;
const REQUEST_MAX: usize = START_LEN + PRIVATE_MAX;

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
    let connection = match Connection::connect(place(host, me.discriminator)) {
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

/// One who has connected, and what of his request has come.
#[derive(Debug)]
pub(crate) struct Silent {
    wire: Box<dyn Wire>,
    address: IpAddr,
    octets: [u8; REQUEST_MAX],
    came: usize,
}

#[derive(Debug, Default)]
struct Inside {
    silent: VecDeque<Silent>,
    ready: VecDeque<(Link, Attributes)>,
}

/// Where one who waits at a discriminator is found by other hosts.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    /// For whom; `None`: anybody.
    from: Option<NodeName>,
    discriminator: u64,
    node: NodeName,
    session: std::sync::Weak<super::set::FarSet>,
    bells: Arc<Bells>,
    inside: Mutex<Inside>,
}

impl Door {
    /// Opened where the environment says so. `None`: nowhere, or another program waits there.
    pub fn open(
        session: &Session,
        from: Option<NodeName>,
        discriminator: u64,
    ) -> Result<Option<Arc<Door>>, Error> {
        let Some(address) = std::env::var_os(ADDRESS_VARIABLE).filter(|address| !address.is_empty()) else {
            return Ok(None);
        };
        let address = address.to_str().and_then(|text| text.parse().ok()).ok_or(Error::Invalid)?;
        let listener = match Listener::bind(place(address, discriminator), READY_MAX as u32) {
            Ok(listener) => listener,
            // Those of other hosts find that one.
            Err(Errno::EADDRINUSE) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let door = Arc::new(Door {
            listener,
            from,
            discriminator,
            node: session.node,
            session: Arc::downgrade(&session.far),
            bells: Arc::clone(session.far.bells()),
            inside: Mutex::default(),
        });
        // It takes its first connection when it is asked to.
        door.pull();
        session.far.add(&door);
        Ok(Some(door))
    }

    /// The next one who wants a connection, and what he says of himself.
    pub fn take(&self) -> Option<(Link, Attributes)> {
        lock(&self.inside).ready.pop_front()
    }

    fn look(&self, inside: &mut Inside) {
        for silent in std::mem::take(&mut inside.silent) {
            self.hear(inside, silent);
        }
        while inside.ready.len() < READY_MAX
            && let Ok(connection) = self.listener.accept()
        {
            prepare(&connection);
            if let Ok(address) = connection.peer() {
                // At once: whoever has said what he wants is not among those who may have to go.
                self.hear(inside, Silent::new(Box::new(connection), address.ip()));
            }
            if inside.silent.len() > SILENT_MAX {
                inside.silent.pop_front();
            }
        }
    }

    fn hear(&self, inside: &mut Inside, mut silent: Silent) {
        match silent.listen() {
            Ok(None) => inside.silent.push_back(silent),
            Ok(Some(asked)) => inside.ready.extend(self.let_in(silent, &asked)),
            Err(Some(refusal)) => self.refuse(silent.wire, refusal),
            Err(None) => {}
        }
    }

    fn let_in(
        &self,
        Silent { wire, address, .. }: Silent,
        asked: &Introduction,
    ) -> Option<(Link, Attributes)> {
        let is_meant = asked.discriminator == self.discriminator
            && self.from.is_none_or(|from| from == asked.node || far_host(from) == Some(address));
        if !is_meant {
            self.refuse(wire, Refusal::Nobody);
            return None;
        }
        let memory = ViaMemory::create_far().ok()?;
        let carrier = Carrier::asked(wire, memory.clone(), self.introduction(None), asked);
        let far = self.session.upgrade()?.carry(carrier);
        Some((Link::to_far(memory, Side::One, far, asked.node), asked.attributes))
    }

    fn introduction(&self, refusal: Option<Refusal>) -> Introduction {
        let (attributes, discriminator) = (Attributes::default(), self.discriminator);
        Introduction { attributes, discriminator, node: self.node, early: Vec::new(), refusal }
    }

    fn refuse(&self, wire: Box<dyn Wire>, refusal: Refusal) {
        let (private, mut reply) = (self.introduction(Some(refusal)).encode(), Vec::new());
        Start { is_reply: true, is_rejected: true, private: &private }.put(&mut reply);
        let _ = wire.send(&reply);
        wire.finish();
    }
}

impl Silent {
    pub fn new(wire: Box<dyn Wire>, address: IpAddr) -> Silent {
        Silent { wire, address, octets: [0; REQUEST_MAX], came: 0 }
    }

    pub fn into_wire(self) -> Box<dyn Wire> {
        self.wire
    }

    /// What he wants; `None`: he has not said it all. An error: he is to go, with that word.
    pub fn listen(&mut self) -> Result<Option<Introduction>, Option<Refusal>> {
        let room = &mut self.octets[self.came..];
        self.came += match self.wire.recv(room) {
            Ok(0) => return Err(None),
            Ok(came) => came,
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(_) => return Err(None),
        };
        let Some((start, used)) = Start::first(&self.octets[..self.came], false).map_err(|_| None)? else {
            return Ok(None);
        };
        if used != self.came {
            // Nothing may come before the answer.
            return Err(None);
        }
        let asked = Introduction::decode(start.private).map_err(|_| None)?;
        asked.map(Some).ok_or(Some(Refusal::Version))
    }
}

impl Member for Door {
    fn pull(&self) {
        let mut inside = lock(&self.inside);
        let before = inside.ready.len();
        self.look(&mut inside);
        if inside.ready.len() > before {
            self.bells.ring();
        }
    }

    fn watch(&self, see: &mut dyn FnMut(RawFd, i16)) {
        see(self.listener.fd(), libc::POLLIN);
        lock(&self.inside).silent.iter().for_each(|silent| see(silent.wire.fd(), libc::POLLIN));
    }
}
