//! epoll sets that threads sleep on while other threads change them.

use crate::files::expect_same;

/// Sets in sets too, several deep; by epoll_wait, poll and select.
#[test]
fn who_sleeps_on_a_set_is_told_of_what_comes_into_it() {
    expect_same("nested_epoll", &[&["7000"]]);
}

/// Sets that are closed, by numbers that are used again, armed for one event, or not asked for.
#[test]
fn a_set_tells_of_the_sets_in_it_as_often_as_linux() {
    expect_same("told_sets", &[&["7001"]]);
}
