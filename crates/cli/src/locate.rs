//! Where things are: engines' sockets, `toed`, the switch library.

use std::path::{Path, PathBuf};
use toe_abi::discovery;

/// Sockets at which the engine may be, in the order to try them. Without a name `TOE_ENGINE` decides, if set: inside
/// `toe run` the (first) engine of the running program is meant.
pub fn sockets(name: Option<&str>) -> Vec<PathBuf> {
    if name.is_none()
        && let Some(path) = std::env::var_os(discovery::ENGINE_VARIABLE).filter(|path| !path.is_empty())
    {
        return std::env::split_paths(&path).collect();
    }
    let name = name.unwrap_or(discovery::DEFAULT_ENGINE);
    let euid = rustix::process::geteuid().as_raw();
    let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
    let dirs = discovery::search_dirs(euid, xdg.as_deref());
    dirs.iter().map(|dir| PathBuf::from(discovery::socket_path(dir, name))).collect()
}

/// The sockets of all engines that this user may find, by name. Some may be left over from engines that were killed.
pub fn all_sockets() -> Vec<PathBuf> {
    let euid = rustix::process::geteuid().as_raw();
    let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
    let dirs = discovery::search_dirs(euid, xdg.as_deref());
    let files =
        |dir: &String| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut sockets: Vec<PathBuf> = dirs.iter().flat_map(files).collect();
    sockets.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    sockets.sort_by_key(|path| name_of(path));
    sockets
}

/// The engine's name, from its socket.
pub fn name_of(socket: &Path) -> String {
    socket.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

/// A program of OpenTOE's: beside this one, else in `$PATH`.
pub fn program(name: &str) -> Option<PathBuf> {
    let beside = own_dir().map(|dir| dir.join(name));
    let in_path = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).map(|dir| dir.join(name)).collect::<Vec<_>>());
    beside.into_iter().chain(in_path).find(|path| path.is_file())
}

/// Where the switch library may be, best first.
pub fn switch_library_places() -> Vec<PathBuf> {
    const FILE: &str = "libtoe_switch.so";
    let Some(dir) = own_dir() else { return Vec::new() };
    let mut places = vec![dir.join(FILE)];
    if let Some(prefix) = dir.parent() {
        places.push(prefix.join("lib").join(FILE));
        places.push(prefix.join("lib/opentoe").join(FILE));
    }
    places
}

/// The directory of this program, links resolved.
pub fn own_dir() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?.canonicalize().ok()?;
    own.parent().map(Path::to_path_buf)
}
