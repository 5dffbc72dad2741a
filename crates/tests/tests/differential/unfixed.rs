//! Calls that are left out while what they would show is not mended. docs/compatibility.md lists them by number.

use crate::call::Call;
use crate::choose::Chooser;
use crate::linux::*;
use crate::world::{Kind, Known};
use std::sync::OnceLock;

/// The call would show what is known.
pub fn shows(call: &Call, chooser: &Chooser<'_>) -> bool {
    let known = chooser.known(call.number(0));
    let is = |wanted: &dyn Fn(&Known) -> bool| known.as_ref().is_some_and(wanted);
    let n = |at: usize| call.number(at);
    let all = &chooser.world.known;
    let kind = |fd: i64, kind: Kind| chooser.known(fd).is_none_or(|one| one.kind == kind);
    let cases: &[(u32, bool)] = match call.name.as_str() {
        "fork" | "pass" => &[(7, all.iter().any(Known::listens))],
        "fcntl" if n(1) == F_SETFL => {
            &[(12, n(2) & O_ASYNC != 0 && !is(&|one| one.is_closed() && one.seen.own_port == 0))]
        }
        "splice" => &[(14, kind(n(0), Kind::Tcp) || kind(n(1), Kind::Tcp))],
        "sendfile" => {
            &[(14, is(&Known::listens) || !chooser.known(n(1)).is_some_and(|one| one.kind == Kind::File))]
        }
        "epoll_ctl" => &[(14, n(3) < 0 && !chooser.known(n(0)).is_some_and(|one| one.kind == Kind::Epoll))],
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
