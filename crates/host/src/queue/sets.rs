//! The queue sets of a session: which one a thread has, and when one more is opened.

use crate::attach::is_hangup;
use crate::queue::QueueSet;
use crate::session::{Session, into_std};
use crate::stack::{ENGINES_MAX, STACKS, Stack};
use crate::sys::Fd;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_base::limits::QUEUE_SETS_MAX;
use toe_ring::{HostQueueSet, Region};

/// The queue sets of a thread, one for each engine; their owner counts go down when the thread ends.
#[derive(Debug)]
struct Mine(Chosen);

type Chosen = [Cell<Option<&'static QueueSet>>; ENGINES_MAX];

impl Drop for Mine {
    fn drop(&mut self) {
        for queue in self.0.iter().filter_map(Cell::take) {
            queue.owners.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static MINE: Mine = const { Mine([const { Cell::new(None) }; ENGINES_MAX]) };
    /// The same without a destructor, for the fast path and for what runs after the thread's destructors.
    static CHOSEN: Chosen = const { [const { Cell::new(None) }; ENGINES_MAX] };
}

impl Stack {
    /// The queue sets that are open.
    pub fn queue_sets(&self) -> impl Iterator<Item = &'static QueueSet> {
        self.queue_sets.iter().filter_map(|slot| {
            let queue = slot.load(Ordering::Acquire);
            // SAFETY: needed because queue sets are in atomics. A slot holds null or what `open_queue_set` leaked.
            (!queue.is_null()).then(|| unsafe { &*queue })
        })
    }

    /// The calling thread's queue set: its own while there are enough, one that it shares otherwise.
    pub fn my_queue(&'static self) -> Result<&'static QueueSet, Errno> {
        let engine = self.session.engine.index();
        if let Some(queue) = CHOSEN.try_with(|chosen| chosen[engine].get()).ok().flatten()
            && std::ptr::eq(queue.session, &raw const self.session)
        {
            return Ok(queue);
        }
        let queue = self.choose_queue()?;
        queue.owners.fetch_add(1, Ordering::Relaxed);
        let before = MINE.try_with(|mine| mine.0[engine].replace(Some(queue)));
        if let Ok(Some(before)) = before {
            before.owners.fetch_sub(1, Ordering::Relaxed);
        }
        let _ = CHOSEN.try_with(|chosen| chosen[engine].set(Some(queue)));
        Ok(queue)
    }

    pub(crate) fn choose_queue(&'static self) -> Result<&'static QueueSet, Errno> {
        let mut opened = self.opening.lock();
        let owners = |queue: &&'static QueueSet| queue.owners.load(Ordering::Relaxed);
        let least = self.queue_sets().min_by_key(owners);
        let most = usize::min(self.session.layout.queue_sets as usize, QUEUE_SETS_MAX);
        match least {
            Some(queue) if owners(&queue) == 0 || usize::from(*opened) >= most => Ok(queue),
            _ => {
                let queue = self.open_queue_set();
                *opened += u8::from(queue.is_ok());
                // An engine that gives no more leaves those that there are.
                queue.or_else(|errno| least.ok_or(errno))
            }
        }
    }

    fn open_queue_set(&'static self) -> Result<&'static QueueSet, Errno> {
        let (reply, fds) = self.session.control.request(Request::AddQueueSet, &[])?;
        let Reply::QueueSet { index } = reply else { return Err(Errno::EPROTO) };
        let slot = self.queue_sets.get(usize::from(index)).ok_or(Errno::EPROTO)?;
        let [irq] = <[Fd; 1]>::try_from(fds).map_err(|_| Errno::EPROTO)?;
        let irq_fd = irq.raw();
        let ring = HostQueueSet::new(&self.session.region, &self.session.layout, index, into_std(irq))
            .map_err(|_| Errno::EPROTO)?;
        self.session.own_fds().own(irq_fd);
        let queue: &'static QueueSet = Box::leak(Box::new(QueueSet::new(&self.session, index, irq_fd, ring)));
        slot.store(std::ptr::from_ref(queue).cast_mut(), Ordering::Release);
        Ok(queue)
    }

    /// Makes `session` the process's.
    pub fn adopt(session: Session) -> &'static Stack {
        let stack: &'static Stack = Box::leak(Box::new(Stack::new(session)));
        STACKS.current[stack.session.engine.index()]
            .store(std::ptr::from_ref(stack).cast_mut(), Ordering::Release);
        // The engine looks at no region before its first queue set, not even for who has datagrams alone. What cannot be had now is asked
        // for again when it is needed.
        let _ = stack.choose_queue();
        stack
    }

    /// The engine has ended or fenced the session: every socket of it is reset.
    pub fn on_death(&'static self) {
        if self.session.end() {
            self.queue_sets().for_each(QueueSet::on_death);
        }
    }

    /// In the child of a fork: the session is the parent's. Its descriptors are closed here, so that the parent's
    /// death and closes count, as far as that waits for nothing; its memory is unmapped.
    #[cold]
    pub fn abandon_in_child(&self) {
        let left = self.session.leave_to_parent();
        let engine = self.session.engine.index();
        STACKS.current[engine].store(std::ptr::null_mut(), Ordering::Release);
        STACKS.failed[engine].store(0, Ordering::Relaxed);
        STACKS.left.lock().extend(left);
        let _ = MINE.try_with(|mine| mine.0[engine].take());
        let _ = CHOSEN.try_with(|chosen| chosen[engine].set(None));
        for queue in self.queue_sets() {
            // SAFETY: needed to look without the lock, which costs a copy of its page. The child of a fork has one thread, and it is here.
            let queue = unsafe { queue.raw_lock().peek_in_child() };
            for channel in queue.iter().flat_map(|queue| &queue.io.channels) {
                let region: &Region = channel.end.memory().region();
                // SAFETY: needed to give the memory back. As above.
                unsafe { region.abandon() };
            }
        }
        // SAFETY: as above.
        unsafe { self.session.region.abandon() };
    }

    /// Ends the sessions: the engines end all their flows.
    pub fn detach() {
        for stack in Stack::all_attached() {
            let _ = rustix::net::shutdown(stack.session.control.fd(), rustix::net::Shutdown::Both);
            stack.on_death();
        }
    }
}

impl QueueSet {
    /// Looks whether the engine of its session is there, as [`look`] does.
    pub fn look(&self) {
        look(self.session);
    }

    /// The engine has ended the session.
    pub(crate) fn end_session(&self) {
        end(self.session);
    }
}

/// Looks whether the engine is there, unless that was done a moment ago: for threads that poll without parking.
pub(crate) fn look(session: &Session) {
    if session.is_found_gone() {
        end(session);
    }
}

/// A thread that waited on the control socket was woken by this of it.
pub(crate) fn on_control(session: &Session, revents: i16) {
    // select(2) cannot tell the end from an answer for which another thread waits. Behind a filter there are no answers.
    let is_readable = revents & libc::POLLIN != 0;
    if is_hangup(revents) || is_readable && (crate::sys::is_filtered() || session.control.is_gone()) {
        end(session);
    }
}

/// The engine has ended the session, or fenced it. One whose stack is the process's no more has been ended, or is the parent's.
fn end(session: &Session) {
    Stack::of(session).into_iter().for_each(Stack::on_death);
}
