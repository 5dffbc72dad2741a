//! This process at an engine: the control connection, the interrupt, the node's name. One for all channels; made at the first
//! [`crate::Channel::open`], and again in a child or when the engine has gone.

use crate::error::Error;
use crate::far::door::Doors;
use crate::far::set::FarSet;
use crate::sleepers::{InterruptLine, Sleepers};
use rustix::event::epoll;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use toe::attach::{Control, engines};
use toe::sys::Fd;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::via::{NAME_LEN, NodeName};
use toe_ring::irq::IrqReceiver;

/// The environment variable that names this node; else it has the host's name.
pub const NODE_VARIABLE: &str = "TOE_VIA_NODE";

/// See the module.
#[derive(Debug)]
pub struct Session {
    control: Control,
    interrupt: IrqReceiver,
    pub(crate) sleepers: Sleepers,
    pub node: NodeName,
    gone: AtomicBool,
    poll_fd: OnceLock<OwnedFd>,
    /// What goes to other hosts.
    pub(crate) far: Arc<FarSet>,
    /// Where its threads wait for other hosts.
    pub(crate) doors: Doors,
    pid: i32,
    /// When it was last seen that this is still that process.
    forks: AtomicU32,
}

/// The standard library's kind of descriptor.
pub(crate) fn owned(fd: Fd) -> OwnedFd {
    // SAFETY: needed because rings take that kind. The number is open and was this `Fd`'s alone, which has let go of it.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}

impl Session {
    /// The process's session.
    pub fn get() -> Result<Arc<Session>, Error> {
        static SESSION: Mutex<Option<Arc<Session>>> = Mutex::new(None);
        let mut cached = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        let is_usable = |session: &&Arc<Session>| session.pid == toe::sys::pid() && !session.is_gone();
        if let Some(session) = cached.as_ref().filter(is_usable) {
            return Ok(Arc::clone(session));
        }
        let session = Arc::new(Session::attach(own_name()?)?);
        *cached = Some(Arc::clone(&session));
        Ok(session)
    }

    /// A session that is not the process's, at a node of another name.
    pub fn of_node(node: NodeName) -> Result<Arc<Session>, Error> {
        Session::attach(node).map(Arc::new)
    }

    /// Whether an engine is there to attach to.
    pub fn is_possible() -> bool {
        engines().iter().flatten().any(|path| Control::connect(path).is_ok())
    }

    fn attach(node: NodeName) -> Result<Session, Error> {
        toe::fork::install_handlers();
        let mut last = Errno::ECONNREFUSED;
        for path in engines().iter().flatten() {
            match Control::connect(path).and_then(|control| Session::over(control, node)) {
                Ok(session) => return Ok(session),
                Err(Errno::ECONNREFUSED) => {}
                Err(errno) => last = errno,
            }
        }
        Err(last.into())
    }

    fn over(control: Control, node: NodeName) -> Result<Session, Errno> {
        control.request(Request::Hello { room: 0 }, &[])?;
        let (_, fds) = control.request(Request::AddQueueSet, &[])?;
        let interrupt = fds.into_iter().next().ok_or(Errno::EPROTO)?;
        control.request(Request::ViaName { name: node }, &[])?;
        Ok(Session {
            control,
            interrupt: IrqReceiver::from(owned(interrupt)),
            sleepers: Sleepers::default(),
            node,
            gone: AtomicBool::new(false),
            poll_fd: OnceLock::new(),
            far: Arc::new(FarSet::new()?),
            doors: Doors::default(),
            pid: toe::sys::pid(),
            forks: AtomicU32::new(toe::process::count()),
        })
    }

    /// At an engine that answers nothing.
    #[cfg(test)]
    pub(crate) fn alone(control: OwnedFd, interrupt: OwnedFd) -> Session {
        Session {
            control: Control::over(Fd::from(control)),
            interrupt: IrqReceiver::from(interrupt),
            sleepers: Sleepers::default(),
            node: NodeName::new(b"test").expect("a name"),
            gone: AtomicBool::new(false),
            poll_fd: OnceLock::new(),
            far: Arc::new(FarSet::new().expect("an eventfd")),
            doors: Doors::default(),
            // Of no process: what it asks for is refused at once.
            pid: 0,
            forks: AtomicU32::new(toe::process::count()),
        }
    }

    /// Whether this is the process that made it, and not a child of fork. Where nothing has forked it costs a load.
    #[inline]
    pub(crate) fn is_this_process(&self) -> bool {
        let forks = toe::process::count();
        forks == self.forks.load(Ordering::Relaxed) || self.is_still_this_process(forks)
    }

    #[cold]
    fn is_still_this_process(&self, forks: u32) -> bool {
        let is_it = self.pid == toe::sys::pid();
        if is_it {
            self.forks.store(forks, Ordering::Relaxed);
        }
        is_it
    }

    /// Asks the engine.
    pub(crate) fn request(&self, request: Request) -> Result<(Reply, Vec<Fd>), Errno> {
        if self.pid != toe::sys::pid() {
            // A child's copy: what it says would be taken for its parent's word.
            return Err(Errno::ENOENT);
        }
        let answer = self.control.request(request, &[]);
        if matches!(answer, Err(Errno::ECONNRESET)) {
            self.gone.store(true, Ordering::Release);
        }
        answer
    }

    pub fn sleepers(&self) -> &Sleepers {
        &self.sleepers
    }

    /// Whether the engine has gone, as far as known.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Looks whether the engine has gone.
    pub fn look_at_engine(&self) {
        if self.control.is_gone() {
            self.gone.store(true, Ordering::Release);
        }
    }

    /// Readable when an interrupt has come or the engine has gone: what a program's own loop waits for.
    pub fn poll_fd(&self) -> Result<RawFd, Error> {
        if let Some(fd) = self.poll_fd.get() {
            return Ok(fd.as_raw_fd());
        }
        let made = || -> rustix::io::Result<OwnedFd> {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let nothing = epoll::EventData::new_u64(0);
            epoll::add(&set, &self.interrupt, nothing, epoll::EventFlags::IN)?;
            epoll::add(&set, self.control.fd(), nothing, epoll::EventFlags::RDHUP)?;
            epoll::add(&set, self.far.outside(), nothing, epoll::EventFlags::IN)?;
            Ok(set)
        };
        let made = made().map_err(|_| Error::NoRoom)?;
        Ok(self.poll_fd.get_or_init(|| made).as_raw_fd())
    }
}

impl InterruptLine for Session {
    /// Until an interrupt comes, something comes from another host, the engine goes, a signal comes, or so long.
    fn wait(&self, limit: Option<Duration>) {
        let watched = |fd: BorrowedFd<'_>, events| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        let mut fds =
            [watched(self.interrupt.as_fd(), libc::POLLIN), watched(self.control.fd(), libc::POLLRDHUP)];
        self.far.sleep(&mut fds, limit);
        if fds[1].revents != 0 {
            self.gone.store(true, Ordering::Release);
        }
    }

    /// Whether an interrupt had come.
    fn drain(&self) -> bool {
        let came_far = self.far.quiet_outside();
        self.interrupt.drain().unwrap_or(true) || came_far
    }
}

/// What this node is called: as [`NODE_VARIABLE`] says, or as the host is.
pub fn own_name() -> Result<NodeName, Error> {
    if let Some(name) = toe::environment::var_os(NODE_VARIABLE).filter(|name| !name.is_empty()) {
        return NodeName::new(name.as_encoded_bytes()).ok_or(Error::Invalid);
    }
    let host = rustix::system::uname();
    let host = host.nodename().to_bytes();
    NodeName::new(&host[..host.len().min(NAME_LEN)]).ok_or(Error::Invalid)
}
