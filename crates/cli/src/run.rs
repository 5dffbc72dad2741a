//! `toe run`: runs a program under the switch layer, on a running engine or on a private one made for it.

use crate::client::{Client, ClientError};
use crate::explain::Tally;
use crate::spawn::{self, Started};
use crate::{Failure, locate, policy, reach};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use toe_abi::attach::{ReportKind, Request};
use toe_abi::discovery;
use toe_abi::policy::{ENGINES_MAX, POLICY_VARIABLE};
use toe_abi::report::StatusReport;
use toe_abi::why::TALLY_VARIABLE;

const EXIT_TROUBLE: u8 = 125;
const EXIT_CANNOT_RUN: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;
/// How long to wait for a private engine that nobody uses any more. One that is still in use is left to its users.
const ENGINE_GONE_WITHIN_MS: i64 = 200;
/// Signals that are meant for the program.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Run a program on an engine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Which engine: with --name, the one of that name; else the default one if it runs; else (or with --private) one of the
program's own, with the local port only, which needs no root and ends with the program. --name can be given up to four
times: the program then uses all of these engines and the kernel's stack side by side. It listens on all that have the
address; a connection is tried on one after the other, in this order.

What no engine can do goes to the kernel's stack, socket by socket; 'toe why PID FD' tells what and why.

