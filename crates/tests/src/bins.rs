//! Where the built programs are. `make test` builds them before it runs the tests and says where in `TOE_BIN_DIR`.

use std::env;
use std::path::{Path, PathBuf};

/// The directory that holds `toe`, `toed` and the libraries.
///
/// # Panics
/// When they are in none of the expected places.
pub fn dir() -> PathBuf {
    let mut places: Vec<PathBuf> = Vec::new();
    places.extend(env::var_os("TOE_BIN_DIR").map(PathBuf::from));
    places.extend(env::var_os("CARGO_TARGET_DIR").map(|dir| PathBuf::from(dir).join("release")));
    places.push(workspace().join("target/release"));
    let found = places.iter().find(|dir| dir.join("toe").exists() && dir.join("toed").exists());
    found.unwrap_or_else(|| panic!("no toe and toed in any of {places:?}: run `make build` first")).clone()
}

/// The path of a built program or library.
pub fn path(name: &str) -> PathBuf {
    dir().join(name)
}

/// The root of the source tree.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
