//! Programs that take descriptors and address space away from themselves.

use crate::files::expect_same;

/// What they have open goes on, and what a limit leaves them is theirs.
#[test]
fn a_limit_leaves_a_program_what_it_leaves_it_on_linux() {
    expect_same("limits", &[&["7000"]]);
}

/// Neither one that leaves no room for the library's own entries of poll, nor one that falls while threads wait.
#[test]
fn a_limit_ends_no_wait_that_it_does_not_end_on_linux() {
    expect_same("limited_waits", &[&["7000"]]);
}