POLICY ([policy] of --config FILE, or [profiles.NAME] for --profile NAME; the first rule that matches decides):
  [profiles.web]
  engines = [\"fast\", [\"a\", \"b\"]] # engines by priority; a and b have the same and are balanced
  balance = \"least-loaded\"          # or \"hash\" of the peer's address and port
  stack = \"offload\"                 # where no rule matches
  [[profiles.web.rules]]              # all but 'stack' may be left out, and then matches everything
  program = \"nginx\"
  call = \"listen\"                   # or \"connect\"
  port = \"80, 8000-8100\"            # listened at, or connected to
  address = \"10.0.0.0/8\"
  engines = [\"a\"]                   # only these
  stack = \"engine-only\"
Stacks: offload (an engine, else the kernel), engine-only (never the kernel), kernel, refuse (the call fails). A policy
says where TCP over IPv4 goes; it does not confine a program, which may still use the kernel in other ways.

EXIT STATUS:
  the program's own; 128 + N when signal N ended it; 127 it was not found; 126 it cannot be run; 125 'toe run' failed

EXAMPLES:
  toe run -- nginx -g 'daemon off;'
  toe run --name web -- redis-server --port 6379
  toe run --name eth1 --name eth2 -- nginx
  toe run --config toe.toml --profile web -- nginx
  toe run --explain -- curl -s http://example.org/
  toe run --private -- sh -c 'python3 -m http.server 8000 & sleep 1; curl -s http://127.0.0.1:8000/'")]
pub struct Args {
    /// Name of an engine; it must run. Several: by priority
    #[arg(long, value_name = "NAME", conflicts_with = "private")]
    pub name: Vec<String>,
    /// Make an engine of the program's own even if one runs
    #[arg(long)]
    pub private: bool,
    /// A user, by number or name, who may use the private engine besides root and you: for a program that starts others as
    /// that user by way of a static launcher (gosu, su-exec). Can be given several times
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<String>,
    /// File with a policy: which sockets go to which stack
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The policy to follow, by its name in the file (/etc/opentoe/toe.toml unless --config is given)
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// When the program has ended, say how many of its sockets went to the engine and how many did not, and why
    #[arg(long)]
    pub explain: bool,
    /// The same as JSON, into a file
    #[arg(long, value_name = "FILE")]
    pub explain_json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

pub fn run(args: &Args) -> Result<u8, Failure> {
    let hindrance = args.command.first().and_then(|command| reach::hindrance(command));
    if let Some(hindrance) = &hindrance {
        eprintln!("toe run: {}", hindrance.text);
    }
    let kills = hindrance.is_some_and(|hindrance| hindrance.kills);
    let preload = preload(std::env::var_os("LD_PRELOAD").as_deref(), &switch_library()?)?;
    let chosen = policy::chosen(args.config.as_deref(), args.profile.as_deref())
        .map_err(|failure| Failure::with_status(failure.to_string(), EXIT_TROUBLE))?;
    let tally = (args.explain || args.explain_json.is_some()).then(Tally::new).transpose()?;
    let inherited = inherited_engines();
    let program = |sockets: &OsStr| -> Result<Command, Failure> {
        let mut command = program(args, &preload, sockets);
        if kills {
            command.env_remove("LD_PRELOAD");
        }
        match &chosen {
            Some(chosen) => _ = command.env(POLICY_VARIABLE, chosen.policy.to_string()),
            // It is about the engines of another list.
            None if inherited.as_deref() != Some(sockets) => _ = command.env_remove(POLICY_VARIABLE),
            None => {}
        }
        if let Some(tally) = &tally {
            tally.let_inherit()?;
            command.env(TALLY_VARIABLE, tally.path());
        }
        Ok(command)
    };
    if let Some(sockets) = running_engines(args, chosen.as_ref())? {
        if !args.allow_uid.is_empty() {
            let text = "--allow-uid is for a private engine; give it to 'toe start', or --private here";
            return Err(Failure::with_status(text, EXIT_TROUBLE));
        }
        let mut command = program(&sockets)?;
        if tally.is_none() {
            let error = command.exec();
            return Err(not_started(args, &error));
        }
        let child = command.spawn().map_err(|error| not_started(args, &error))?;
        let done = wait(child);
        explain(args, tally.as_ref())?;
        return done;
    }
    let name = private_name();
    let allowed = args.allow_uid.iter().flat_map(|user| ["--allow-uid", user]);
    let engine_args = ["--name", &name, "--port", "local"].into_iter().chain(allowed);
    let engine_args: Vec<OsString> = engine_args.map(OsString::from).collect();
    let engine = spawn::start(&engine_args, true)
        .map_err(|failure| Failure::with_status(failure.to_string(), EXIT_TROUBLE))?;
    let spawn = |mut command: Command| command.spawn().map_err(|error| not_started(args, &error));
    let done = program(engine.socket.as_os_str()).and_then(spawn).and_then(wait);
    end_engine(engine);
    explain(args, tally.as_ref())?;
    done
}

/// What a private engine is called: a process of another namespace may have this one's number, and the same directory of engines.
fn private_name() -> String {
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    format!("run-{}-{namespace}", std::process::id())
}

/// To the standard error output, as the standard output is the program's; and to the file that was asked for.
fn explain(args: &Args, tally: Option<&Tally>) -> Result<(), Failure> {
    let Some(explanation) = tally.map(Tally::explanation).transpose()? else { return Ok(()) };
    if args.explain {
        eprint!("toe run: TCP sockets of the program\n{}", explanation.table());
    }
    if let Some(file) = &args.explain_json {
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot write {}: {error}; give another file", file.display()))
        };
        let text = serde_json::to_vec_pretty(&explanation).map_err(|error| failed(error.into()))?;
        std::fs::write(file, text).map_err(failed)?;
    }
    Ok(())
}

/// The sockets of the engines that run and are meant, as `TOE_ENGINE` has them; `None`: a private one is wanted.
fn running_engines(args: &Args, chosen: Option<&policy::Chosen>) -> Result<Option<OsString>, Failure> {
    let trouble = |text: String| Failure::with_status(text, EXIT_TROUBLE);
    let by_policy = chosen.map_or(&[][..], |chosen| &chosen.engines);
    if !by_policy.is_empty() && (args.private || !args.name.is_empty()) {
        return Err(trouble("the policy names engines; leave out --name and --private".to_owned()));
    }
    if args.private {
        return Ok(None);
    }
    let names = if by_policy.is_empty() { &args.name[..] } else { by_policy };
    if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        return Err(trouble(format!("engine '{}' is given twice; give each --name once", twice.1)));
    }
    if names.len() > ENGINES_MAX {
        return Err(trouble(format!("a program can use {ENGINES_MAX} engines at most; give fewer --name")));
    }
    let inherited = inherited_engines();
    if names.is_empty() && inherited.is_some() {
        // A program of `toe run` runs another: what holds for the one holds for the other.
        return Ok(running_engine(None)?.and(inherited));
    }
    if names.is_empty() {
        return Ok(running_engine(None)?.map(PathBuf::into_os_string));
    }
    let sockets = names.iter().map(|name| running_engine(Some(name))).collect::<Result<Vec<_>, _>>()?;
    let joined = std::env::join_paths(sockets.into_iter().flatten());
    joined.map(Some).map_err(|error| trouble(format!("the path of an engine's socket: {error}")))
}

/// The engines of the program that runs this one.
fn inherited_engines() -> Option<OsString> {
    std::env::var_os(discovery::ENGINE_VARIABLE).filter(|list| !list.is_empty())
}

/// The socket of one engine; `None`: there is no default one.
fn running_engine(name: Option<&str>) -> Result<Option<PathBuf>, Failure> {
    let mut last = None;
    for path in locate::sockets(name) {
        let answer =
            Client::connect(&path).and_then(|client| client.report::<StatusReport>(ReportKind::Status));
        match answer {
            Ok(_) => return Ok(Some(path)),
            // That there is none at another place says nothing of one that is there.
            Err(ClientError::NotRunning { .. }) if last.is_some() => {}
            Err(error) => last = Some(error),
        }
    }
    match (name, last) {
        (Some(name), Some(error)) => {
            let hint = match error {
                ClientError::NotRunning { .. } => "; or leave it out to get a private engine",
                _ => "",
            };
            Err(Failure::with_status(format!("engine '{name}': {error}{hint}"), EXIT_TROUBLE))
        }
        // Some engine is there, but it does not do: say so rather than quietly use another.
        (
            None,
            Some(
                error @ (ClientError::NoAnswer(_) | ClientError::Silent { .. } | ClientError::Version { .. }),
            ),
        ) => Err(Failure::with_status(format!("{error}; or give --private"), EXIT_TROUBLE)),
        (None, Some(error @ (ClientError::NoPermission { .. } | ClientError::Untrusted { .. }))) => {
            eprintln!(
                "toe run: {error}. The program gets a private engine, and meets nobody who uses that one"
            );
            Ok(None)
        }
        (_, _) => Ok(None),
    }
}

fn switch_library() -> Result<PathBuf, Failure> {
    let places = locate::switch_library_places();
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        let text = format!("cannot find the switch library at {}; install or build it", places.join(", "));
        Failure::with_status(text, EXIT_TROUBLE)
    })
}

