//! sigaction, signal and their relatives: the program's handlers run only while their thread is outside of this library
//! (`toe::signals`), as they may use its sockets themselves, and need not return.
//!
//! The kernel is given [`on_signal`] for each function that the program installs; which that is stands in a table. What
//! the program asks for it gets back. Of SIGSEGV and SIGBUS the kernel is given it always: a
//! fault of the library at what the program pointed to is an error of the call (`toe::program_memory`), and any other is the
//! program's, which it hears of, or ends by, as ever. Not caught: sigset(3), and whoever makes the system call itself; such a handler
//! should leave sockets alone.

use crate::{fork, real};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use libc::{sigaction as Action, sighandler_t, siginfo_t};
use toe::signals;
use toe::signals::deferred::Came;

/// Signals are numbered from 1 to 64.
const SIGNALS: usize = 65;

/// The program's function for each signal with [`FLAGS`] above the address; 0: none, the kernel's word counts.
static HANDLERS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

/// It takes three arguments (SA_SIGINFO).
const WANTS_INFO: u64 = 1 << 63;
/// The kernel forgets it when it calls it (SA_RESETHAND): if it were kept back, the signal would not find it again.
const ONCE: u64 = 1 << 62;
/// Calls that it ends are restarted (SA_RESTART).
const RESTARTS: u64 = 1 << 61;
const FLAGS: u64 = WANTS_INFO | ONCE | RESTARTS;

/// For which signals siginterrupt(3) has asked that calls end with EINTR; signal(2) heeds it.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

fn slot(signal: c_int) -> Option<&'static AtomicU64> {
    usize::try_from(signal).ok().filter(|&n| n > 0).and_then(|n| HANDLERS.get(n))
}

/// What the instruction itself has caused cannot wait.
const fn is_fault(signal: c_int) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    )
}

const fn is_function(handler: sighandler_t) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// What the kernel calls.
unsafe extern "C-unwind" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    if is_of_memory(signal) && land(context) {
        return;
    }
    let word = slot(signal).map_or(0, |slot| slot.load(Ordering::Acquire));
    if is_of_memory(signal) && (word & !FLAGS < 2 || word & ONCE != 0) {
        if word & !FLAGS < 2 {
            // SAFETY: needed because the kernel gives the description as a pointer.
            return as_without_handler(signal, word, unsafe { (*info).si_code } > 0);
        }
        // It is called this once.
        set_of_memory(signal, None);
    }
    if word & ONCE == 0 && !is_fault(signal) {
        // SAFETY: needed because the kernel gives the description as a pointer. It is of 128 bytes on the thread's stack.
        let info = unsafe { &*info.cast::<toe::sys::SignalInfo>() };
        // SAFETY: the kernel's own.
        let mask = unsafe { mask_of(context) };
        let restarts = word & RESTARTS != 0;
        if signals::held_back(Came { signal: signal as usize, info, restarts, mask }) {
            // SAFETY: as above.
            return unsafe { signals::end_sleep(context) };
        }
    }
    let handler = core::ptr::with_exposed_provenance::<c_void>((word & !FLAGS) as usize);
    if handler.is_null() {
        return;
    }
    let running = signals::Handler::begin(word & RESTARTS != 0);
    // SAFETY: needed to call what the program has installed: it said itself which of the two forms the function has.
    unsafe {
        if word & WANTS_INFO != 0 {
            type WithInfo = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);
            core::mem::transmute::<*const c_void, WithInfo>(handler)(signal, info, context);
        } else {
            type Plain = unsafe extern "C-unwind" fn(c_int);
            core::mem::transmute::<*const c_void, Plain>(handler)(signal);
        }
        running.end(mask_of(context));
        signals::end_sleep(context);
    }
}

/// What will be blocked when the handler is over: the kernel's part of it.
///
/// # Safety
/// `context` is what the kernel gave a handler that still runs.
unsafe fn mask_of<'a>(context: *mut c_void) -> &'a mut u64 {
    // SAFETY: needed because the context is given as a pointer; the mask in it begins with the kernel's 64 bits, and is aligned.
    unsafe { &mut *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() }
}

/// Faults of memory, which may be the library's at what the program pointed to.
const fn is_of_memory(signal: c_int) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS)
}

/// Whether it was a fault that has a landing: the thread goes on there.
fn land(context: *mut c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: needed to learn and to change where the thread goes on. The kernel gives a handler with SA_SIGINFO its
        // context, on the thread's stack.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = &mut registers[libc::REG_RIP as usize];
        if let Some(landing) = toe::program_memory::landing(*at as usize) {
            *at = landing as libc::greg_t;
            return true;
        }
    }
    let _ = context;
    false
}

