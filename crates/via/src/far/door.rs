//! The door of a port: where those of this host who wait are found by other hosts, and who has come to it.

use super::carrier::Carrier;
use super::introduction::{Introduction, Refusal, far_host};
use super::mpa::{PRIVATE_MAX, START_LEN, Start};
use super::set::{EventFds, Far, FarSet, Member};
use super::wire::{Wire, prepare};
use crate::lock::lock;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Weak};
use toe::native::{Connection, Listener};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName};
use toe_ring::ViaMemory;

/// Those who have connected and not said yet what they want; one more, and the first of them has to go.
const SILENT_MAX: usize = 64;
/// Those who have said it and are not taken.
const READY_MAX: usize = 64;
const REQUEST_MAX: usize = START_LEN + PRIVATE_MAX;

/// One who has connected, and what of his request has come.
#[derive(Debug)]
pub(crate) struct Silent {
    wire: Box<dyn Wire>,
    address: IpAddr,
    bytes: [u8; REQUEST_MAX],
    came: usize,
}

/// One who has said what he wants, and is not answered yet.
#[derive(Debug)]
struct Asker {
    wire: Box<dyn Wire>,
    address: IpAddr,
    asked: Introduction,
}

/// One who is let in, and what he says of himself.
#[derive(Debug)]
pub struct Guest {
    pub memory: ViaMemory,
    pub far: Arc<Far>,
    pub node: NodeName,
    pub attributes: Attributes,
}

/// Whom one who waits waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// `None`: anybody.
    pub from: Option<NodeName>,
    pub discriminator: u64,
}

impl Wish {
    fn is_met_by(&self, asker: &Asker) -> bool {
        self.discriminator == asker.asked.discriminator
            && self.from.is_none_or(|from| from == asker.asked.node || far_host(from) == Some(asker.address))
    }
}

#[derive(Debug, Default)]
struct Inside {
    silent: VecDeque<Silent>,
    /// Each is wanted by one who waits.
    ready: VecDeque<Asker>,
    /// Of all who wait, those of the same wish as often as there are.
    wishes: Vec<Wish>,
}

/// Where those who wait at a port are found by other hosts, for as long as any of them waits.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    node: NodeName,
    far: Weak<FarSet>,
    eventfds: Arc<EventFds>,
    inside: Mutex<Inside>,
}

/// A session's doors: a port can be listened at once, and several threads wait at one discriminator, or at several that share a port.
#[derive(Debug, Default)]
pub struct Doors(Mutex<Vec<(SocketAddr, Weak<Door>)>>);

impl Doors {
    /// EADDRINUSE: another program waits there.
    pub fn door(&self, node: NodeName, far: &Arc<FarSet>, address: SocketAddr) -> Result<Arc<Door>, Errno> {
        // Kept until it is open: another thread is to find this one, and not that the port is in use.
        let mut doors = lock(&self.0);
        doors.retain(|(_, door)| door.strong_count() > 0);
        let open = doors.iter().find(|(at, _)| *at == address);
        if let Some(door) = open.and_then(|(_, door)| door.upgrade()) {
            return Ok(door);
        }
        let door = Arc::new(Door {
            listener: Listener::bind(address, READY_MAX as u32)?,
            node,
            far: Arc::downgrade(far),
            eventfds: Arc::clone(far.eventfds()),
            inside: Mutex::default(),
        });
        doors.push((address, Arc::downgrade(&door)));
        Ok(door)
    }
}

/// One who waits at a door; until it is dropped.
#[derive(Debug)]
pub struct Waiting {
    door: Arc<Door>,
    wish: Wish,
}

impl Waiting {
    pub fn at(door: Arc<Door>, far: &Arc<FarSet>, wish: Wish) -> Waiting {
        let is_first = {
            let mut inside = lock(&door.inside);
            inside.wishes.push(wish);
            inside.wishes.len() == 1
        };
        if is_first {
            // It takes its first connection when it is asked to.
            door.pull();
            far.add(&door);
        }
        Waiting { door, wish }
    }

    /// The next one who wants a connection.
    pub fn take(&self) -> Option<Guest> {
        self.door.pull();
        loop {
            let asker = self.next()?;
            // Where there is no room for one, he is sent away; whoever is behind him is not to wait for that.
            if let Some(guest) = self.door.let_in(asker) {
                return Some(guest);
            }
        }
    }

