//! exec and posix_spawn: a program that gets an engine's socket from this one must be under the switch layer, too, or it has
//! a descriptor that it can do nothing with. Programs that make an environment of their own for what they execute (nginx's
//! upgrade, systemd-socket-activate) leave out what `toe run` has put there; it is put back, and only when a socket of an
//! engine's goes along.

use crate::ffi::guarded;
use crate::listen::goes_over_exec;
use crate::{init, real};
use core::ffi::{CStr, c_char, c_int};
use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use std::ffi::CString;
use std::sync::OnceLock;
use toe::{fd_table, sys};

/// The variables of `toe run`, as NAME=value.
static OURS: OnceLock<Vec<CString>> = OnceLock::new();

const NAMES: [&str; 5] = [
    "LD_PRELOAD",
    toe_abi::place::ENGINE_VARIABLE,
    toe_abi::policy::POLICY_VARIABLE,
    toe_abi::why::TALLY_VARIABLE,
    "TOE_DEBUG",
];

/// Called once, when the library is loaded.
pub fn remember() {
    let variable = |name: &&str| {
        let value = std::env::var_os(name)?;
        CString::new([name.as_bytes(), b"=", value.as_encoded_bytes()].concat()).ok()
    };
    let _ = OURS.set(NAMES.iter().filter_map(variable).collect());
}

/// Whether a socket of an engine's, or a kernel socket that may become one, is open in the next program.
fn passes_sockets() -> bool {
    // A child of vfork has put a connection in the place of the standard ones without a word in our tables.
    let mut any = (0..=2).any(is_directory);
    fd_table::for_each(0, c_int::MAX, |fd| any |= fd_table::get(fd).is_some() && goes_over_exec(fd));
    any
}

/// As anchors are.
fn is_directory(fd: c_int) -> bool {
    rustix::fs::fstat(sys::borrow(fd)).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
    })
}

/// An environment with what is missing of ours; `None`: `envp` does as it is.
///
/// # Safety
/// `envp` is null or an array of strings that ends with null.
unsafe fn completed(envp: *const *mut c_char) -> Option<Vec<*mut c_char>> {
    let ours = OURS.get().filter(|_| init::has_engine() && !init::disabled())?;
    if !passes_sockets() {
        return None;
    }
    let mut all = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = envp;
        while !at.is_null() && !(*at).is_null() {
            all.push(*at);
            at = at.add(1);
        }
    }
    let name_of = |text: &[u8]| text.iter().position(|octet| *octet == b'=').map(|end| text[..end].to_vec());
    let has = |wanted: &CString| {
        // SAFETY: strings of the caller's array.
        all.iter()
            .any(|entry| name_of(unsafe { CStr::from_ptr(*entry) }.to_bytes()) == name_of(wanted.to_bytes()))
    };
    let missing: Vec<&CString> = ours.iter().filter(|variable| !has(variable)).collect();
    if missing.is_empty() {
        return None;
    }
    all.extend(missing.into_iter().map(|variable| variable.as_ptr().cast_mut()));
    all.push(core::ptr::null_mut());
    Some(all)
}

macro_rules! executing {
    ($($name:ident($($arg:ident: $type:ty),*; $envp:ident) -> c_int;)+) => {
        $(
            /// # Safety
            /// As the call of this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
                // SAFETY: the program's environment.
                let completed = guarded(None, || unsafe { completed($envp.cast()) });
                let $envp = completed.as_ref().map_or($envp.cast(), |all| all.as_ptr()).cast();
                // SAFETY: the program's arguments, handed on; the new environment lives as long as the call.
                unsafe { real::$name($($arg),*) }
            }
        )+
    };
}

executing! {
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char; envp) -> c_int;
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char; envp) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char; envp) -> c_int;
}

macro_rules! spawning {
    ($($name:ident)+) => {
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
                super::process::before_child();
                // SAFETY: the program's environment.
                let completed = guarded(None, || unsafe { completed(envp) });
                let envp = completed.as_ref().map_or(envp, |all| all.as_ptr());
                // SAFETY: the program's arguments, handed on; the new environment lives as long as the call.
                let result = unsafe { real::$name(pid, file, actions, attributes, argv, envp) };
                // Once more, for what other threads did in between.
                super::process::note_new_process();
                result
            }
        )+
    };
}

spawning! { posix_spawn posix_spawnp }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_without_sockets_to_pass_stays_as_it_is() {
        remember();
        let mut environment = [core::ptr::null_mut()];
        // SAFETY: an empty environment.
        assert!(unsafe { completed(environment.as_mut_ptr()) }.is_none());
        assert!(!is_directory(0) || !init::has_engine());
    }
}
