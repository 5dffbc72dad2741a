//! `toe bench`: the same programs on Linux's stack and on OpenTOE, measured turn and turn about.

use crate::{Failure, locate};
use std::path::PathBuf;
use toe_bench::options::{self, Link, Neighbour, Options, Sink, Together, Workload};

/// Status after Ctrl-C, as a shell has it.
const EXIT_INTERRUPTED: u8 = 130;

/// Measure programs on Linux's stack and on OpenTOE, turn and turn about
#[derive(Debug, clap::Args)]
#[command(after_help = "\
WORKLOADS (all unless some are named):
  http     nginx under wrk: 256 B and 64 KiB, connections kept and not
  apps     Apache prefork, puma, php-fpm behind nginx, each request on a connection of its own
  kv       redis and memcached, with and without pipelining
  rr       request and reply: 64 B to 16 KiB, depth 1 to 64, 1 to 1,000 connections
  stream   data one way, one and many connections
  cps      connect, one request, close; served by one loop, by a thread each, by a process each
  crowd    more programs than processors: 8 and 16 servers with as many clients, up to 10,000 connections
  idle     memory and CPU of idle connections
  wake     latency when both sides sleep
  calls    single calls: a socket made and closed, a connection taken and closed, a read of a file
  udp      datagrams one way and back, singly and in super-segments, at a rate, in overload, over a veth beside strangers' packets
  via      messages between two programs, 8 B to 1 MiB, by EVIL's calls
  file     files to connections and back: 1 GiB in memory, and, when it is named, the directwrite paper's grid (hours over slow wires; see --together)
LINKS:
  local    client and server on one stack of this machine: loopback against the engine's own; needs no root
  veth     the client on the kernel's stack of another network namespace; needs root
  tap      the same kernel behind a TAP interface (stream only); needs root
  10mbit, 100mbit  a kernel's stack at the other end of a wire that is so fast (file only); needs root

Each row runs a fresh engine, started as 'toe start' does. Both stacks have the same programs and the same processors
(--cpus). In rr and wake the server is on the first of them and the client on the second; else the scheduler places.
Rows named -onecore have everything on the first; rows named -full have as many workers and client threads as there are
processors, so that none is spare; rows named -busy (--busy) share the processors with programs that have
nothing to do with what is measured. A row is judged where there is a target for it.

EXAMPLES:
  toe bench --list
  toe bench http rr --link local
  toe bench --rounds 9 --html report.html --json report.json
  toe bench --row rr/64B-d1-c1 --link veth
  toe bench --busy http cps --link local
  toe bench file --link 10mbit --rounds 50 --together")]
pub struct Args {
    /// Workloads; all unless some are named
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<Workload>,
    /// A link; can be given several times; all that you may use unless given
    #[arg(long, value_name = "LINK")]
    link: Vec<Link>,
    /// Only rows whose name holds this text; can be given several times
    #[arg(long, value_name = "TEXT")]
    row: Vec<String>,
    /// How often each row is measured on each stack; over a slow wire a round is one transfer (the directwrite paper made 50)
    #[arg(long, value_name = "N", default_value_t = options::ROUNDS, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each run; 1 or 2 unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// One short round of the first row of each workload and link
    #[arg(long)]
    quick: bool,
    /// Each row once more beside programs that take the processors, one for each: 'loops' at the same priority, 'nice' (loops at nice 19) or 'memory' (copies of memory); can be given several times
    #[arg(long, value_name = "KIND", num_args = 0..=1, require_equals = true, default_missing_value = "loops")]
    busy: Vec<Neighbour>,
    /// Rows over slow wires side by side, which leave the processors idle for the most part: so many, or as many as leave them idle to 40 % ('idle', unless a number is given)
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "idle")]
    together: Option<Together>,
    /// Processors that everything is confined to, such as 0,2-3; all that you may use unless given
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Congestion control of Linux's sockets: cubic, as the engine's, unless given (where namespaces may not have it, reno for both); without root the machine's
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Write JSON to a file, or to the standard output with '-' (then there is no text)
    #[arg(long, value_name = "FILE")]
    json: Option<Sink>,
    /// Write a page with tables and plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the names of the rows and do nothing
    #[arg(long)]
    list: bool,
}

pub fn bench(args: &Args) -> Result<u8, Failure> {
    let programs = locate::own_dir()
        .ok_or_else(|| Failure::new("cannot tell where this 'toe' is; run it by its full path"))?;
    let options = Options {
        programs,
        workloads: args.workloads.clone(),
        links: args.link.clone(),
        rounds: args.rounds,
        seconds: args.seconds,
        quick: args.quick,
        rows: args.row.clone(),
        beside: args.busy.clone(),
        together: args.together,
        cpus: args.cpus.clone(),
        congestion: args.congestion.clone(),
        json: args.json.clone(),
        html: args.html.clone(),
    };
    if args.list {
        return crate::print(&toe_bench::list(&options));
    }
    catch_signals()?;
    match toe_bench::run(&options) {
        Ok(outcome) => {
            let printed = crate::print(&outcome.text)?;
            match outcome.failed {
                0 => Ok(printed),
                n => Err(Failure::new(format!("{n} rows could not be measured; the report says why"))),
            }
        }
        Err(error) if error.is_interruption() => {
            Err(Failure::with_status("interrupted; everything that ran is ended", EXIT_INTERRUPTED))
        }
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

/// From here on the first wait after a signal ends, and what was started ends with it.
fn catch_signals() -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::new(format!("cannot catch signals: {error}")))?;
    std::thread::spawn(move || signals.forever().for_each(|_| toe_lab::wait::interrupt()));
    Ok(())
}
