//! Compiles the program that steers frames (`bpf/steer.bpf.c`) for the kernel's virtual machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "bpf/steer.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("steer.bpf.o");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let mut command = Command::new(&clang);
    // -g: the maps are described in the type information. The loader reads no other debug information.
    command.args(["-target", target(), "-O2", "-g", "-Wall", "-Wextra", "-c", SOURCE, "-o"]).arg(&out);
    // Debian keeps <asm/types.h> there, where clang looks only for its own machine.
    let include = format!("/usr/include/{arch}-linux-gnu");
    if Path::new(&include).exists() {
        command.args(["-isystem", &include]);
    }
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "{clang} failed on crates/port/{SOURCE}: {status}; if it misses <linux/bpf.h> or <asm/types.h>, install the \
             kernel's headers for programs (Debian: apt-get install linux-libc-dev)"
        ),
        Err(error) => panic!(
            "cannot run {clang}, which compiles crates/port/{SOURCE}: {error}; install it (Debian: apt-get install clang, \
             or scripts/setup.sh build), or set CLANG to its path"
        ),
    }
}

/// The kernel's virtual machine has the byte order of the machine.
fn target() -> &'static str {
    match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    }
}