/// The value for `LD_PRELOAD`: what is there already, then the library.
fn preload(existing: Option<&OsStr>, library: &Path) -> Result<OsString, Failure> {
    if library.to_string_lossy().contains([' ', ':']) {
        let text = format!(
            "{}: the loader takes no path with a space or colon; move OpenTOE to another directory",
            library.display()
        );
        return Err(Failure::with_status(text, EXIT_TROUBLE));
    }
    let Some(existing) = existing.filter(|value| !value.is_empty()) else { return Ok(library.into()) };
    let text = existing.to_string_lossy();
    if text.split([' ', ':']).any(|one| Path::new(one) == library) {
        return Ok(existing.to_owned());
    }
    let mut joined = existing.to_owned();
    joined.push(":");
    joined.push(library);
    Ok(joined)
}

fn program(args: &Args, preload: &OsStr, sockets: &OsStr) -> Command {
    let mut words = args.command.iter();
    let mut command = Command::new(words.next().map_or_else(|| OsStr::new(""), OsString::as_os_str));
    command.args(words).env("LD_PRELOAD", preload).env(discovery::ENGINE_VARIABLE, sockets);
    command
}

fn not_started(args: &Args, error: &std::io::Error) -> Failure {
    let name = args.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if error.kind() == std::io::ErrorKind::NotFound {
        let text = format!("{name}: not found; check its spelling, or give its path");
        return Failure::with_status(text, EXIT_NOT_FOUND);
    }
    Failure::with_status(spawn::cannot_start(&name, error), EXIT_CANNOT_RUN)
}

