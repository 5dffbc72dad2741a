//! The environment, for all libraries of this interface: of a program that has got rights by being executed (set-user-id, set-group-id, file
//! capabilities) it is that of whoever executed it, and nothing of it counts, as with secure_getenv(3).

use std::ffi::OsString;

/// Whether the kernel says so (AT_SECURE).
pub fn is_secure() -> bool {
    // SAFETY: needed because the C library alone has it by now. The call takes a number and touches nothing.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

pub fn var_os(name: &str) -> Option<OsString> {
    if is_secure() { None } else { std::env::var_os(name) }
}

/// The same; what is no text is not there.
pub fn var(name: &str) -> Option<String> {
    var_os(name)?.into_string().ok()
}
