//! Histories with a violation planted, which the checker finds, and the same without it, of which it says nothing.

use crate::check::{Missing, ROOM, check};
use crate::history::{Call, Event, SLOTS, Side, listener_of};

const CONNECTION: u32 = SLOTS;
const EAGAIN: i64 = -11;
const IN: i64 = 1;
const RDHUP: i64 = 0x2000;

/// A call of ten time units that begins at `begin`.
fn at(begin: u64, side: Side, call: Call, result: i64) -> Event {
    Event { begin, end: begin + 10, call, side, connection: CONNECTION, result }
}

fn listener(begin: u64, call: Call, result: i64) -> Event {
    Event { connection: listener_of(CONNECTION), ..at(begin, Side::Listener, call, result) }
}

fn client(begin: u64, call: Call, result: i64) -> Event {
    at(begin, Side::Client, call, result)
}

fn server(begin: u64, call: Call, result: i64) -> Event {
    at(begin, Side::Server, call, result)
}

/// What is missing in a client's and a server's history: what, at which look, and how long ago it had returned.
fn missing(client: &[Event], server: &[Event]) -> Vec<(Missing, u64, u64)> {
    let found = check(&[client.to_vec(), server.to_vec()]);
    found.iter().map(|found| (found.missing, found.look.begin, found.age())).collect()
}

/// The connection is there and its bytes are, and all of it ends.
fn a_whole_connection() -> [Vec<Event>; 2] {
    [
        vec![
            client(0, Call::Connect, 0),
            client(20, Call::Send, 100),
            client(40, Call::Send, 50),
            client(60, Call::Shutdown, 0),
            client(200, Call::Recv, 30),
            client(220, Call::Recv, 0),
            client(240, Call::Close, 0),
        ],
        vec![
            // While connect has not returned, both answers are right.
            listener(5, Call::Accept, EAGAIN),
            listener(15, Call::Epoll, IN),
            server(20, Call::Accept, 0),
            server(32, Call::Unread, 100),
            server(45, Call::Recv, 100),
            server(80, Call::Unread, 50),
            server(100, Call::Poll, IN | RDHUP),
            server(120, Call::Recv, 50),
            server(140, Call::Recv, 0),
            server(150, Call::State, 8),
            server(160, Call::Send, 30),
            server(180, Call::Close, 0),
        ],
    ]
}

#[test]
fn of_a_history_that_is_right_nothing_is_said() {
    let [client, server] = a_whole_connection();
    assert_eq!(missing(&client, &server), []);
}

#[test]
fn bytes_are_missed_whose_send_has_returned() {
    let client = [client(0, Call::Connect, 0), client(20, Call::Send, 100), client(40, Call::Send, 50)];
    let begin = server(5, Call::Accept, 0);
    let looks = [
        (server(31, Call::Recv, EAGAIN), Some(1)),
        (server(30, Call::Recv, EAGAIN), None),
        (server(31, Call::Poll, 0), Some(1)),
        (server(35, Call::Epoll, RDHUP), Some(5)),
        (server(35, Call::Unread, 99), Some(5)),
        (server(45, Call::Unread, 100), None),
        (server(51, Call::Unread, 100), Some(1)),
        (server(35, Call::Recv, 0), None),
    ];
    for (look, age) in looks {
        let found = missing(&client, &[begin, look]);
        let expected: Vec<_> = age.map(|age| (Missing::Bytes, look.begin, age)).into_iter().collect();
        let lost = [(Missing::Lost, look.begin, 5)];
        let is_end = look.call == Call::Recv && look.result == 0;
        assert_eq!(found, if is_end { lost.to_vec() } else { expected }, "{look:?}");
    }
    // What has been read of them is not demanded again, and what has not is, since it was sent.
    let read = [begin, server(60, Call::Recv, 120), server(80, Call::Recv, EAGAIN)];
    assert_eq!(missing(&client, &read), [(Missing::Bytes, 80, 30)]);
    let read = [begin, server(60, Call::Recv, 150), server(80, Call::Recv, EAGAIN)];
    assert_eq!(missing(&client, &read), []);
}

