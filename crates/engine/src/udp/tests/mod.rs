//! Tests of what holds UDP's state; those between two engines are in `engine/tests/datagrams`.

mod sockets;
mod transmit;