/// What the kernel does without a handler: a fault happens again when this returns, and ends the process then, with its
/// registers as they were; a signal that was sent does as much, unless it is ignored.
fn as_without_handler(signal: c_int, word: u64, is_fault: bool) {
    if !is_fault && word & !FLAGS == libc::SIG_IGN as u64 {
        return;
    }
    // SAFETY: all-zero actions are valid: SIG_DFL. Raised for itself, the signal is blocked until this returns.
    unsafe {
        let default: Action = core::mem::zeroed();
        real::sigaction(signal, &default, core::ptr::null_mut());
        if !is_fault {
            libc::raise(signal);
        }
    }
}

/// The kernel's action for SIGSEGV or SIGBUS where the program has no function, or none any more.
fn set_of_memory(signal: c_int, ignored: Option<Action>) {
    if let Some(slot) = slot(signal) {
        slot.store(ignored.map_or(0, |action| action.sa_sigaction as u64), Ordering::Release);
    }
    // SAFETY: all-zero actions are valid; two locals.
    unsafe {
        let mut ours: Action = core::mem::zeroed();
        (ours.sa_sigaction, ours.sa_flags) = (address_of_ours(), libc::SA_SIGINFO | libc::SA_ONSTACK);
        real::sigaction(signal, &ours, core::ptr::null_mut());
    }
}

/// Called once, when the library is loaded. What the program before has left stays: a
/// signal that is ignored is told to the program as such.
pub fn install() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: all-zero actions are valid; the kernel fills this one in.
        let (known, before) = unsafe {
            let mut before: Action = core::mem::zeroed();
            (real::sigaction(signal, core::ptr::null(), &mut before) == 0, before)
        };
        if known && !is_function(before.sa_sigaction) {
            set_of_memory(signal, Some(before));
            IS_INSTALLED.store(true, Ordering::Release);
        }
    }
}

/// [`install`] was called.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

fn address_of_ours() -> sighandler_t {
    on_signal as *const () as sighandler_t
}

fn word_of(action: &Action) -> u64 {
    let flag = |set: c_int, word: u64| if action.sa_flags & set != 0 { word } else { 0 };
    let restarts = flag(libc::SA_RESTART, RESTARTS);
    action.sa_sigaction as u64
        | flag(libc::SA_SIGINFO, WANTS_INFO)
        | flag(libc::SA_RESETHAND, ONCE)
        | restarts
}

/// What the kernel has, as the program had given it.
fn as_given(mut action: Action, word: u64) -> Action {
    if action.sa_sigaction == address_of_ours() {
        action.sa_sigaction = (word & !FLAGS) as sighandler_t;
        if word & WANTS_INFO == 0 {
            action.sa_flags &= !libc::SA_SIGINFO;
        }
        if word & ONCE != 0 {
            action.sa_flags |= libc::SA_RESETHAND;
        }
        if !is_function(action.sa_sigaction) {
            // The flags are ours.
            action.sa_flags = 0;
        }
    }
    action
}

/// Installs `new`, if there is one; the action before it.
fn exchange(signal: c_int, new: Option<Action>) -> Result<Action, ()> {
    // SAFETY: all-zero actions are valid; the kernel fills this one in.
    let mut before: Action = unsafe { core::mem::zeroed() };
    let Some(slot) = slot(signal) else {
        // SAFETY: a signal that does not exist: the C library says so.
        unsafe { real::sigaction(signal, core::ptr::null(), &mut before) };
        return Err(());
    };
    // A child of vfork shares our table, but not the kernel's.
    let caught = new.filter(|new| is_function(new.sa_sigaction) && !fork::in_vfork_child());
    let word = slot.load(Ordering::Acquire);
    let for_kernel = match caught {
        Some(action) => {
            // Before the kernel knows of it: there must be something to call.
            slot.store(word_of(&action), Ordering::Release);
            // The kernel would forget it at a fault of the library's own.
            let dropped = if is_of_memory(signal) { libc::SA_RESETHAND } else { 0 };
            let flags = action.sa_flags & !dropped | libc::SA_SIGINFO;
            Some(Action { sa_sigaction: address_of_ours(), sa_flags: flags, ..action })
        }
        None if is_of_memory(signal)
            && IS_INSTALLED.load(Ordering::Acquire)
            && !fork::in_vfork_child()
            && new.is_some() =>
        {
            // SAFETY: a local; nothing is changed.
            unsafe { real::sigaction(signal, core::ptr::null(), &mut before) };
            set_of_memory(signal, new);
            return Ok(as_given(before, word));
        }
        None => new,
    };
    let at = for_kernel.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: two locals, or null.
    if unsafe { real::sigaction(signal, at, &mut before) } != 0 {
        slot.store(word, Ordering::Release);
        return Err(());
    }
    Ok(as_given(before, word))
}