/// From here on the signals that are meant for the program come out of a descriptor. Called only once the program
/// runs: it would inherit the blocked signals.
fn catch_signals() -> Result<SignalFd, Failure> {
    let failed = |error| Failure::with_status(format!("cannot catch signals: {error}"), EXIT_TROUBLE);
    let mut set = SigSet::empty();
    for signal in FORWARDED {
        set.add(signal);
    }
    set.thread_block().map_err(failed)?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(failed)
}

/// Waits for the program's end, handing signals on to it; returns the status to exit with.
fn wait(mut child: Child) -> Result<u8, Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::with_status(format!("cannot {what} the program: {error}"), EXIT_TROUBLE)
    };
    let signals = catch_signals()?;
    let process = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .map_err(|error| failed("watch", &error))?;
    loop {
        let mut fds = [PollFd::new(&process, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("wait for", &error)),
        }
        let ended = !fds[0].revents().is_empty();
        forward(&signals, &process);
        if ended {
            let status = child.wait().map_err(|error| failed("wait for", &error))?;
            return Ok(exit_status(status));
        }
    }
}

/// Hands on what was sent to this process alone. What a terminal sends, it sends to the program as well.
fn forward(signals: &SignalFd, process: &OwnedFd) {
    while let Ok(Some(info)) = signals.read_signal() {
        let by_kernel = info.ssi_code > 0;
        let number = i32::try_from(info.ssi_signo).ok().and_then(rustix::process::Signal::from_named_raw);
        if let Some(signal) = number.filter(|_| !by_kernel) {
            // It may have ended by now.
            let _ = rustix::process::pidfd_send_signal(process, signal);
        }
    }
}

fn exit_status(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => EXIT_TROUBLE,
    }
}

/// Tells a private engine that its program has ended. It goes at once unless processes that the program left behind
/// still use it; then it goes with the last of them.
fn end_engine(mut engine: Started) {
    let asked = Client::connect(&engine.socket).and_then(|client| client.ask(Request::StopWhenUnused));
    // Closing the pipe says the same, so a failure above changes nothing.
    drop(engine.child.stdin.take());
    if asked.is_err() {
        return;
    }
    let Ok(process) = rustix::process::pidfd_open(Pid::from_child(&engine.child), PidfdFlags::empty()) else {
        return;
    };
    let limit = Timespec { tv_sec: 0, tv_nsec: (ENGINE_GONE_WITHIN_MS * 1_000_000) as _ };
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    if rustix::event::poll(&mut fds, Some(&limit)).is_ok_and(|n| n > 0) {
        let _ = engine.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_appended_to_what_is_preloaded() {
        let library = Path::new("/opt/lib/libtoe_switch.so");
        let joined = |existing: Option<&str>| {
            preload(existing.map(OsStr::new), library).expect("a value").into_string().expect("text")
        };
        assert_eq!(joined(None), "/opt/lib/libtoe_switch.so");
        assert_eq!(joined(Some("")), "/opt/lib/libtoe_switch.so");
        assert_eq!(joined(Some("/a.so")), "/a.so:/opt/lib/libtoe_switch.so");
        assert_eq!(joined(Some("/opt/lib/libtoe_switch.so /a.so")), "/opt/lib/libtoe_switch.so /a.so");
        assert!(preload(None, Path::new("/my programs/lib.so")).is_err());
    }

    #[test]
    fn the_programs_status_is_passed_on() {
        let status =
            |code: &str| exit_status(Command::new("sh").args(["-c", code]).status().expect("a shell"));
        assert_eq!(status("exit 0"), 0);
        assert_eq!(status("exit 42"), 42);
        assert_eq!(status("kill -9 $$"), 137);
    }

    #[test]
    fn a_missing_program_is_127() {
        let args = Args {
            name: Vec::new(),
            private: true,
            allow_uid: Vec::new(),
            config: None,
            profile: None,
            explain: false,
            explain_json: None,
            command: vec!["no-such-program-here".into()],
        };
        let error = program(&args, OsStr::new(""), OsStr::new("/x")).spawn().expect_err("not found");
        let failure = not_started(&args, &error);
        assert_eq!(failure.status(), 127);
        assert!(failure.to_string().contains("not found"));
    }
}
