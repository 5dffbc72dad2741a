//! Cold functions stand together in the library, as the compiler marks them.
//!
//! Among them are those that run at a fork: a child has a page fault for each part of the library that it comes through.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,keep-text-section-prefix");
}
