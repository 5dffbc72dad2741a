//! nginx with a configuration of its own in the lab's directory.

use crate::child::{self, Program};
use crate::engine::Engine;
use crate::lab::Lab;
use crate::tools;
use crate::wait::{self, SOON};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The port that it listens on, at every address.
pub const PORT: u16 = 8080;
/// Length of the file `/small`.
pub const SMALL_LEN: u64 = 256;

/// How nginx is configured.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// It leaves its parent and goes to the background.
    pub daemon: bool,
    pub sendfile: bool,
    /// The workers' user.
    pub user: &'static str,
}

impl Default for Options {
    fn default() -> Options {
        Options { daemon: false, sendfile: true, user: "root" }
    }
}

/// A running nginx: a master and two workers.
#[derive(Debug)]
pub struct Nginx {
    prefix: PathBuf,
    /// The master when it stays in the foreground.
    program: Option<Program>,
}

impl Nginx {
    /// Starts nginx on `engine` and waits until it listens there.
    pub fn on_engine(lab: &Lab, engine: &Engine, options: Options) -> Nginx {
        let nginx = Nginx::start(lab, options, engine.run(lab, "nginx"));
        engine.wait_for_listener(PORT);
        nginx
    }

    fn start(lab: &Lab, options: Options, mut command: Command) -> Nginx {
        let prefix = lab.dir().to_owned();
        tools::share(&prefix);
        lab.file("small", SMALL_LEN);
        let config = prefix.join("nginx.conf");
        fs::write(&config, configuration(options)).expect("nginx.conf");
        command.arg("-p").arg(&prefix).arg("-c").arg(&config).arg("-e").arg(prefix.join("error.log"));
        let program = if options.daemon {
            // Not by `child::run`: that ends the whole process group, which the daemon leaves only a moment after its
            // parent has ended.
            let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
            assert!(status.expect("toe run starts").success(), "nginx in the background");
            None
        } else {
            Some(Program::spawn("nginx", &mut command))
        };
        let nginx = Nginx { prefix, program };
        wait::until_true("nginx wrote its pid file", SOON, || nginx.master_pid().is_some());
        nginx
    }

    /// The master's process number.
    pub fn master(&self) -> u32 {
        self.master_pid().expect("nginx runs")
    }

    fn master_pid(&self) -> Option<u32> {
        fs::read_to_string(self.prefix.join("nginx.pid")).ok()?.trim().parse().ok()
    }

    /// The workers that accept connections now (not those that a reload is ending).
    pub fn workers(&self) -> Vec<u32> {
        tools::children_of(self.master())
            .into_iter()
            .filter(|pid| tools::command_line(*pid).contains("worker process") && child::is_alive(*pid))
            .filter(|pid| !tools::command_line(*pid).contains("shutting down"))
            .collect()
    }

    /// What it logged at level `error` and above.
    pub fn errors(&self) -> String {
        fs::read_to_string(self.prefix.join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- nginx error log:\n{}----", tools::tail(&self.errors(), 40));
        }
        if let Some(master) = self.master_pid().filter(|pid| child::is_alive(*pid)) {
            // The master first, or it would start new workers.
            let workers = tools::children_of(master);
            [master].into_iter().chain(workers).for_each(child::end);
        }
        drop(self.program.take());
    }
}

fn configuration(options: Options) -> String {
    let on = |switch: bool| if switch { "on" } else { "off" };
    format!(
        "user {user};
worker_processes 2;
daemon {daemon};
pid nginx.pid;
error_log error.log error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile {sendfile};
    keepalive_requests 1000000;
    client_body_temp_path tmp;
    proxy_temp_path tmp;
    fastcgi_temp_path tmp;
    uwsgi_temp_path tmp;
    scgi_temp_path tmp;
    server {{
        listen 0.0.0.0:{PORT};
        root .;
        location = /pid {{ return 200 \"$pid\\n\"; }}
    }}
}}
",
        user = options.user,
        daemon = on(options.daemon),
        sendfile = on(options.sendfile),
    )
}
