//! Programs that the switch layer cannot get under: `toe run` says so at once, as such a program runs on the kernel's stack
//! without a word otherwise. A file is looked at as the kernel and the loader do; what cannot be read is not spoken of.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use toe_abi::executable::{self, PT_INTERP, PT_NOTE, segments};

const ELF_MAGIC: &[u8] = b"\x7fELF\x02\x01";
const ELF_32_MAGIC: &[u8] = b"\x7fELF\x01";
/// Where a file's capabilities are kept (capabilities(7)).
const FILE_CAPABILITIES: &str = "security.capability";
/// The name in Go's note, with its type: the build's id.
const GO_NOTE: &[u8] = b"\x04\x00\x00\x00Go\x00\x00";

/// What keeps the layer from being under a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// Why, and what to do.
    pub text: String,
    /// The program would not start with it, and is to run without.
    pub kills: bool,
}

/// Why the layer cannot be under this program; `None`: it can, as far as the file tells.
pub fn hindrance(command: &OsStr) -> Option<Hindrance> {
    let path = std::env::var_os("PATH");
    let (file, start) = executable::executed(command, path.as_deref(), start_of)?;
    other_library(&start).or_else(|| of_program(&file, &start).map(Hindrance::silent))
}

impl Hindrance {
    /// Of one that the loader leaves the layer out of by itself.
    fn silent(text: String) -> Hindrance {
        Hindrance { text, kills: false }
    }
}

/// The loader of another C library, or of an older one, than the layer was linked with: it would look for that library's names in vain, and
/// end the program.
fn other_library(start: &[u8]) -> Option<Hindrance> {
    let loader = executable::loader_of(start)?;
    let does = executable::does_with(&std::fs::read(loader).ok()?);
    (!does).then(|| Hindrance {
        text: format!(
            "the program is of another C library ({}) than OpenTOE's, or of an older one, under which it would not start: it runs without, and \
             its sockets stay with the kernel. Use a build of it for this system's C library",
            loader.display()
        ),
        kills: true,
    })
}

/// The start of what can be executed.
fn start_of(path: &Path) -> Option<Vec<u8>> {
    let found = path.metadata().ok()?;
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return None;
    }
    let mut start = Vec::new();
    File::open(path).ok()?.take(executable::START_LEN as u64).read_to_end(&mut start).ok()?;
    Some(start)
}

fn of_program(path: &Path, start: &[u8]) -> Option<String> {
    let presented = path.display();
    if !start.starts_with(ELF_MAGIC) {
        return start.starts_with(ELF_32_MAGIC).then(|| {
            format!(
                "{presented} is a 32-bit program, and the library is not: its sockets stay with the kernel. Use its 64-bit build"
            )
        });
    }
    let is_go = start.windows(GO_NOTE.len()).any(|window| window == GO_NOTE);
    let segments = segments(start)?;
    let has = |kind| segments.contains(&kind);
    if is_go && has(PT_NOTE) {
        return Some(format!(
            "{presented} is a Go program, which makes its system calls itself and not by the C library: its sockets stay with the kernel"
        ));
    }
    if !has(PT_INTERP) {
        return Some(format!(
            "{presented} is statically linked, so no library can be put under it: its sockets stay with the kernel. Link it dynamically"
        ));
    }
    let found = path.metadata().ok()?;
    let (mode, ours) = (found.permissions().mode(), rustix::process::geteuid());
    let becomes_other =
        (mode & 0o4000 != 0 && found.uid() != ours.as_raw()) || mode & 0o2000 != 0 && !ours.is_root();
    if becomes_other {
        return Some(format!(
            "{presented} changes its user or group when it starts, and the loader then puts no library under it: its sockets stay with the kernel. Start it as that user"
        ));
    }
    // Root gains nothing by them, and its programs are not taken for such.
    let gains = !ours.is_root() && rustix::fs::getxattr(path, FILE_CAPABILITIES, &mut [0; 64]).is_ok();
    gains.then(|| {
        format!(
            "{presented} has file capabilities, and the loader then puts no library under it: its sockets stay with the kernel. Start it as root, or give a copy without them the capabilities it needs as ambient ones (setpriv --ambient-caps)"
        )
    })
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

    fn of(bytes: &[u8]) -> Option<String> {
        // Its mode is looked at, too.
        of_program(Path::new("/dev/null"), bytes)
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
    fn who_is_of_this_systems_library_is_not_hindered() {
        assert_eq!(hindrance(OsStr::new("sh")), None);
        assert_eq!(hindrance(OsStr::new("/nonexistent/program")), None);
    }
}
