//! Keeps what is marked cold together in the library. A child of fork maps the library's code anew, sixteen pages at each first
//! touch: what runs at a fork lies side by side (`toe::fork`), and not among all that calls do.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,keep-text-section-prefix");
}
