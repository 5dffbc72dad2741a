//! Whether this program makes system calls past the C library that an engine's sockets have a part in
//! (`toe_abi::own_calls`): then all of its sockets stay with the kernel. Asked by `connect.rs` before an engine is, so that a
//! program without sockets pays nothing; what was loaded is looked at once, and what is loaded later (`calls::load`) then.

use crate::debug;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::ffi::OsStr;
use toe_abi::own_calls;

/// What is known: one of the three below, or how often something was loaded since the last look.
static KNOWN: AtomicU32 = AtomicU32::new(NOT_LOOKED);
const NOT_LOOKED: u32 = 0;
const NONE: u32 = 1;
const FOUND: u32 = 2;
/// The user says that they are none on sockets.
const IGNORED: u32 = 3;

/// Where what was looked at already lies. A program with more is looked at from the start each time.
static LOOKED_AT: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];

/// Called once, when the library is loaded, with what the environment says.
pub fn heed(value: Option<&OsStr>) {
    if value.is_some_and(|value| value == "ignore") {
        KNOWN.store(IGNORED, Ordering::Relaxed);
    }
}

/// Something is about to be loaded.
pub fn note_loading() {
    let _ = KNOWN.compare_exchange(NONE, NOT_LOOKED, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether there are such calls in what is loaded now.
pub fn found() -> bool {
    match KNOWN.load(Ordering::Acquire) {
        NOT_LOOKED => look(),
        known => known == FOUND,
    }
}

#[cold]
fn look() -> bool {
    // Before the look: what is loaded meanwhile makes it due again.
    let _ = KNOWN.compare_exchange(NOT_LOOKED, NONE, Ordering::AcqRel, Ordering::Relaxed);
    // SAFETY: needed because the loader alone knows what is mapped where. The callback does as it says, and there is no data.
    let found = unsafe { libc::dl_iterate_phdr(Some(each), core::ptr::null_mut()) } != 0;
    if found {
        KNOWN.store(FOUND, Ordering::Release);
    }
    found
}

/// Looks at one loaded object; 1: it has such calls, and the rest need not be looked at.
unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: needed to read what the loader tells; valid for as long as this call.
    let info = unsafe { &*info };
    // SAFETY: as above; a string of the loader's, or null.
    let path = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
    if own_calls::is_exempt(path.to_bytes()) || !is_new(info.dlpi_phdr.addr()) {
        return 0;
    }
    // SAFETY: needed as above: the object's program headers, so many.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let code = libc::PF_X | libc::PF_R;
    for header in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & code == code) {
        let at = core::ptr::with_exposed_provenance::<u8>((info.dlpi_addr + header.p_vaddr) as usize);
        // SAFETY: needed to look at the text itself. The loader has mapped it, readable, and the object cannot be unloaded
        // while the loader calls this; its file's part is there in whole, as the loader would not run it otherwise.
        let text = unsafe { core::slice::from_raw_parts(at, header.p_filesz as usize) };
        if own_calls::are_in(text) {
            debug::log(format_args!("{} makes socket calls past the C library", path.to_string_lossy()));
            return 1;
        }
    }
    0
}

/// Whether this one was not looked at before; from now on it was.
fn is_new(headers: usize) -> bool {
    for slot in &LOOKED_AT {
        match slot.compare_exchange(0, headers, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(known) if known == headers => return false,
            Err(_) => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests' own program has rustix's calls in it.
    #[test]
    fn calls_past_the_c_library_are_found_in_what_is_loaded() {
        assert!(found() && found());
        note_loading();
        assert!(found(), "for good");
    }
}
