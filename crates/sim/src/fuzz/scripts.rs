//! Packet scripts: what is no script gives an error, and one that is runs against the engine to its end, whatever it
//! expects.

use std::path::Path;
use toe_script::engine::{EngineStack, LinkKind};
use toe_script::parse::parse;
use toe_script::run;

/// See the module.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let script = match parse(Path::new("fuzzed"), text) {
        Ok(script) => script,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    for kind in [LinkKind::Plain, LinkKind::Offloading] {
        // What it cannot be set up for is said, and so is what does not come as it expects.
        let result = EngineStack::new(&script.header, kind)
            .map(|mut stack| run::run(&script, &mut stack).map_err(|failure| failure.to_string()));
        if let Ok(Err(text)) = result {
            assert!(!text.is_empty());
        }
    }
}
