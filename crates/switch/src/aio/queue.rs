//! Which request is run next. As in the C library, the requests of one descriptor are run one after another, those of higher
//! priority first: what waits for bytes holds up what comes behind it. Each descriptor with a request has one thread at
//! most, and there are so many threads at most; what finds none waits for one.

use super::block::AiocbPtr;
use super::notice::{Event, Group};
use core::ffi::c_int;
use libc::off_t;
use std::collections::VecDeque;
use std::sync::Arc;

/// As aio_init(3) has it by default.
pub const THREADS_MAX: usize = 20;

/// A copy of what the program asked for: the block itself is only looked at by the program meanwhile.
#[derive(Clone, Debug)]
pub struct Request {
    pub aiocb: AiocbPtr,
    pub fd: c_int,
    pub operation: c_int,
    pub buf: usize,
    pub len: usize,
    pub offset: off_t,
    pub priority: c_int,
    pub event: Event,
    pub group: Option<Arc<Group>>,
}

/// The requests of one descriptor; there is at least one.
#[derive(Debug)]
struct Line {
    fd: c_int,
    running: Option<AiocbPtr>,
    waiting: VecDeque<Request>,
}

#[derive(Debug)]
pub struct Queue {
    lines: Vec<Line>,
    /// The lines whose first request may run as soon as there is a thread, with its priority.
    ready: VecDeque<(c_int, c_int)>,
    threads: usize,
    /// How many of them have nothing to do.
    pub idle: usize,
}

/// What is to be done about a request that was added.
#[derive(Debug)]
pub enum Added {
    /// Nothing: another one of its descriptor comes before it.
    Queued,
    /// A thread that has nothing to do may run it, or any that gets round to it.
    Ready,
    /// It is that of a new thread, which is counted already.
    Start(Request),
}

#[derive(Debug)]
pub enum Cancelled {
    Unknown,
    Runs,
    Removed(Request),
}

impl Queue {
    pub const fn new() -> Queue {
        Queue { lines: Vec::new(), ready: VecDeque::new(), threads: 0, idle: 0 }
    }

    fn line(&mut self, fd: c_int) -> Option<&mut Line> {
        self.lines.iter_mut().find(|line| line.fd == fd)
    }

    pub fn add(&mut self, request: Request) -> Added {
        if let Some(line) = self.line(request.fd) {
            // What is first stays so, also if it does not run yet.
            let first = usize::from(line.running.is_none());
            let is_before = |other: &&Request| other.priority >= request.priority;
            let at = first + line.waiting.iter().skip(first).take_while(is_before).count();
            line.waiting.insert(at, request);
            return Added::Queued;
        }
        if self.idle == 0 && self.add_thread() {
            let line = Line { fd: request.fd, running: Some(request.aiocb), waiting: VecDeque::new() };
            self.lines.push(line);
            return Added::Start(request);
        }
        self.push_line(request);
        Added::Ready
    }

    fn push_line(&mut self, request: Request) {
        let (fd, priority) = (request.fd, request.priority);
        self.lines.push(Line { fd, running: None, waiting: VecDeque::from([request]) });
        self.make_ready(fd, priority);
    }

    fn make_ready(&mut self, fd: c_int, priority: c_int) {
        let at = self.ready.iter().take_while(|other| other.1 >= priority).count();
        self.ready.insert(at, (fd, priority));
    }

    /// The thread of a request could not be started. `false`: nor is there another, and the request is gone.
    pub fn is_queued_without_start(&mut self, request: Request) -> bool {
        self.threads -= 1;
        self.lines.retain(|line| line.fd != request.fd);
        let is_queued = self.threads > 0;
        if is_queued {
            self.push_line(request);
        }
        is_queued
    }

    /// There is to be one thread more, if there may.
    pub fn add_thread(&mut self) -> bool {
        let may = self.threads < THREADS_MAX;
        self.threads += usize::from(may);
        may
    }

