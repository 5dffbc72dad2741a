//! A panic inside a run is a finding, not the end of the simulator: it is kept with its place instead of being printed.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if IN_RUN.get() {
                LAST.set(panic.to_string());
            } else {
                print(panic);
            }
        }));
    });
}

/// What `work` comes to, or the text and place of its panic.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    install();
    IN_RUN.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IN_RUN.set(false);
    result.map_err(|_| LAST.take())
}
