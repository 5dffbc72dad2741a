//! The far end's link in real time: waiting for frames, taking them, sending one.

use crate::stack::StackError;
use rustix::event::{PollFd, PollFlags, poll};
use std::time::Duration;
use toe_port::Port;
use toe_wire::eth::{self, EthRepr};
use toe_wire::link::{RxOffload, TxOffload};

/// Frames taken from the link at a time.
const BATCH: usize = 64;

/// Waits until the link has frames, or so long.
pub fn wait(port: &dyn Port, us: u64) -> Result<(), StackError> {
    let Some(fd) = port.poll_fd() else { return Ok(()) };
    let limit = Duration::from_micros(us).try_into().map_err(|error| StackError::new("waiting", error))?;
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(StackError::new("waiting", error)),
    }
}

/// Takes the frames that wait at the link.
pub fn receive(port: &mut dyn Port, frames: &mut Vec<(Vec<u8>, RxOffload)>) -> Result<(), StackError> {
    port.receive(BATCH, &mut |frame, offload| frames.push((frame.to_vec(), offload)))
        .map(|_| ())
        .map_err(|error| StackError::new("taking frames from the link", error))
}

/// Sends one frame, which the link finishes as `offload` says.
pub fn send_frame(
    port: &mut dyn Port,
    header: EthRepr,
    packet: &[u8],
    offload: TxOffload,
) -> Result<(), StackError> {
    let none = || StackError("the link takes no frame".to_owned());
    let frame = port.transmit().frame(eth::HEADER_LEN + packet.len()).ok_or_else(none)?;
    header.emit(frame);
    frame[eth::HEADER_LEN..].copy_from_slice(packet);
    port.transmit().commit(offload);
    port.flush().map_err(|error| StackError::new("sending a frame", error))
}