    pub fn remove_thread(&mut self) {
        self.threads -= 1;
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next request for a thread to run.
    pub fn take(&mut self) -> Option<Request> {
        let (fd, _) = self.ready.pop_front()?;
        let line = self.line(fd)?;
        let request = line.waiting.pop_front()?;
        line.running = Some(request.aiocb);
        Some(request)
    }

    /// A request has been run.
    pub fn end(&mut self, fd: c_int) {
        let Some(line) = self.line(fd) else { return };
        line.running = None;
        match line.waiting.front().map(|next| next.priority) {
            Some(priority) => self.make_ready(fd, priority),
            None => self.lines.retain(|line| line.fd != fd),
        }
    }

    pub fn has(&self, aiocb: AiocbPtr) -> bool {
        let is_in = |line: &Line| {
            line.running == Some(aiocb) || line.waiting.iter().any(|request| request.aiocb == aiocb)
        };
        self.lines.iter().any(is_in)
    }

    pub fn remove(&mut self, fd: c_int, aiocb: AiocbPtr) -> Cancelled {
        let Some(line) = self.line(fd) else { return Cancelled::Unknown };
        if line.running == Some(aiocb) {
            return Cancelled::Runs;
        }
        let at = line.waiting.iter().position(|request| request.aiocb == aiocb);
        let Some(request) = at.and_then(|at| line.waiting.remove(at)) else { return Cancelled::Unknown };
        let was_first = line.running.is_none() && at == Some(0);
        if was_first {
            // The next one may have another priority.
            self.ready.retain(|ready| ready.0 != fd);
            self.end(fd);
        }
        Cancelled::Removed(request)
    }

    /// Removes all that do not run. Also whether one does.
    pub fn remove_waiting(&mut self, fd: c_int) -> (bool, VecDeque<Request>) {
        let Some(line) = self.line(fd) else { return (false, VecDeque::new()) };
        let waiting = core::mem::take(&mut line.waiting);
        let is_running = line.running.is_some();
        if !is_running {
            self.ready.retain(|ready| ready.0 != fd);
            self.lines.retain(|line| line.fd != fd);
        }
        (is_running, waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fd: c_int, number: usize, priority: c_int) -> Request {
        let aiocb = AiocbPtr::of(core::ptr::without_provenance(number));
        let event = Event::NONE;
        Request { aiocb, fd, operation: 0, buf: 0, len: 0, offset: 0, priority, event, group: None }
    }

    fn number(request: Request) -> usize {
        request.aiocb.as_ptr().addr()
    }

    #[test]
    fn requests_of_one_descriptor_are_run_in_turn_by_priority() {
        let mut queue = Queue::new();
        assert!(matches!(queue.add(request(3, 1, 0)), Added::Start(_)));
        for (number, priority) in [(2, -5), (3, 0), (4, -5), (5, 0)] {
            assert!(matches!(queue.add(request(3, number, priority)), Added::Queued));
        }
        assert!(queue.take().is_none(), "one runs");
        let mut order = Vec::new();
        queue.end(3);
        while let Some(next) = queue.take() {
            order.push(number(next));
            queue.end(3);
        }
        assert_eq!(order, [3, 5, 2, 4]);
        assert!(!queue.has_ready() && queue.lines.is_empty());
    }

    #[test]
    fn what_finds_no_thread_waits_for_one() {
        let mut queue = Queue::new();
        for fd in 0..THREADS_MAX as c_int {
            assert!(matches!(queue.add(request(fd, fd as usize, 0)), Added::Start(_)));
        }
        assert!(matches!(queue.add(request(100, 100, -1)), Added::Ready));
        assert!(matches!(queue.add(request(101, 101, 0)), Added::Ready));
        // What is first of its descriptor stays so.
        assert!(matches!(queue.add(request(100, 102, 0)), Added::Queued));
        queue.end(7);
        assert_eq!([queue.take(), queue.take()].map(|next| next.map(number)), [Some(101), Some(100)]);
        queue.remove_thread();
        queue.idle = 1;
        assert!(matches!(queue.add(request(7, 7, 0)), Added::Ready), "one has nothing to do");
    }

    #[test]
    fn a_thread_that_does_not_start_is_made_up_for_by_others() {
        let mut queue = Queue::new();
        let Added::Start(first) = queue.add(request(3, 1, 0)) else { panic!("a thread") };
        assert!(!queue.is_queued_without_start(first) && queue.lines.is_empty());
        queue.add(request(3, 1, 0));
        let Added::Start(other) = queue.add(request(4, 2, 0)) else { panic!("a thread") };
        assert!(queue.is_queued_without_start(other));
        assert_eq!(queue.take().map(number), Some(2));
    }

    #[test]
    fn what_does_not_run_can_be_removed() {
        let mut queue = Queue::new();
        queue.add(request(3, 1, 0));
        queue.add(request(3, 2, 0));
        let at = |number| AiocbPtr::of(core::ptr::without_provenance(number));
        assert!(queue.has(at(1)) && queue.has(at(2)) && !queue.has(at(3)));
        assert!(matches!(queue.remove(3, at(1)), Cancelled::Runs));
        assert!(matches!(queue.remove(4, at(2)), Cancelled::Unknown));
        assert!(matches!(queue.remove(3, at(2)), Cancelled::Removed(_)));
        queue.add(request(3, 4, 0));
        let (is_running, removed) = queue.remove_waiting(3);
        assert!(is_running && removed.len() == 1);
        queue.end(3);
        queue.idle = 1;
        queue.add(request(3, 5, 0));
        queue.add(request(3, 6, -2));
        assert!(matches!(queue.remove(3, at(5)), Cancelled::Removed(_)));
        assert_eq!(queue.take().map(number), Some(6));
        assert_eq!(queue.remove_waiting(9).1.len(), 0);
    }
}