/// # Safety
/// As sigaction(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the program's arguments; either may be null, and both may be the same.
    let new = unsafe { new.as_ref() }.copied();
    match exchange(signal, new) {
        Ok(before) => {
            // SAFETY: as above.
            if let Some(old) = unsafe { old.as_mut() } {
                *old = before;
            }
            0
        }
        Err(()) => -1,
    }
}

fn simple(signal: c_int, handler: sighandler_t, flags: c_int, blocks_itself: bool) -> sighandler_t {
    // SAFETY: all-zero actions are valid; sigaddset gets a valid set and refuses a bad number.
    let mut action: Action = unsafe { core::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    if blocks_itself {
        // SAFETY: as above.
        unsafe { libc::sigaddset(&mut action.sa_mask, signal) };
    }
    exchange(signal, Some(action)).map_or(libc::SIG_ERR, |before| before.sa_sigaction)
}

/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupts = (1..64).contains(&signal) && INTERRUPTS.load(Ordering::Relaxed) & (1 << signal) != 0;
    simple(signal, handler, if interrupts { 0 } else { libc::SA_RESTART }, true)
}

/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { signal(number, handler) }
}

/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { signal(number, handler) }
}

/// # Safety
/// As sysv_signal(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    simple(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, false)
}

/// # Safety
/// As sysv_signal(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { sysv_signal(signal, handler) }
}

/// # Safety
/// As siginterrupt(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    if (1..64).contains(&signal) {
        if interrupts != 0 {
            INTERRUPTS.fetch_or(1 << signal, Ordering::Relaxed);
        } else {
            INTERRUPTS.fetch_and(!(1 << signal), Ordering::Relaxed);
        }
    }
    // SAFETY: the call takes numbers only.
    let result = unsafe { real::siginterrupt(signal, interrupts) };
    // It has told the kernel past us.
    if result == 0
        && let Some(slot) = slot(signal)
        && is_function((slot.load(Ordering::Acquire) & !FLAGS) as sighandler_t)
    {
        if interrupts != 0 {
            slot.fetch_and(!RESTARTS, Ordering::AcqRel);
        } else {
            slot.fetch_or(RESTARTS, Ordering::AcqRel);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use toe::signals::Inside;

    static CALLS: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C-unwind" fn count(_: c_int) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }

    /// One test, as signals are the process's. SIGURG is ignored unless somebody asks for it.
    #[test]
    fn handlers_wait_until_the_thread_is_outside() {
        let ours = count as *const () as sighandler_t;
        // SAFETY: valid actions; the handler only counts.
        unsafe {
            assert_eq!(signal(libc::SIGURG, ours), libc::SIG_DFL);
            libc::raise(libc::SIGURG);
            assert_eq!(CALLS.load(Ordering::Relaxed), 1);
            let inside = Inside::enter();
            libc::raise(libc::SIGURG);
            libc::raise(libc::SIGURG);
            assert_eq!(CALLS.load(Ordering::Relaxed), 1, "kept");
            drop(inside);
            assert_eq!(CALLS.load(Ordering::Relaxed), 2, "and sent again, once");

            // Each real-time signal counts.
            let real_time = libc::SIGRTMIN();
            assert_eq!(signal(real_time, ours), libc::SIG_DFL);
            let inside = Inside::enter();
            for _ in 0..5 {
                libc::raise(real_time);
            }
            assert_eq!(CALLS.load(Ordering::Relaxed), 2, "kept");
            drop(inside);
            assert_eq!(CALLS.load(Ordering::Relaxed), 7);

            let mut known: Action = core::mem::zeroed();
            assert_eq!(sigaction(libc::SIGURG, core::ptr::null(), &mut known), 0);
            assert_eq!((known.sa_sigaction, known.sa_flags & libc::SA_SIGINFO), (ours, 0), "as it was given");
            assert_ne!(known.sa_flags & libc::SA_RESTART, 0);
            assert_eq!(signal(libc::SIGURG, libc::SIG_DFL), ours);
            assert_eq!(signal(libc::SIGURG, libc::SIG_DFL), libc::SIG_DFL);
            assert_eq!(signal(0, ours), libc::SIG_ERR);
            assert_eq!(signal(libc::SIGKILL, ours), libc::SIG_ERR);
        }
    }
}
