//! The engine's process: reads the configuration, takes the name, opens the links, and runs.
//!
//! Exit status: 0 stopped as asked; 1 could not start, or failed; 2 the command line or the configuration file is wrong.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use toe_daemon::config::{Config, ConfigError};
use toe_daemon::own_addresses::OwnAddresses;
use toe_daemon::runtime::{self, EngineName};
use toe_daemon::watchdog::Watchdog;
use toe_daemon::{Daemon, command_line, confine, limits, log, slice, sys};

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever started the engine reads the standard error output until it is ready.
            eprintln!("toed: {error}");
            tracing::error!(%error, "toed failed");
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

fn start() -> Result<(), Box<dyn Error>> {
    let mut config = Config::from_command_line(std::env::args_os())?;
    if config.process.detach {
        sys::close_inherited_descriptors();
    }
    let is_open = !config.users.allowed.is_nobody();
    let dir = config.process.dir.clone().unwrap_or_else(|| runtime::default_dir(is_open));
    let mut name = EngineName::take(&dir, &config.name, is_open)?;
    let is_own_log = config.process.detach && config.log.file.is_none();
    if is_own_log {
        config.log.file = Some(dir.join(format!("{}.log", config.name)));
    }
    let is_private_log = is_own_log && config.process.private;
    let log_file = config.log.file.as_deref().map(log::open).transpose()?;
    let log = log::start(&config, log_file.as_ref())?;
    if config.process.detach {
        // Not the leader of a process group, having just been started by fork: it works, or it is one already.
        let _ = rustix::process::setsid();
    }

    if let Some(cores) = &config.cores {
        cores.apply()?;
    }
    limits::check()?;
    slice::ask_for_short_ones();
    command_line::empty();
    toe_ring::lost_memory::install().map_err(|error| format!("no memory for spare pages: {error}"))?;
    let mut daemon = Daemon::new(&config, secret()?)?;
    daemon.outside.catch_signals()?;
    let _own_addresses = open_links(&mut daemon, &config)?;
    // As whoever started the engine: it is what programs know it by.
    let listener = name.listen(daemon.hosts.policy())?;
    if config.process.private {
        daemon.outside.end_with(std::io::stdin().as_fd().try_clone_to_owned()?)?;
    }
    let socket = name.socket_path().display().to_string();
    tracing::info!(name = config.name, local = config.local, %socket, "engine ready");
    // As its own user it may not reach that socket any more.
    let watchdog = Watchdog::from(|name| std::env::var(name).ok(), std::process::id()).map_err(|error| {
        format!("the socket that NOTIFY_SOCKET names cannot be reached ({error}); unset it")
    })?;
    // Before there are other threads, which would keep what this one gives up.
    let private_log = log_file.as_deref().filter(|_| is_private_log).map(AsFd::as_fd);
    confine::confine(&config, &name, &daemon.own_dirs(), private_log)?;
    if config.process.detach {
        leave_terminal(&config.name, &socket, log_file.as_ref())?;
    }

    log.write_asynchronously()?;
    daemon.hosts.listen(listener)?;
    watchdog.iter().for_each(Watchdog::ready);
    daemon.outside.watchdog = watchdog;
    confine::confine_engine_thread(config.users.seccomp)?;
    let ran = daemon.run();
    // In this order, whatever a thread of the control server is doing: who sees the end of his connection finds the links free
    // and the name to be had.
    let connections = daemon.end();
    drop(name);
    connections.leave();
    ran?;
    tracing::info!(name = config.name, "engine stopped");
    log.finish();
    if is_private_log {
        remove_private_log(config.log.file.as_deref());
    }
    Ok(())
}

/// Opens the links, and follows what the kernel does to them. What it returns holds their addresses.
fn open_links(daemon: &mut Daemon, config: &Config) -> Result<OwnAddresses, Box<dyn Error>> {
    let own_addresses = OwnAddresses::take(&config.ports)?;
    for port in &config.ports {
        daemon.open_port(port, toe_port::open(&port.spec)?)?;
    }
    if !config.ports.is_empty() {
        daemon
            .follow_kernel()
            .map_err(|error| format!("cannot follow the kernel's links over netlink: {error}"))?;
    }
    Ok(own_addresses)
}

/// The key of initial sequence numbers and port choice.
fn secret() -> std::io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(secret)
}

/// Says "ready", its name and its socket to whoever started the engine, then lets go of its terminal and pipes. From here on the log file
/// takes what is written to the standard outputs, should anything be.
fn leave_terminal(name: &str, socket: &str, log_file: Option<&Arc<File>>) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "ready {name} {socket}")?;
    out.flush()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    let sink: &File = log_file.map_or(&null, |file| file);
    rustix::stdio::dup2_stdout(sink)?;
    rustix::stdio::dup2_stderr(sink)?;
    Ok(())
}

/// A private engine that ended well has nothing to tell.
fn remove_private_log(path: Option<&Path>) {
    if let Some(path) = path.map(PathBuf::from) {
        let _ = std::fs::remove_file(path);
    }
}
