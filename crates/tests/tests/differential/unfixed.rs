//! Calls that are left out while what they would show is not mended. docs/compatibility.md lists them by number.

use crate::call::Call;
use crate::choose::Chooser;
use crate::linux::*;
use crate::world::Known;
use std::sync::OnceLock;

/// The call would show what is known.
pub fn shows(call: &Call, chooser: &Chooser<'_>) -> bool {
    let known = chooser.known(call.number(0));
    let is = |wanted: &dyn Fn(&Known) -> bool| known.as_ref().is_some_and(wanted);
    let n = |at: usize| call.number(at);
    let cases: &[(u32, bool)] = match call.name.as_str() {
        "pass" => &[(7, is(&Known::listens))],
        "fcntl" if n(1) == F_SETFL => {
            &[(12, n(2) & O_ASYNC != 0 && !is(&|one| one.is_closed() && one.seen.own_port == 0))]
        }
        _ => &[],
    };
    cases.iter().any(|(finding, shows)| *shows && !mended().contains(finding))
}

/// What `TOE_DIFFER_MENDED` lists: these are looked for again.
fn mended() -> &'static [u32] {
    static MENDED: OnceLock<Vec<u32>> = OnceLock::new();
    MENDED.get_or_init(|| {
        let list = std::env::var("TOE_DIFFER_MENDED").unwrap_or_default();
        list.split(',').filter_map(|number| number.trim().parse().ok()).collect()
    })
}
