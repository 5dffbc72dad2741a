//! The threads that run requests: one for each descriptor that has some, up to a bound; one that finds nothing to do for a second
//! ends. They make the calls that the program itself would make.

use super::queue::{Queue, Request};
use super::requests::{DATA_SYNC, QUEUE, READ, SYNC, WRITE, complete};
use crate::calls::{data, metadata};
use crate::ffi::last_errno;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::thread::futex::{self, Timespec};
use toe::lock::Guard;
use toe::{Errno, helper};

/// How long a thread waits for something to do (aio_init(3): `aio_idle_time`).
const IDLE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// What a fault at the program's buffer is told by: it is an error of the request (`toe::program_memory`).
const LET_IN: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

const ESPIPE: Errno = Errno(libc::ESPIPE as u16);

/// Changes when there is something to do for a thread that has nothing.
static WORK: AtomicU32 = AtomicU32::new(0);

/// Starts a thread, which is counted.
pub fn start(first: Option<Request>) -> Result<(), Errno> {
    helper::start("toe-aio", &LET_IN, move || run(first))
}

/// Something is ready.
pub fn wake_one(queue: &Queue) {
    if queue.idle > 0 {
        WORK.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&WORK, futex::Flags::PRIVATE, 1);
    }
}

fn run(first: Option<Request>) {
    let mut next = first.or_else(|| next(QUEUE.lock()));
    while let Some(request) = next {
        let result = perform(&request);
        let mut queue = QUEUE.lock();
        complete(&request, result);
        queue.end(request.fd);
        next = self::next(queue);
    }
}

/// `None`: the thread is to end, and is not counted any more.
fn next(mut queue: Guard<'_, Queue>) -> Option<Request> {
    if !queue.has_ready() {
        queue.idle += 1;
        let seen = WORK.load(Ordering::Acquire);
        drop(queue);
        // An early return ends the thread, at worst.
        let _ = futex::wait(&WORK, futex::Flags::PRIVATE, seen, Some(&IDLE));
        queue = QUEUE.lock();
        queue.idle -= 1;
    }
    let next = queue.take();
    if next.is_none() {
        queue.remove_thread();
    } else if queue.has_ready() {
        if queue.idle > 0 {
            wake_one(&queue);
        } else if queue.add_thread() && start(None).is_err() {
            // This one gets round to it.
            queue.remove_thread();
        }
    }
    next
}

/// As the C library does it: at the offset, which a socket does not have (also if it is a bad one), then without.
fn perform(request: &Request) -> Result<usize, Errno> {
    let Request { fd, len, offset, .. } = *request;
    let buf = with_exposed_provenance_mut(request.buf);
    loop {
        // SAFETY: needed to run what the program asked for, with its arguments: its buffer is the request's until it is done. Of
        // a bad one the calls tell, as they do the program.
        let result = unsafe {
            match request.operation {
                READ => match metadata::pread64(fd, buf, len, offset) {
                    -1 if last_errno() == ESPIPE => data::read(fd, buf, len),
                    got => got,
                },
                WRITE => match metadata::pwrite64(fd, buf, len, offset) {
                    -1 if last_errno() == ESPIPE => data::write(fd, buf, len),
                    put => put,
                },
                SYNC => metadata::fsync(fd) as isize,
                DATA_SYNC => metadata::fdatasync(fd) as isize,
                _ => return Err(Errno::EINVAL),
            }
        };
        match usize::try_from(result) {
            Ok(len) => return Ok(len),
            Err(_) if last_errno() == Errno::EINTR => {}
            Err(_) => return Err(last_errno()),
        }
    }
}
