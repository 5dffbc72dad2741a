//! `toe-cable`: a wire between two TAP interfaces, as bad and as slow as it is told to be. Two stacks that talk over it
//! meet the same link whatever they are: each frame is one segment, and is lost, delayed or queued by itself.
//!
//! Used by `make interop`; the interfaces are moved to where the stacks are once it says `ready`.

#![forbid(unsafe_code)]

mod cable;

use cable::Cable;
use clap::Parser;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::process::ExitCode;
use toe_port::{OpenError, PortCounters, PortSpec};

/// A wire between two TAP interfaces, with faults
#[derive(Debug, Parser)]
#[command(
    name = "toe-cable",
    version,
    after_help = "\
It makes both interfaces, says 'ready', and carries frames until its standard input ends; then it prints what each end
counted, as JSON, and takes the interfaces away. They may be moved to other network namespaces and given addresses
meanwhile. What comes in at an end meets the faults that stand there with rx_ in front.

FAULTS (behind ? and joined by &, each with rx_ for what comes in at this end, or tx_ for what goes out there):
  drop=1%  burst=5        lost frames, so many in a row on average (else each by itself)
  reorder=1%  dup=1%  corrupt=1%
  delay_us=20000  jitter_us=500
  rate_kbit=100000  queue_bytes=250000  mark_bytes=60000
  seed=7                  the same seed and traffic meet the same faults

EXAMPLE:
  toe-cable 'tap:left?rx_drop=1%&rx_delay_us=20000&rx_rate_kbit=100000&rx_queue_bytes=500000&seed=1' \\
            'tap:right?rx_delay_us=20000&seed=2'"
)]
struct Cli {
    /// One end
    #[arg(value_name = "tap:NAME[?FAULTS]")]
    left: PortSpec,
    /// The other end
    #[arg(value_name = "tap:NAME[?FAULTS]")]
    right: PortSpec,
}

/// Why the cable does not work, or no longer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the cable is broken: {0} (an interface was removed, or the namespace that it was in)")]
    Broken(io::Error),
    #[error("cannot wait for frames: {0}")]
    Waiting(Errno),
    #[error("cannot write to the standard output: {0}")]
    Output(io::Error),
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("toe-cable: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let open = |spec: &PortSpec| toe_port::open_cable_end(spec);
    let mut cable = Cable::new(open(&cli.left)?, open(&cli.right)?);
    say("ready\n")?;
    while carry(&mut cable)? {}
    let [left, right] = cable.counters();
    say(&format!("{{\"left\":{},\"right\":{}}}\n", json(&left), json(&right)))
}

/// Carries what there is and waits for more; `false` once the standard input has ended.
fn carry(cable: &mut Cable) -> Result<bool, Failure> {
    cable.turn().map_err(Failure::Broken)?;
    let stdin = rustix::stdio::stdin();
    let timeout = cable
        .next_deadline_us()
        .map(|us| Timespec { tv_sec: (us / 1_000_000) as _, tv_nsec: (us % 1_000_000 * 1000) as _ });
    let mut fds: Vec<PollFd<'_>> =
        cable.poll_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(Failure::Waiting(errno)),
    }
    let asked = fds.last().is_some_and(|fd| !fd.revents().is_empty());
    Ok(!asked || rustix::io::read(stdin, &mut [0u8; 64]).is_ok_and(|len| len > 0))
}

fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// The counters that are not zero. Their names need no quoting.
fn json(counters: &PortCounters) -> String {
    let mut text = String::new();
    for (name, value) in counters.iter().filter(|(_, value)| *value > 0) {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a String does not fail.
        let _ = write!(text, "{comma}\"{name}\":{value}");
    }
    format!("{{{text}}}")
}
