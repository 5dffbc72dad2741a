//! `toe stop`: ends an engine and waits until it is gone.

use crate::Failure;
use crate::client::{Client, ClientError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::PidfdFlags;
use toe_abi::attach::Request;

/// An engine that stops tells its peers first; that takes milliseconds.
const GONE_WITHIN_SECS: i64 = 10;

/// Stop an engine
///
/// Its programs get ECONNRESET for their sockets on it and go on; new sockets of theirs are the kernel's. An engine that does not answer is
/// not stopped later, when it goes on, either.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the engine ('default' unless given)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub fn stop(args: &Args) -> Result<u8, Failure> {
    let client = Client::find(args.name.as_deref())?;
    let process =
        client.engine_pid().and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    match client.ask(Request::Stop) {
        // It may be gone before its answer could be sent.
        Ok(_) | Err(ClientError::NoAnswer(_)) => {}
        Err(error) => return Err(error.into()),
    }
    // Without a descriptor of the process the end of its connection must do.
    let mut fds = [match &process {
        Some(process) => PollFd::new(process, PollFlags::IN),
        None => PollFd::from_borrowed_fd(client.socket(), PollFlags::IN),
    }];
    let limit = Timespec { tv_sec: GONE_WITHIN_SECS, tv_nsec: 0 };
    match rustix::event::poll(&mut fds, Some(&limit)) {
        // Its links and its name are free: what is left is a thread that waits for a program in its descriptor's close.
        Ok(0) if has_hung_up(&client) => Ok(0),
        Ok(0) => Err(Failure::new(format!(
            "the engine has not ended within {GONE_WITHIN_SECS} s; see its log, or end it with kill -9"
        ))),
        Ok(_) => Ok(0),
        Err(error) => Err(Failure::new(format!("cannot wait for the engine's end: {error}"))),
    }
}

/// Whether the engine has ended the connection, which is the last thing that it does.
fn has_hung_up(client: &Client) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(client.socket(), PollFlags::empty())];
    let looked = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    looked.is_ok() && fds[0].revents().contains(PollFlags::HUP)
}
