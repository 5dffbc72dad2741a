//! `toe`: starts, asks and stops engines, runs programs on them, and explains what became of a socket.
//!
//! It talks to an engine only over its control socket. Each subcommand has a file of its own; this one holds the
//! command line and the exit statuses.

#![forbid(unsafe_code)]

mod bench;
mod capture;
mod client;
mod explain;
mod locate;
mod pcapng;
mod plan;
mod policy;
mod presented;
mod profile;
mod reach;
mod run;
mod spawn;
mod ss;
mod start;
mod status;
mod stop;
mod why;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use client::ClientError;
use std::process::ExitCode;

/// The command line, or a file that it names, is wrong.
const EXIT_WRONG_LINE: u8 = 2;
/// An engine of that name does not run.
const EXIT_NOT_RUNNING: u8 = 3;

/// OpenTOE: a TCP/IP offload engine in software. Programs use it unmodified.
#[derive(Debug, Parser)]
#[command(
    name = "toe",
    version,
    after_help = "\
EXAMPLES:
  toe run -- nginx                       run a program on an engine; without one, on a private one
  toe start --port packet:veth0 --addr 10.0.0.2/24
  toe start --port xdp:eth1              an engine at the kernel's own address there
  toe ss                                 which sockets the engine has, and who holds them
  toe why 1234                           which stack each socket of process 1234 is on, and why
  toe why 1234 7                         which stack descriptor 7 of process 1234 is on, and why
  toe capture port 80 | wireshark -k -i -  what the engine sends, receives and drops, live

EXIT STATUS:
  0  done      1  failed      2  wrong command line or configuration      3  no engine of that name runs
  'toe run' has the status of the program; see 'toe run --help'.

An engine has a name ('default' unless given) and a socket: /run/opentoe/NAME.sock when root started it,
$XDG_RUNTIME_DIR/opentoe/NAME.sock otherwise; /tmp/opentoe-UID/NAME.sock where there is neither. What fails under --json
is told as JSON, too, on the standard error output: {error, text, status}."
)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Start(Box<start::Args>),
    Stop(stop::Args),
    Status(status::Args),
    Ss(ss::Args),
    Why(why::Args),
    Capture(capture::Args),
    Run(run::Args),
    Profile(profile::Args),
    Plan(plan::Args),
    Bench(Box<bench::Args>),
}

/// Why a subcommand failed. The text names the cause and what to do about it.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{text}")]
    Other { text: String, status: u8 },
}

impl Failure {
    fn new(text: impl Into<String>) -> Failure {
        Failure::Other { text: text.into(), status: 1 }
    }

    fn with_status(text: impl Into<String>, status: u8) -> Failure {
        Failure::Other { text: text.into(), status }
    }

    /// The word for it in JSON.
    fn code(&self) -> &'static str {
        match self {
            Failure::Client(error) => error.code(),
            Failure::Other { status: EXIT_WRONG_LINE, .. } => "wrong-command-line",
            Failure::Other { .. } => "failed",
        }
    }

    fn status(&self) -> u8 {
        match self {
            Failure::Client(ClientError::NotRunning { .. }) => EXIT_NOT_RUNNING,
            Failure::Client(_) => 1,
            Failure::Other { status, .. } => *status,
        }
    }
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match cli.command {
        Subcommands::Start(args) => start::start(&args, matches.subcommand_matches("start")),
        Subcommands::Stop(args) => stop::stop(&args),
        Subcommands::Status(args) => status::status(&args),
        Subcommands::Ss(args) => ss::ss(&args),
        Subcommands::Why(args) => why::why(&args),
        Subcommands::Capture(args) => capture::capture(&args),
        Subcommands::Run(args) => run::run(&args),
        Subcommands::Profile(args) => profile::profile(&args),
        Subcommands::Plan(args) => plan::plan(&args),
        Subcommands::Bench(args) => bench::bench(&args),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            complain(&failure, wants_json(&matches));
            ExitCode::from(failure.status())
        }
    }
}

/// Whether the subcommand was told `--json`, and not into a file.
fn wants_json(matches: &clap::ArgMatches) -> bool {
    let told = matches.subcommand().map(|(_, of)| of.try_get_one::<bool>("json"));
    matches!(told, Some(Ok(Some(true))))
}

/// To the standard error output: who reads JSON from the other finds nothing there that is none of what was asked for.
fn complain(failure: &Failure, as_json: bool) {
    if as_json {
        let (code, text, status) = (failure.code(), failure.to_string(), failure.status());
        eprintln!("{}", serde_json::json!({ "error": code, "text": text, "status": status }));
    } else {
        eprintln!("toe: {failure}");
    }
}

/// Writes to the standard output; a reader that went away (`toe ss | head -1`) is no failure.
fn print(text: &str) -> Result<u8, Failure> {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to the standard output: {error}")))
        }
        _ => Ok(0),
    }
}

/// Prints a value as JSON, one line.
fn print_json(value: &impl serde::Serialize) -> Result<u8, Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::new(format!("cannot write JSON: {e}")))?;
    print(&(text + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_failure_has_a_word_for_scripts() {
        let json = |line: &str| wants_json(&Cli::command().get_matches_from(line.split_whitespace()));
        assert!(json("toe status --json") && json("toe why 1 --json"));
        assert!(!json("toe status") && !json("toe run -- x --json") && !json("toe bench --json FILE"));
        let gone = ClientError::NotRunning { name: "x".to_owned(), looked: String::new() };
        assert_eq!((Failure::from(gone).code(), Failure::new("x").code()), ("not-running", "failed"));
        assert_eq!(Failure::with_status("x", EXIT_WRONG_LINE).code(), "wrong-command-line");
    }

    #[test]
    fn a_program_keeps_its_own_flags() {
        let cli = Cli::try_parse_from(["toe", "run", "--private", "--", "nginx", "-g", "daemon off;"]);
        let Ok(Cli { command: Subcommands::Run(args) }) = cli else { panic!("toe run is understood") };
        assert_eq!(args.command, ["nginx", "-g", "daemon off;"]);
        let cli = Cli::try_parse_from(["toe", "run", "curl", "--name", "x"]);
        let Ok(Cli { command: Subcommands::Run(args) }) = cli else { panic!("-- may be left out") };
        assert_eq!(args.command, ["curl", "--name", "x"]);
        assert!(args.name.is_empty());
    }
}
