//! A lab for one test alone, as [`toe_lab::lab`] makes it; here what fails is a failed test.

use crate::{bins, must};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use toe_lab::lab;

pub use toe_lab::lab::{
    ENGINE_ADDR, ENGINE_ADDR6, ENGINE_LINK, KERNEL_ADDR, KERNEL_PEER_ADDR, PEER_ADDR, PEER_ADDR6, Side,
    TAP_ENGINE_ADDR, TAP_ENGINE_ADDR6, TAP_KERNEL_ADDR6, TAP_LINK,
};

/// Namespaces and a directory; both go when this is dropped, with every process left in the namespaces.
#[derive(Debug)]
pub struct Lab(lab::Lab);

impl Lab {
    /// A new lab, both links up.
    ///
    /// # Panics
    /// Without root, or when the kernel refuses.
    pub fn new() -> Lab {
        assert!(
            rustix::process::geteuid().is_root(),
            "whole-program tests make network namespaces, which needs root: run `sudo env PATH=$PATH make test`"
        );
        let options = lab::Options { prefix: "toetest-", programs: bins::dir(), namespaces: true };
        let lab = must(lab::Lab::new(&options));
        std::fs::write(lab.dir().join("peer.py"), include_str!("peer.py")).expect("peer.py");
        Lab(lab)
    }

    /// A command on one side, on the kernel's stack.
    pub fn command(&self, side: Side, program: impl AsRef<Path>) -> Command {
        self.0.command(side, program)
    }

    /// A file of `len` bytes that do not repeat, the same for each test; gives its path and SHA-256.
    pub fn file(&self, name: &str, len: u64) -> (PathBuf, String) {
        let path = must(self.0.file(name, len));
        let sum = sha256(&path);
        (path, sum)
    }
}

impl Deref for Lab {
    type Target = lab::Lab;

    fn deref(&self) -> &lab::Lab {
        &self.0
    }
}

impl Default for Lab {
    fn default() -> Lab {
        Lab::new()
    }
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().expect("sha256sum");
    assert!(
        output.status.success(),
        "sha256sum {}: {}",
        path.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap_or_default().to_owned()
}