#[test]
fn a_connection_is_missed_whose_connect_has_returned() {
    let client = [client(0, Call::Connect, 0)];
    let looks = [(Call::Accept, EAGAIN), (Call::Poll, 0), (Call::Epoll, 0)];
    for (call, result) in looks {
        let look = listener(17, call, result);
        assert_eq!(missing(&client, &[look]), [(Missing::Connection, 17, 7)], "{look:?}");
        assert_eq!(missing(&client, &[listener(10, call, result)]), [], "{look:?}");
        let taken = [server(12, Call::Accept, 0), listener(30, call, result)];
        assert_eq!(missing(&client, &taken), [], "{look:?}");
    }
    // Also one that its client has closed again.
    let closed = [client[0], at(20, Side::Client, Call::Close, 0)];
    assert_eq!(missing(&closed, &[listener(40, Call::Accept, EAGAIN)]), [(Missing::Connection, 40, 30)]);
    // One that could not be made is not waited for.
    let refused = [at(0, Side::Client, Call::Connect, -111)];
    assert_eq!(missing(&refused, &[listener(40, Call::Accept, EAGAIN)]), []);
}

#[test]
fn the_end_is_missed_whose_shutdown_or_close_has_returned() {
    for call in [Call::Shutdown, Call::Close] {
        let client = [client(0, Call::Connect, 0), client(20, Call::Send, 9), client(40, call, 0)];
        let begin = [server(5, Call::Accept, 0), server(32, Call::Recv, 9)];
        for (of, result) in [(Call::Recv, EAGAIN), (Call::Poll, IN), (Call::Epoll, 0), (Call::State, 1)] {
            let late = server(60, of, result);
            let found = missing(&client, &[begin[0], begin[1], late]);
            assert_eq!(found, [(Missing::End, 60, 10)], "{late:?} after {call:?}");
            let early = server(44, of, result);
            assert_eq!(missing(&client, &[begin[0], begin[1], early]), [], "{early:?} after {call:?}");
        }
        // Bytes before the end come first.
        let found = missing(&client, &[begin[0], server(60, Call::Recv, EAGAIN)]);
        assert_eq!(found, [(Missing::Bytes, 60, 30)]);
    }
}

#[test]
fn the_reset_is_missed_that_a_returned_call_was_answered_by() {
    let closes = [client(0, Call::Connect, 0), client(20, Call::Close, 0)];
    let begin = [server(5, Call::Accept, 0), server(40, Call::Send, 7)];
    let looks = [
        (Call::Send, 7, true),
        (Call::Send, EAGAIN, true),
        (Call::Send, -32, false),
        (Call::Poll, IN | RDHUP, true),
    ];
    for (call, result, is_missed) in looks {
        let look = server(60, call, result);
        let expected: &[_] = if is_missed { &[(Missing::Reset, 60, 10)] } else { &[] };
        assert_eq!(missing(&closes, &[begin[0], begin[1], look]), expected, "{look:?}");
    }
    // A close with bytes unread is a reset by itself, one at the end of them is not.
    let sent = [server(5, Call::Accept, 0), server(6, Call::Send, 7), server(60, Call::Send, 7)];
    assert_eq!(missing(&closes, &sent), [(Missing::Reset, 60, 30)]);
    let read = [closes[0], client(18, Call::Recv, 7), closes[1]];
    assert_eq!(missing(&read, &sent), []);
}

#[test]
fn room_is_missed_that_was_made_by_a_returned_recv() {
    let peer = [server(5, Call::Accept, 0), server(60, Call::Recv, 9000)];
    let own = |begin| {
        [client(0, Call::Connect, 0), client(20, Call::Send, 10_000), client(begin, Call::Send, EAGAIN)]
    };
    assert_eq!(missing(&own(65), &peer), []);
    assert_eq!(missing(&own(80), &peer), [(Missing::Room, 80, 10)]);
}

#[test]
fn what_finds_no_room_is_not_missed() {
    let much = 3 * ROOM.cast_signed();
    let connects = client(0, Call::Connect, 0);
    let sends = [connects, client(20, Call::Send, much), client(40, Call::Close, 0)];
    let begin = server(5, Call::Accept, 0);
    let counted = |bytes| missing(&sends[..2], &[begin, server(35, Call::Unread, bytes)]);
    assert_eq!(counted(ROOM.cast_signed()), []);
    assert_eq!(counted(ROOM.cast_signed() - 1), [(Missing::Bytes, 35, 5)]);
    assert_eq!(missing(&sends, &[begin, server(60, Call::Poll, IN)]), []);
    let most = server(52, Call::Recv, 2 * ROOM.cast_signed());
    assert_eq!(missing(&sends, &[begin, most, server(70, Call::Poll, IN)]), [(Missing::End, 70, 20)]);
    // A reset may take bytes along, an orderly end may not.
    let end = server(60, Call::Recv, 0);
    assert_eq!(missing(&sends, &[begin, server(6, Call::Send, 7), end]), []);
    assert_eq!(missing(&sends, &[begin, end]), [(Missing::Lost, 60, 30)]);
}
