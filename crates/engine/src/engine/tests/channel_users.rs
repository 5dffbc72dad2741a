//! Whose sessions have channels with each other, and how many.

use super::direct::Machine;
use crate::hostif::channels::{SESSION_CHANNELS_MAX, SHARED_WITH_A_USER_MAX};

#[test]
fn users_who_do_not_trust_each_other_share_no_memory() {
    for (server, client, shares) in [(1, 2, false), (0, 2, true), (2, 0, true), (2, 2, true)] {
        let mut m = Machine::new(server);
        let client = m.attach(client);
        let ends = m.connect(client);
        m.messages(ends, 200);
        assert_eq!(m.offered(client).is_some(), shares, "{server} {client:?}");
    }
}

#[test]
fn sessions_of_one_user_do_not_take_all_channels_of_a_server() {
    let mut m = Machine::new(0);
    let mut shares = |uid: u32| {
        let client = m.attach(uid);
        let ends = m.connect(client);
        m.messages(ends, 4);
        m.offered(client).is_some()
    };
    let shared = (0..SESSION_CHANNELS_MAX).filter(|_| shares(1000)).count();
    assert_eq!(shared, SHARED_WITH_A_USER_MAX);
    assert!(shares(1001) && shares(0));
}
