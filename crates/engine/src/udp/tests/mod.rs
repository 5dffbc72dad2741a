mod sockets;
mod transmit;
