//! libFuzzer's door to the targets; TOE_FUZZ_TARGET says which. `make fuzz` builds and runs it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use toe_sim::fuzz::Target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TOE_FUZZ_TARGET").unwrap_or_default();
    Target::by_name(&name).unwrap_or_else(|| {
        let names: Vec<_> = Target::ALL.iter().map(|target| target.name()).collect();
        panic!("set TOE_FUZZ_TARGET to one of {names:?}, not `{name}`")
    })
});

fuzz_target!(|data: &[u8]| {
    TARGET.run(data);
});
