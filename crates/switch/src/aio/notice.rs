//! How a program is told that a request, or a list of them, is done: not at all, by a signal, or by a function of its own in a
//! thread of its own.

use core::ffi::{c_int, c_void};
use core::ptr::with_exposed_provenance_mut as at;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use libc::{pthread_attr_t, pthread_t, sigevent, sigval};
use toe::{Errno, sys};

type Function = unsafe extern "C-unwind" fn(sigval);

/// `si_code` (SI_ASYNCIO).
const BY_AIO: c_int = -4;
const SIGEV_SIGNAL: c_int = 0;
const SIGEV_NONE: c_int = 1;
const SIGEV_THREAD: c_int = 2;

/// `struct sigevent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    value: usize,
    signal: c_int,
    kind: c_int,
    function: usize,
    attributes: usize,
    _rest: [usize; 4],
}

const _: () = assert!(size_of::<Event>() == size_of::<sigevent>());

/// `siginfo_t`, as far as these signals fill it in.
#[repr(C)]
#[derive(Debug)]
struct Info {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _pad: c_int,
    pid: c_int,
    uid: u32,
    value: usize,
    _rest: [usize; 12],
}

const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());

unsafe extern "C" {
    fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const pthread_attr_t,
        start: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
}

impl Event {
    pub const NONE: Event =
        Event { value: 0, signal: 0, kind: SIGEV_NONE, function: 0, attributes: 0, _rest: [0; 4] };

    /// Calls a function with a value, in a thread of its own.
    pub fn call(function: unsafe extern "C-unwind" fn(sigval), value: *const c_void) -> Event {
        let function = function as *const () as usize;
        Event { value: value.expose_provenance(), kind: SIGEV_THREAD, function, ..Event::NONE }
    }

    fn is_none(&self) -> bool {
        !matches!(self.kind, SIGEV_SIGNAL | SIGEV_THREAD)
    }

    /// Tells the program.
    pub fn tell(&self) -> Result<(), Errno> {
        match self.kind {
            SIGEV_SIGNAL => self.send(),
            SIGEV_THREAD => self.start(),
            _ => Ok(()),
        }
    }

    fn send(&self) -> Result<(), Errno> {
        let pid = sys::pid();
        let info = Info {
            signal: self.signal,
            errno: 0,
            code: BY_AIO,
            _pad: 0,
            pid,
            uid: rustix::process::getuid().as_raw(),
            value: self.value,
            _rest: [0; 12],
        };
        let described = (&raw const info).expose_provenance();
        // SAFETY: needed because the C library's sigqueue says SI_QUEUE. The description is live and as long as the kernel reads;
        // the other arguments are numbers.
        let sent = unsafe {
            let args = [pid as usize, self.signal as usize, described, 0, 0, 0];
            sys::raw(libc::SYS_rt_sigqueueinfo, args)
        };
        if sent < 0 { Err(Errno(sent.unsigned_abs() as u16)) } else { Ok(()) }
    }

    fn start(&self) -> Result<(), Errno> {
        let made = Box::into_raw(Box::new(*self));
        // SAFETY: needed because the program says with which attributes its thread is made, which only the C library can do. They
        // are the program's, which keeps them until it has been told, or locals; the thread takes the box over if there is one.
        unsafe {
            let mut thread = 0;
            let mut detached: pthread_attr_t = core::mem::zeroed();
            let mut attributes = at::<pthread_attr_t>(self.attributes).cast_const();
            if attributes.is_null() {
                libc::pthread_attr_init(&mut detached);
                libc::pthread_attr_setdetachstate(&mut detached, libc::PTHREAD_CREATE_DETACHED);
                attributes = &raw const detached;
            }
            match pthread_create(&mut thread, attributes, call, made.cast()) {
                0 => Ok(()),
                error => {
                    drop(Box::from_raw(made));
                    Err(crate::ffi::errno(error))
                }
            }
        }
    }
}

/// The program's function may end the thread (pthread_exit(3)): this frame has nothing to drop by then.
unsafe extern "C-unwind" fn call(made: *mut c_void) -> *mut c_void {
    // SAFETY: `Event::start` gave the box away. All zeros are the empty set: no signal is blocked in such a thread. The function is
    // the program's; without one it would be called all the same by the C library, and the process ended.
    unsafe {
        let Event { function, value, .. } = *Box::from_raw(made.cast::<Event>());
        let none = core::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, core::ptr::null_mut());
        let function = core::mem::transmute::<*mut c_void, Option<Function>>(at(function));
        if let Some(function) = function {
            function(sigval { sival_ptr: at(value) });
        }
    }
    core::ptr::null_mut()
}

/// The requests of one list.
#[derive(Debug)]
pub struct Group {
    /// How many are not done. The one who makes the list counts as one, until all are in it.
    left: AtomicUsize,
    has_failed: AtomicBool,
    event: Event,
}

impl Group {
    pub fn new(event: Event) -> Group {
        Group { left: AtomicUsize::new(1), has_failed: AtomicBool::new(false), event }
    }

    pub fn add(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// One is done; with the last one the program is told.
    pub fn end_one(&self, has_failed: bool) {
        self.has_failed.fetch_or(has_failed, Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // As in the C library, there is nobody to tell that it cannot be told.
            let _ = self.event.tell();
        }
    }

    /// Whether nobody is told.
    pub fn is_silent(&self) -> bool {
        self.event.is_none()
    }

    pub fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}
