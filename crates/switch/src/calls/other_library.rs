//! Programs of another C library (musl, an older glibc) that this one executes: their loader would miss what this library needs and end
//! them, so they start without it, on the kernel's stack, and a line on standard error says so instead of the loader's. Called by
//! `calls::exec`, also between fork and exec.

use crate::debug;
use core::ffi::{CStr, c_char, c_int, c_void};
use rustix::fs::{Access, FileType, Mode, OFlags};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use toe::sys;
use toe_abi::executable::{self, START_LEN};

/// How the entry of an environment begins that names libraries.
pub(super) const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &str = "libtoe_switch.so";
/// Most bytes of a loader that are looked at.
const LOADER_MAX: usize = 4 << 20;

/// A loader's file, by file system and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loader(u64, u64);

/// The one that this program has: what names the same is of the same library.
pub(super) fn own_loader() -> Option<Loader> {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: needed to read what the loader tells, which is valid for as long as this call; the string is its own, or null.
        let name = unsafe { (*info).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) };
        let is_loader =
            name.to_bytes().rsplit(|byte| *byte == b'/').next().is_some_and(|last| last.starts_with(b"ld-"));
        let stat = is_loader.then(|| rustix::fs::stat(name).ok()).flatten();
        // SAFETY: the place below.
        unsafe { *found.cast::<Option<Loader>>() = stat.map(|stat| Loader(stat.st_dev, stat.st_ino)) };
        is_loader.into()
    }
    let mut found: Option<Loader> = None;
    // SAFETY: needed because the loader alone knows where it came from. The callback does as it says, with a place that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    found
}

/// What is to be executed.
#[derive(Debug)]
pub(super) struct ToExecute {
    command: OsString,
    is_searched: bool,
}

impl ToExecute {
    /// A file; without a directory in the current one.
    pub(super) fn file(path: *const c_char) -> Option<ToExecute> {
        ToExecute::at(libc::AT_FDCWD, path)
    }

    /// As execvp(3) has it. `None`: no string, and the call fails.
    pub(super) fn command(file: *const c_char) -> Option<ToExecute> {
        Some(ToExecute { command: text(file)?.to_owned(), is_searched: true })
    }

    /// A path in an open directory; the empty one: what is open.
    pub(super) fn at(dir: c_int, path: *const c_char) -> Option<ToExecute> {
        let path = Path::new(text(path)?);
        let from = if dir == libc::AT_FDCWD { ".".to_owned() } else { format!("/proc/self/fd/{dir}") };
        let joined = if path.as_os_str().is_empty() { from.into() } else { Path::new(&from).join(path) };
        Some(ToExecute { command: joined.into_os_string(), is_searched: false })
    }
}

fn text<'a>(string: *const c_char) -> Option<&'a OsStr> {
    if toe::program_memory::check(string.cast::<u8>(), 1).is_err() {
        return None;
    }
    // SAFETY: the program's string, as the call it made asks for, which lives as long as that call.
    Some(OsStr::from_bytes(unsafe { CStr::from_ptr(string) }.to_bytes()))
}

/// `entry` without this library, if what is to be executed would not start with it. `own`: this program's loader.
pub(super) fn spared(entry: &[u8], named: &ToExecute, own: Option<Loader>) -> Option<CString> {
    let is_ours =
        |library: &&[u8]| Path::new(OsStr::from_bytes(library)).file_name() == Some(OsStr::new(LIBRARY));
    let value = entry.strip_prefix(PRELOAD)?;
    let libraries = || value.split(|byte| matches!(byte, b':' | b' ')).filter(|library| !library.is_empty());
    libraries().find(is_ours)?;
    let path = named.is_searched.then(|| std::env::var_os("PATH")).flatten();
    let (file, start) = executable::executed(&named.command, path.as_deref(), start_of)?;
    let loader = executable::loader_of(&start)?;
    if does_with(loader, own)? {
        return None;
    }
    debug::say(format_args!(
        "{} is of another C library ({}), or of an older one: it runs without OpenTOE, and its sockets stay with the kernel",
        file.display(),
        loader.display()
    ));
    let others: Vec<&[u8]> = libraries().filter(|library| !is_ours(library)).collect();
    CString::new([PRELOAD, &others.join(&b':')].concat()).ok()
}

/// Whether this library does with that loader's C library; `None`: it cannot be read.
fn does_with(loader: &Path, own: Option<Loader>) -> Option<bool> {
    let file = open(loader)?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if own == Some(Loader(stat.st_dev, stat.st_ino)) {
        return Some(true);
    }
    Some(executable::does_with(&read(&file, LOADER_MAX.min(stat.st_size as usize))))
}

/// The start of what can be executed.
fn start_of(path: &Path) -> Option<Vec<u8>> {
    rustix::fs::access(path, Access::EXEC_OK).ok()?;
    open(path).map(|file| read(&file, START_LEN))
}

/// A regular file; opening another may wait.
fn open(path: &Path) -> Option<sys::Fd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map(sys::Fd::from).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(file)
}

/// As many bytes as there are, up to `most`.
fn read(file: &sys::Fd, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most];
    let mut len = 0;
    while let Ok(more @ 1..) = rustix::io::read(file, &mut bytes[len..]) {
        len += more;
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_this_loader_is_left_alone() {
        let own = own_loader();
        assert!(own.is_some());
        let sh = || ToExecute::command(c"sh".as_ptr()).expect("a string");
        let entry = b"LD_PRELOAD=/a.so:/x/libtoe_switch.so";
        assert_eq!(spared(entry, &sh(), own), None);
        assert_eq!(spared(entry, &sh(), None), None, "looked at, it does");
        assert_eq!(spared(b"LD_PRELOAD=/a.so", &sh(), None), None);
    }
}
