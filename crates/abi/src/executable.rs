//! What a program's file says of how it starts, as the kernel and the loader read it: whose interpreter a script wants, and which loader,
//! so which C library, a program is of. The switch library kills a program of another one: the loader misses names that the library
//! needs. Used by `toe run` and, for what programs execute, by the switch layer; reading is theirs.

use memchr::memmem;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes of a file's start that are looked at: the headers, and Go's note, which its linker puts behind them.
pub const START_LEN: usize = 8192;
/// A script's interpreter may be a script.
const INTERPRETERS_MAX: u32 = 4;

/// Kinds of segments.
pub const PT_INTERP: u32 = 3;
pub const PT_NOTE: u32 = 4;
/// Of an entry in the table of segments, in a program of 64 bits.
const SEGMENT_LEN: usize = 56;

/// The newest version of the GNU C library that the switch library needs names of, as that library's loader has it in its file.
pub const NEEDED_VERSION: &[u8] = b"GLIBC_2.34\0";

/// Whether the switch library does with the C library of this loader, by the loader's file.
pub fn does_with(loader: &[u8]) -> bool {
    memmem::find(loader, NEEDED_VERSION).is_some()
}

/// The file that is executed in the end, and its start, for a command as execvp(3) has it. `start_of` is asked for the start of a file,
/// and is `None` for what cannot be executed; `path` is the variable PATH.
pub fn executed(
    command: &OsStr,
    path: Option<&OsStr>,
    start_of: impl Fn(&Path) -> Option<Vec<u8>>,
) -> Option<(PathBuf, Vec<u8>)> {
    let find = |command: &OsStr| {
        if command.as_bytes().contains(&b'/') {
            let start = start_of(Path::new(command))?;
            return Some((PathBuf::from(command), start));
        }
        let mut files = std::env::split_paths(path?).map(|dir| dir.join(command));
        files.find_map(|file| start_of(&file).map(|start| (file, start)))
    };
    let (mut file, mut start) = find(command)?;
    for _ in 0..INTERPRETERS_MAX {
        let Some((interpreter, is_searched)) = interpreter_of(&start) else { return Some((file, start)) };
        if is_searched {
            (file, start) = find(interpreter)?;
        } else {
            file = PathBuf::from(interpreter);
            start = start_of(&file)?;
        }
    }
    None
}

/// What a script names on its first line; that of `env` is what it looks for, on the path.
fn interpreter_of(start: &[u8]) -> Option<(&OsStr, bool)> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = OsStr::from_bytes(words.next()?);
    if Path::new(first).file_name() != Some(OsStr::new("env")) {
        return Some((first, false));
    }
    Some((OsStr::from_bytes(words.find(|word| !word.starts_with(b"-"))?), true))
}

/// The path of the loader that a program of 64 bits names.
pub fn loader_of(start: &[u8]) -> Option<&Path> {
    let index = segments(start)?.iter().position(|kind| *kind == PT_INTERP)?;
    let header = number(start, 32, 8)?.checked_add(index.checked_mul(SEGMENT_LEN)?)?;
    let (from, len) = (number(start, header.checked_add(8)?, 8)?, number(start, header.checked_add(32)?, 8)?);
    let path = start.get(from..from.checked_add(len)?)?;
    let path = path.split(|byte| *byte == 0).next()?;
    Some(Path::new(OsStr::from_bytes(path)))
}

/// The kinds of the segments of a program of 64 bits.
pub fn segments(start: &[u8]) -> Option<Vec<u32>> {
    let (table, size, count) = (number(start, 32, 8)?, number(start, 54, 2)?, number(start, 56, 2)?);
    (0..count)
        .map(|n| number(start, table.checked_add(n.checked_mul(size)?)?, 4).map(|kind| kind as u32))
        .collect()
}

fn number(start: &[u8], at: usize, len: usize) -> Option<usize> {
    let bytes = start.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose only segment names this loader.
    fn of_loader(path: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64 + SEGMENT_LEN];
        (file[32], file[54], file[56], file[64]) = (64, SEGMENT_LEN as u8, 1, PT_INTERP as u8);
        file[64 + 8] = (64 + SEGMENT_LEN) as u8;
        file[64 + 32] = path.len() as u8;
        file.extend(path);
        file
    }

    #[test]
    fn a_program_names_its_loader() {
        let file = of_loader(b"/lib/ld-musl-x86_64.so.1\0");
        assert_eq!(loader_of(&file), Some(Path::new("/lib/ld-musl-x86_64.so.1")));
        assert_eq!(loader_of(&file[..100]), None, "cut off");
        assert_eq!(loader_of(b"#!/bin/sh"), None);
        let mut far = file;
        far[32..40].fill(0xff);
        assert_eq!((segments(&far), loader_of(&far)), (None, None), "a table beyond everything");
    }

    #[test]
    fn a_script_is_its_interpreters() {
        let start_of = |file: &Path| match file.to_str()? {
            "/x/script" => Some(b"#! /usr/bin/env -S tool -e\nx".to_vec()),
            "/b/tool" => Some(b"#!/bin/sh -e".to_vec()),
            "/bin/sh" => Some(b"\x7fELF".to_vec()),
            "/x/self" => Some(b"#!/x/self".to_vec()),
            _ => None,
        };
        let path = Some(OsStr::new("/a:/b"));
        let executed = |command: &str| executed(OsStr::new(command), path, start_of).map(|(file, _)| file);
        for command in ["/x/script", "tool", "/bin/sh"] {
            assert_eq!(executed(command), Some(PathBuf::from("/bin/sh")), "{command}");
        }
        assert_eq!((executed("/x/self"), executed("sh"), executed("/nowhere")), (None, None, None));
    }

    #[test]
    fn an_older_library_does_not_do() {
        assert!(does_with(b"\0GLIBC_2.33\0GLIBC_2.34\0GLIBC_2.35\0"));
        assert!(!does_with(b"\0GLIBC_2.2.5\0GLIBC_2.3\0GLIBC_2.31\0"));
    }
}
