//! The servers of the workloads, started on either stack. Used by `runner`.

use crate::error::Result;
use crate::options::Link;
use crate::row::{EVIL_PORT, Load, Row, ServedBy, Web};
use crate::sample::Stack;
use crate::stage::Stage;
use crate::tools;
use toe_lab::child::Program;
use toe_lab::nginx::{self, Nginx};
use toe_lab::process;

/// A running server; ended when this is dropped.
#[derive(Debug)]
pub(crate) enum Server {
    Nginx(Nginx),
    Program(Program),
    /// The last is the one that clients talk to.
    Programs(Vec<Program>),
}

impl Server {
    /// Starts the row's server on `stack` and waits until it listens there.
    pub(crate) fn start(stage: &Stage<'_>, row: &Row, stack: Stack) -> Result<Server> {
        let port = stage.port(stack).to_string();
        match row.load {
            Load::Http { file, .. } => nginx(stage, stack, file, Web::Plain),
            Load::Web { file, how } => nginx(stage, stack, file, how),
            Load::App(app) => app.start(stage, stack).map(Server::Programs),
            Load::Redis { .. } => {
                let mut command = stage.server(stack, &tools::REDIS.path()?);
                command.args(["--port", &port, "--bind", "0.0.0.0", "--protected-mode", "no"]);
                command.args(["--save", "", "--daemonize", "no"]);
                program(stage, stack, "redis-server", command)
            }
            Load::Memcached { .. } => {
                let mut command = stage.server(stack, &tools::MEMCACHED.path()?);
                command.args(["-p", &port, "-U", "0", "-l", "0.0.0.0", "-m", "256"]);
                command.args(["-t", &stage.placement.threads.to_string()]);
                if rustix::process::geteuid().is_root() {
                    // It refuses to run as root unless told to.
                    command.args(["-u", "root"]);
                }
                program(stage, stack, "memcached", command)
            }
            Load::Messages { .. } | Load::MessageRr { .. } | Load::MessageWake { .. } => {
                let mut command = stage.server(stack, &stage.lab.program("toe-message"));
                command.arg("serve");
                match stack {
                    // Who connects may come first.
                    Stack::Toe => {
                        if stage.link == Link::Veth {
                            command.env("TOE_VIA_ADDRESS", stage.address(Stack::Toe));
                        }
                        command.args(["--evil", &format!("*:{EVIL_PORT}")]);
                        Ok(Server::Program(Program::spawn("toe-message serve", &mut command)?))
                    }
                    Stack::Linux => {
                        command.args(["--tcp", &format!("0.0.0.0:{port}")]);
                        program(stage, stack, "toe-message serve", command)
                    }
                }
            }
            _ => {
                let mut command = stage.server(stack, &stage.lab.program("toe-load"));
                command.args([mode(row.load), "--listen", &format!("0.0.0.0:{port}")]);
                command.args(how_served(row.load, stage.placement.threads));
                program(stage, stack, "toe-load serve", command)
            }
        }
    }

    /// The processes that are the server.
    pub(crate) fn pids(&self) -> Vec<u32> {
        match self {
            Server::Nginx(nginx) => nginx.master().map(process::tree_of).unwrap_or_default(),
            Server::Program(program) => process::tree_of(program.pid()),
            Server::Programs(programs) => {
                programs.iter().flat_map(|program| process::tree_of(program.pid())).collect()
            }
        }
    }
}

/// Which of toe-load's servers.
fn mode(load: Load) -> &'static str {
    match load {
        Load::Datagrams(_) | Load::DatagramRr | Load::DatagramOverload | Load::DatagramsBeside(_) => {
            "udp-serve"
        }
        _ => "serve",
    }
}

/// What toe-load's server is told of the load.
fn how_served(load: Load, threads: u32) -> Vec<String> {
    match load {
        Load::Cps { served_by: ServedBy::Thread } => vec!["--each=thread".to_owned()],
        Load::Cps { served_by: ServedBy::Process } => vec!["--each=process".to_owned()],
        Load::Datagrams(flood) => {
            vec![format!("--batch={}", flood.batch), format!("--segments={}", flood.segments)]
        }
        Load::DatagramsBeside(_) => vec!["--victim=1".to_owned()],
        // So long that any stack can send three times as much.
        Load::DatagramOverload => vec!["--work-us=20".to_owned()],
        Load::Crowd { programs, .. } => vec![format!("--programs={programs}")],
        Load::Cps { served_by: ServedBy::OneLoop } | Load::Rr { .. } => vec![format!("--programs={threads}")],
        _ => Vec::new(),
    }
}

fn program(
    stage: &Stage<'_>,
    stack: Stack,
    name: &str,
    mut command: std::process::Command,
) -> Result<Server> {
    let mut server = Program::spawn(name, &mut command)?;
    stage.wait_for_listener(stack, &mut server)?;
    Ok(Server::Program(server))
}

fn nginx(stage: &Stage<'_>, stack: Stack, file: u32, how: Web) -> Result<Server> {
    stage.lab.file("file", file.into())?;
    let options = nginx::Options {
        port: stage.port(stack),
        workers: stage.placement.threads,
        daemon: false,
        sendfile: true,
        open_file_cache: true,
        tls: match how {
            Web::Plain => None,
            Web::Tls => Some(nginx::Tls { kernel: false }),
            Web::KernelTls => Some(nginx::Tls { kernel: true }),
        },
        user: rustix::process::geteuid().is_root().then_some("root"),
    };
    let name = match stack {
        Stack::Linux => "nginx-linux",
        Stack::Toe => "nginx-toe",
    };
    let command = stage.server(stack, &tools::NGINX.path()?);
    let mut nginx = Nginx::start(stage.lab, name, options, command)?;
    if let Some(program) = nginx.program() {
        stage.wait_for_listener(stack, program)?;
    }
    Ok(Server::Nginx(nginx))
}