    fn next(&self) -> Option<Asker> {
        let mut inside = lock(&self.door.inside);
        let at = inside.ready.iter().position(|asker| self.wish.is_met_by(asker))?;
        inside.ready.remove(at)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut inside = lock(&self.door.inside);
        let Inside { ready, wishes, .. } = &mut *inside;
        if let Some(at) = wishes.iter().position(|wish| *wish == self.wish) {
            wishes.swap_remove(at);
        }
        // Who has come for this one alone is told to try again; the next one of the same wish takes the others.
        for asker in std::mem::take(ready) {
            self.door.receive(&mut inside, asker);
        }
    }
}

impl Door {
    fn look(&self, inside: &mut Inside) {
        for silent in std::mem::take(&mut inside.silent) {
            self.hear(inside, silent);
        }
        while inside.ready.len() < READY_MAX
            && let Ok(connection) = self.listener.accept()
        {
            if let Some(silent) = Silent::of(connection) {
                // At once: whoever has said what he wants is not among those who may have to go.
                self.hear(inside, silent);
            }
            if inside.silent.len() > SILENT_MAX {
                inside.silent.pop_front();
            }
        }
    }

    fn hear(&self, inside: &mut Inside, mut silent: Silent) {
        match silent.listen() {
            Ok(None) => inside.silent.push_back(silent),
            Ok(Some(asked)) => {
                let Silent { wire, address, .. } = silent;
                self.receive(inside, Asker { wire, address, asked });
            }
            Err(Some(refusal)) => self.refuse(silent.wire, 0, refusal),
            Err(None) => {}
        }
    }

    fn receive(&self, inside: &mut Inside, asker: Asker) {
        if inside.wishes.iter().any(|wish| wish.is_met_by(&asker)) {
            inside.ready.push_back(asker);
        } else {
            self.refuse(asker.wire, asker.asked.discriminator, Refusal::Nobody);
        }
    }

    fn let_in(&self, Asker { wire, asked, .. }: Asker) -> Option<Guest> {
        let memory = ViaMemory::create_far().ok()?;
        let me = self.introduction(asked.discriminator, None);
        let far = self.far.upgrade()?.carry(Carrier::asked(wire, memory.clone(), me, &asked));
        Some(Guest { memory, far, node: asked.node, attributes: asked.attributes })
    }

    fn introduction(&self, discriminator: u64, refusal: Option<Refusal>) -> Introduction {
        let attributes = Attributes::default();
        Introduction { attributes, discriminator, node: self.node, early: Vec::new(), refusal }
    }

    fn refuse(&self, wire: Box<dyn Wire>, discriminator: u64, refusal: Refusal) {
        let (private, mut reply) = (self.introduction(discriminator, Some(refusal)).encode(), Vec::new());
        Start { is_reply: true, is_rejected: true, private: &private }.put(&mut reply);
        let _ = wire.send(&reply);
        wire.finish();
    }
}

impl Silent {
    /// `None`: he has gone already.
    fn of(connection: Connection) -> Option<Silent> {
        prepare(&connection);
        let address = connection.peer().ok()?;
        Some(Silent::new(Box::new(connection), address.ip()))
    }

    pub fn new(wire: Box<dyn Wire>, address: IpAddr) -> Silent {
        Silent { wire, address, bytes: [0; REQUEST_MAX], came: 0 }
    }

    pub fn into_wire(self) -> Box<dyn Wire> {
        self.wire
    }

    /// What he wants; `None`: he has not said it all. An error: he is to go, with that word.
    pub fn listen(&mut self) -> Result<Option<Introduction>, Option<Refusal>> {
        let room = &mut self.bytes[self.came..];
        self.came += match self.wire.recv(room) {
            Ok(0) => return Err(None),
            Ok(came) => came,
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(_) => return Err(None),
        };
        let Some((start, used)) = Start::first(&self.bytes[..self.came], false).map_err(|_| None)? else {
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
            self.eventfds.ring();
        }
    }

    fn watch(&self, see: &mut dyn FnMut(RawFd, i16)) {
        see(self.listener.fd(), libc::POLLIN);
        lock(&self.inside).silent.iter().for_each(|silent| see(silent.wire.fd(), libc::POLLIN));
    }
}
