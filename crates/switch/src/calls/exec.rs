//! exec and posix_spawn: a program that gets an engine's socket from this one must be under the switch layer, too, or it has
//! a descriptor that it can do nothing with. Programs that make an environment of their own for what they execute (nginx's
//! upgrade, systemd-socket-activate, Dovecot) leave out what `toe run` has put there. It is put back when a socket of an
//! engine's goes along, and when all of it is gone, as sockets may come in messages later; who takes out the preloaded library
//! alone means it. From a program of another C library it is taken away, as that would not start with it (`calls::other_library`).
//!
//! The C library's own functions execute inside it, so each of them is defined here: by [`execve`] and [`execvpe`].

use super::other_library::{self, Loader, ToExecute};
use crate::ffi::guarded;
use crate::{fork, policy, real, tables};
use core::ffi::{CStr, c_char, c_int};
use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use std::ffi::CString;
use std::sync::OnceLock;

/// What this program has that the next one is to have.
#[derive(Debug)]
struct Ours {
    /// The variables of `toe run`, as NAME=value.
    variables: Vec<CString>,
    loader: Option<Loader>,
}

static OURS: OnceLock<Ours> = OnceLock::new();

const NAMES: [&str; 6] = [
    "LD_PRELOAD",
    toe_abi::discovery::ENGINE_VARIABLE,
    toe_abi::policy::POLICY_VARIABLE,
    toe_abi::why::TALLY_VARIABLE,
    toe_abi::why::OWN_CALLS_VARIABLE,
    "TOE_DEBUG",
];

/// Called once, when the library is loaded.
pub fn remember() {
    let variable = |name: &&str| {
        let value = toe::environment::var_os(name)?;
        CString::new([name.as_bytes(), b"=", value.as_encoded_bytes()].concat()).ok()
    };
    let variables = NAMES.iter().filter_map(variable).collect();
    let _ = OURS.set(Ours { variables, loader: other_library::own_loader() });
}

/// An environment for what is executed next.
#[derive(Debug)]
struct Environment {
    /// Strings of the program's and ours, then null.
    all: Vec<*mut c_char>,
    /// What one of them is, that neither has.
    _made: Option<CString>,
}

impl Environment {
    fn as_ptr(&self) -> *const *mut c_char {
        self.all.as_ptr()
    }
}

/// An environment with what is missing of ours, without the library if it would end the program; `None`: `envp` does as it is.
///
/// # Safety
/// `envp` is null or an array of strings that ends with null.
unsafe fn completed(envp: *const *mut c_char, named: Option<ToExecute>) -> Option<Environment> {
    // SAFETY: the caller's promise.
    let (mut all, is_completed) = unsafe { with_ours(envp) }?;
    // SAFETY: strings of the caller's array, and of this library.
    let text_of = |entry: &*mut c_char| unsafe { CStr::from_ptr(*entry) }.to_bytes();
    let preload = all.iter().position(|entry| text_of(entry).starts_with(other_library::PRELOAD));
    let own = OURS.get().and_then(|ours| ours.loader);
    let spared =
        preload.and_then(|at| Some((at, other_library::spared(text_of(&all[at]), named.as_ref()?, own)?)));
    if !is_completed && spared.is_none() {
        return None;
    }
    let _made = spared.map(|(at, without)| {
        all[at] = without.as_ptr().cast_mut();
        without
    });
    all.push(core::ptr::null_mut());
    Some(Environment { all, _made })
}

/// All strings of an environment, with what is missing of ours, and whether anything was. `None`: this library does nothing here.
///
/// # Safety
/// As [`completed`].
unsafe fn with_ours(envp: *const *mut c_char) -> Option<(Vec<*mut c_char>, bool)> {
    let ours = &OURS.get().filter(|_| policy::may_have_engine())?.variables;
    let mut all = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = envp;
        while !at.is_null() && !(*at).is_null() {
            all.push(*at);
            at = at.add(1);
        }
    }
    let name_of = |text: &[u8]| text.iter().position(|byte| *byte == b'=').map(|end| text[..end].to_vec());
    let has = |wanted: &CString| {
        // SAFETY: strings of the caller's array.
        all.iter()
            .any(|entry| name_of(unsafe { CStr::from_ptr(*entry) }.to_bytes()) == name_of(wanted.to_bytes()))
    };
    let missing: Vec<&CString> = ours.iter().filter(|variable| !has(variable)).collect();
    if missing.is_empty() || missing.len() < ours.len() && !tables::passes_sockets() {
        return Some((all, false));
    }
    all.extend(missing.into_iter().map(|variable| variable.as_ptr().cast_mut()));
    Some((all, true))
}

macro_rules! executing {
    ($($name:ident($($arg:ident: $type:ty),*; $envp:ident, $named:expr) -> c_int;)+) => {
        $(
            /// # Safety
            /// As the call of this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
                // What only this program could reach, the next one is to read. A child of vfork has nothing of its own.
                if !fork::in_vfork_child() {
                    guarded((), toe::fork::before_child);
                }
                // SAFETY: the program's environment.
                let completed = guarded(None, || unsafe { completed($envp.cast(), $named) });
                let $envp = completed.as_ref().map_or($envp.cast(), |all| all.as_ptr()).cast();
                // SAFETY: the program's arguments, handed on; the new environment lives as long as the call.
                unsafe { real::$name($($arg),*) }
            }
        )+
    };
}

