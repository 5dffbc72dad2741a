//! `include/evil.h` is what the sources say. `TOE_BLESS=1 cargo test -p toe-via --test header` writes it anew.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = crate_dir.join("../../include/evil.h");
    let config =
        cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let source = crate_dir.join("src/evil.rs");
    let builder = cbindgen::Builder::new().with_config(config).with_src(source);
    let mut made = Vec::new();
    builder.generate().expect("the sources parse").write(&mut made);
    let made = String::from_utf8(made).expect("the header is UTF-8");
    if std::env::var_os("TOE_BLESS").is_some() {
        std::fs::write(&header, &made).expect("include/evil.h can be written");
    }
    let kept = std::fs::read_to_string(&header).expect("include/evil.h is there");
    assert!(kept == made, "include/evil.h is out of date: run the test with TOE_BLESS=1");
}
