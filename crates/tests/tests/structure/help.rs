//! The help of `toe start` knows no crate of the engine's, so that it repeats what those have: all of it, by this.

use std::fs;
use toe_tests::bins::workspace;

const HELP: &str = "crates/cli/src/start.rs";

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).expect(path)
}

/// What stands between two texts in each line that has both.
fn between<'a>(text: &'a str, before: &'a str, after: &'a str) -> Vec<&'a str> {
    let found = |line: &'a str| line.trim_start().strip_prefix(before)?.split_once(after);
    text.lines().filter_map(found).map(|(name, _)| name).collect()
}

#[test]
fn the_help_has_each_driver_and_each_value_of_tcp() {
    let help = read(HELP);
    let source = read("crates/port/src/spec.rs");
    let drivers = between(&source, "name: \"", "\",");
    let source = read("crates/daemon/src/config/tcp.rs");
    let values = between(&source, "", ": Option<Setting<");
    assert!(drivers.contains(&"tap") && values.contains(&"ecn"), "{drivers:?}, {values:?}");
    let tcp = help.split_once("[tcp]").and_then(|(_, rest)| rest.split_once("[quota]")).expect("[tcp]").0;
    let has = |text: &str, start: &str| text.lines().any(|line| line.trim_start().starts_with(start));
    let drivers = drivers.iter().map(|name| (&*help, format!("{name}:")));
    let values = values.iter().map(|name| (tcp, format!("{name} = ")));
    let missing = drivers.chain(values).filter(|(text, start)| !has(text, start));
    let findings: Vec<String> = missing.map(|(_, start)| format!("no line begins with `{start}`")).collect();
    crate::expect_none(HELP, &findings);
}