unsafe extern "C" {
    /// The program's environment as it is now.
    static environ: *const *const c_char;
}

fn environment() -> *const *const c_char {
    // SAFETY: needed because it is the C library's variable, which its own functions read in the same way.
    unsafe { environ }
}

/// # Safety
/// As execv(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { execve(path, argv, environment()) }
}

/// # Safety
/// As execvp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { execvpe(file, argv, environment()) }
}

/// execl, execlp and execle have their arguments one by one: five in registers, and the rest on the stack. They are put into
/// one row (`first`, then `rest`), which ends with null; of execle the environment follows.
///
/// # Safety
/// As the call that it is of: `first` has five pointers, and what follows is at `rest`.
unsafe fn execute_listed(
    file: *const c_char,
    first: *const *const c_char,
    rest: *const *const c_char,
    how: Listed,
) -> c_int {
    const IN_REGISTERS: usize = 5;
    // SAFETY: the caller's promise; nothing is read behind the null that ends the row, but execle's environment.
    let nth = |n: usize| unsafe {
        if n < IN_REGISTERS { first.add(n).read() } else { rest.add(n - IN_REGISTERS).read() }
    };
    let count = (0..).take_while(|n| !nth(*n).is_null()).count();
    let argv: Vec<*const c_char> = (0..=count).map(nth).collect();
    // SAFETY: the program's arguments, handed on.
    unsafe {
        match how {
            Listed::Path => execve(file, argv.as_ptr(), environment()),
            Listed::File => execvpe(file, argv.as_ptr(), environment()),
            Listed::WithEnvironment => execve(file, argv.as_ptr(), nth(count + 1).cast()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Listed {
    Path,
    File,
    WithEnvironment,
}

macro_rules! listed {
    ($($name:ident by $inner:ident as $how:expr;)+) => {
        $(
            unsafe extern "C" fn $inner(
                file: *const c_char,
                first: *const *const c_char,
                rest: *const *const c_char,
            ) -> c_int {
                // SAFETY: what the function below has put together.
                unsafe { execute_listed(file, first, rest, $how) }
            }

            /// Stable Rust defines no function with any number of arguments: so this puts those of the registers (System V ABI,
            /// section 3.2.3) on the stack and hands on where they are, and where the caller put the rest.
            ///
            /// # Safety
            /// As the call of this name.
            #[cfg(target_arch = "x86_64")]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                core::arch::naked_asm!(
                    "sub rsp, 40",
                    "mov [rsp], rsi", "mov [rsp + 8], rdx", "mov [rsp + 16], rcx", "mov [rsp + 24], r8",
                    "mov [rsp + 32], r9",
                    "mov rsi, rsp", "lea rdx, [rsp + 48]",
                    "call {inner}",
                    "add rsp, 40", "ret",
                    inner = sym $inner
                )
            }
        )+
    };
}

listed! {
    execl by list_by_path as Listed::Path;
    execlp by list_by_file as Listed::File;
    execle by list_with_environment as Listed::WithEnvironment;
}

executing! {
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char; envp, ToExecute::file(path)) -> c_int;
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char; envp, ToExecute::command(file)) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char; envp, ToExecute::at(fd, c"".as_ptr())) -> c_int;
    execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int; envp, ToExecute::at(dir, path)) -> c_int;
}

macro_rules! spawning {
    ($($name:ident by $named:ident;)+) => {
        $(
            /// # Safety
            /// As posix_spawn(3).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name(
                pid: *mut pid_t,
                file: *const c_char,
                actions: *const posix_spawn_file_actions_t,
                attributes: *const posix_spawnattr_t,
                argv: *const *mut c_char,
                envp: *const *mut c_char,
            ) -> c_int {
                // What the actions do to descriptors only the C library knows.
                if actions.is_null() { super::process::before_spawn() } else { super::process::before_child() }
                // SAFETY: the program's environment.
                let completed = guarded(None, || unsafe { completed(envp, ToExecute::$named(file)) });
                let envp = completed.as_ref().map_or(envp, |all| all.as_ptr());
                // SAFETY: the program's arguments, handed on; the new environment lives as long as the call.
                let result = unsafe { real::$name(pid, file, actions, attributes, argv, envp) };
                // Once more, for what other threads did in between.
                fork::note_new_process();
                result
            }
        )+
    };
}

spawning! { posix_spawn by file; posix_spawnp by command; pidfd_spawn by file; pidfd_spawnp by command; }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_engine_an_environment_stays_as_it_is() {
        remember();
        let mut environment = [core::ptr::null_mut()];
        // SAFETY: an empty environment.
        assert!(unsafe { completed(environment.as_mut_ptr(), None) }.is_none());
        assert!(!tables::is_directory(0) || !policy::may_have_engine());
    }
}
