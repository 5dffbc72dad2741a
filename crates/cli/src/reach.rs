//! Programs that the switch layer cannot get under: `toe run` says so at once, as such a program runs on the kernel's stack
//! without a word otherwise. A file is looked at as the kernel and the loader do; what cannot be read is not spoken of.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Octets of a file's start that are looked at: the headers, and Go's note, which its linker puts behind them.
const START_LEN: u64 = 8192;
/// A script's interpreter may be a script.
const INTERPRETERS_MAX: u32 = 4;

const ELF_MAGIC: &[u8] = b"\x7fELF\x02\x01";
const ELF_32_MAGIC: &[u8] = b"\x7fELF\x01";
/// Where a file's capabilities are kept (capabilities(7)).
const FILE_CAPABILITIES: &str = "security.capability";
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// The name in Go's note, with its type: the build's id.
const GO_NOTE: &[u8] = b"\x04\x00\x00\x00Go\x00\x00";

/// Why the layer cannot be under this program, and what to do; `None`: it can, as far as the file tells.
pub fn hindrance(command: &OsStr) -> Option<String> {
    let mut path = find(command)?;
    for _ in 0..INTERPRETERS_MAX {
        let start = start_of(&path)?;
        match interpreter_of(&start) {
            Some(interpreter) => path = interpreter,
            None => return of_program(&path, &start),
        }
    }
    None
}

/// The file that is run, as execvp(3) finds it.
fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(command));
    }
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(command)).find(is_program)
}

fn start_of(path: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(START_LEN).read_to_end(&mut start).ok()?;
    Some(start)
}

/// What a script names on its first line; that of `env` is what it looks for.
fn interpreter_of(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|octet| *octet == b'\n').next()?;
    let mut words = line.split(|octet| octet.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first.to_owned());
    }
    find(OsStr::from_bytes(words.find(|word| !word.starts_with(b"-"))?))
}

fn of_program(path: &Path, start: &[u8]) -> Option<String> {
    let shown = path.display();
    if !start.starts_with(ELF_MAGIC) {
        return start.starts_with(ELF_32_MAGIC).then(|| {
            format!(
                "{shown} is a 32-bit program, and the library is not: its sockets stay with the kernel. Use its 64-bit build"
            )
        });
    }
    let is_go = start.windows(GO_NOTE.len()).any(|window| window == GO_NOTE);
    let segments = segments(start)?;
    let has = |kind| segments.contains(&kind);
    if is_go && has(PT_NOTE) {
        return Some(format!(
            "{shown} is a Go program, which makes its system calls itself and not by the C library: its sockets stay with the kernel"
        ));
    }
    if !has(PT_INTERP) {
        return Some(format!(
            "{shown} is statically linked, so no library can be put under it: its sockets stay with the kernel. Link it dynamically"
        ));
    }
    let found = path.metadata().ok()?;
    let (mode, ours) = (found.permissions().mode(), rustix::process::geteuid());
    let becomes_other =
        (mode & 0o4000 != 0 && found.uid() != ours.as_raw()) || mode & 0o2000 != 0 && !ours.is_root();
    if becomes_other {
        return Some(format!(
            "{shown} changes its user or group when it starts, and the loader then puts no library under it: its sockets stay with the kernel. Start it as that user"
        ));
    }
    // Root gains nothing by them, and its programs are not taken for such.
    let gains = !ours.is_root() && rustix::fs::getxattr(path, FILE_CAPABILITIES, &mut [0; 64]).is_ok();
    gains.then(|| {
        format!(
            "{shown} has file capabilities, and the loader then puts no library under it: its sockets stay with the kernel. Start it as root, or give a copy without them the capabilities it needs as ambient ones (setpriv --ambient-caps)"
        )
    })
}

/// The kinds of a program's segments.
fn segments(start: &[u8]) -> Option<Vec<u32>> {
    let number = |at: usize, len: usize| {
        let octets = start.get(at..at.checked_add(len)?)?;
        Some(octets.iter().rev().fold(0u64, |value, octet| value << 8 | u64::from(*octet)))
    };
    let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    (0..count).map(|n| number(table.checked_add(n * size)?, 4).map(|kind| kind as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(kinds: &[u32], tail: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..ELF_MAGIC.len()].copy_from_slice(ELF_MAGIC);
        (file[32], file[54], file[56]) = (64, 56, kinds.len() as u8);
        for kind in kinds {
            file.extend(kind.to_le_bytes());
            file.extend([0; 52]);
        }
        file.extend(tail);
        file
    }

    fn of(octets: &[u8]) -> Option<String> {
        // Its mode is looked at, too.
        of_program(Path::new("/dev/null"), octets)
    }

    #[test]
    fn what_the_layer_cannot_get_under_is_told() {
        assert_eq!(of(&program(&[1, PT_INTERP, 2], b"")), None);
        assert!(of(&program(&[1, 2], b"")).expect("static").contains("statically linked"));
        assert!(of(&program(&[1, PT_NOTE], GO_NOTE)).expect("Go").contains("Go program"));
        assert!(of(&program(&[PT_INTERP, PT_NOTE], GO_NOTE)).expect("Go with C").contains("Go program"));
        assert_eq!(of(&program(&[1; 200], b"")[..300]), None, "a table beyond what was read");
        assert_eq!(of(b"no program"), None);
        assert!(of(b"\x7fELF\x01\x01").expect("of 32 bits").contains("32-bit"));
    }

    #[test]
    fn a_script_is_its_interpreters() {
        assert_eq!(interpreter_of(b"#! /bin/sh -e\nx"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(interpreter_of(b"#!/usr/bin/env -S sh -e\nx"), find(OsStr::new("sh")));
        assert_eq!(interpreter_of(b"\x7fELF"), None);
        assert_eq!(hindrance(OsStr::new("sh")), None);
        assert_eq!(hindrance(OsStr::new("/nonexistent/program")), None);
    }
}
