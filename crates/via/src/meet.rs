//! How two programs meet: what is asked of the engine until there is a [`Link`]. Called by channels and by virtual interfaces.

use crate::error::Error;
use crate::far;
use crate::far::introduction::far_host;
use crate::far::meeting::Entrance;
use crate::link::Link;
use crate::session::Session;
use crate::sleep::{Deadline, until};
use std::time::Duration;
use toe::sys::Fd;
use toe_abi::attach::{Reply, Request};
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName, ViaState};

/// How often it is looked whether another program still waits where this one would be found by other hosts: nobody tells when it has gone.
const ENTER_AGAIN: Duration = Duration::from_millis(200);

/// One that waits at a discriminator of this node's; until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener<'s> {
    session: &'s Session,
    handle: u32,
    from: Option<NodeName>,
    discriminator: u64,
    /// For those of other hosts.
    entrance: Entrance,
}

impl<'s> Listener<'s> {
    /// For connections of a node, or of any.
    pub fn new(
        session: &'s Session,
        from: Option<NodeName>,
        discriminator: u64,
    ) -> Result<Listener<'s>, Error> {
        let handle = ask_for(session, Request::ViaListen { from, discriminator })?;
        let mut listener = Listener { session, handle, from, discriminator, entrance: Entrance::Nowhere };
        listener.enter()?;
        Ok(listener)
    }

    fn enter(&mut self) -> Result<(), Error> {
        self.entrance = Entrance::of(self.session, self.from, self.discriminator)?;
        Ok(())
    }

    /// The next connection that is asked for, and what the one that asks says of itself. It is neither accepted nor rejected yet.
    pub fn take(&mut self, deadline: Deadline) -> Result<(Link, Attributes), Error> {
        loop {
            let is_taken = matches!(self.entrance, Entrance::Taken);
            let limit = if is_taken { deadline.at_most(ENTER_AGAIN) } else { deadline };
            match self.take_by(limit) {
                Err(Error::TimedOut) if is_taken && !deadline.is_over() => self.enter()?,
                taken => return taken,
            }
        }
    }

    fn take_by(&self, deadline: Deadline) -> Result<(Link, Attributes), Error> {
        let ask = || {
            if let Some(far) = self.entrance.take() {
                return Ok(Some(Found::Far(far)));
            }
            let answer = ask_once(self.session, Request::ViaTake { listener: self.handle })?;
            Ok(answer.map(|(reply, fds)| Found::Here(reply, fds)))
        };
        let (reply, fds) = match until(self.session, deadline, || (), ask)? {
            Found::Far(far) => return Ok(far),
            Found::Here(reply, fds) => (reply, fds),
        };
        let (handle, found) = Link::of(reply, fds, Side::One);
        if found.is_err() {
            // There is no room for it here: it is not to stay among the session's.
            let _ = self.session.request(Request::ViaForget { handle });
        }
        found
    }
}

/// Who has come.
enum Found {
    Here(Reply, Vec<Fd>),
    Far((Link, Attributes)),
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        let _ = self.session.request(Request::ViaForget { handle: self.handle });
    }
}

/// Connects to a node at a discriminator, where somebody may come to listen later.
pub(crate) fn connect(
    session: &Session,
    (to, discriminator): (NodeName, u64),
    attributes: Attributes,
    deadline: Deadline,
) -> Result<Link, Error> {
    if let Some(host) = far_host(to) {
        return far::meeting::connect(session, (host, discriminator), attributes, deadline);
    }
    let connection = ask_for(session, Request::ViaConnect { to, discriminator, attributes })?;
    let fetched = fetch(session, connection, deadline);
    if fetched.is_err() {
        let _ = session.request(Request::ViaForget { handle: connection });
    }
    fetched
}

fn fetch(session: &Session, connection: u32, deadline: Deadline) -> Result<Link, Error> {
    let (reply, fds) = answer_to(session, Request::ViaFetch { connection }, deadline)?;
    let (link, _) = Link::of(reply, fds, Side::Zero).1?;
    let answered = || match link.memory.state() {
        ViaState::Requested => Ok(None),
        ViaState::Rejected => Err(Error::Rejected),
        ViaState::Accepted | ViaState::Closed => Ok(Some(())),
    };
    until(session, deadline, || link.memory.arm(Side::Zero), answered)?;
    Ok(link)
}

/// Asks the engine again, whenever there is an interrupt, until it has an answer.
fn answer_to(session: &Session, request: Request, deadline: Deadline) -> Result<(Reply, Vec<Fd>), Error> {
    until(session, deadline, || (), || ask_once(session, request))
}

fn ask_once(session: &Session, request: Request) -> Result<Option<(Reply, Vec<Fd>)>, Error> {
    match session.request(request) {
        Err(Errno::EAGAIN) => Ok(None),
        answer => answer.map(Some).map_err(Error::from),
    }
}

pub(crate) fn ask_for(session: &Session, request: Request) -> Result<u32, Error> {
    match session.request(request)? {
        (Reply::ViaHandle { handle }, _) => Ok(handle),
        _ => Err(Error::Refused),
    }
}
