//! nginx with a configuration of its own in the lab's directory.

use crate::child::Program;
use crate::engine::tail;
use crate::lab::Lab;
use crate::wait::{self, SOON};
use crate::{Error, Result, process};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// How nginx is configured.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The port that it listens on, at every address.
    pub port: u16,
    pub workers: u32,
    /// It leaves its parent and goes to the background.
    pub daemon: bool,
    pub sendfile: bool,
    pub open_file_cache: bool,
    /// The workers' user; none without root, who alone may choose.
    pub user: Option<&'static str>,
    pub tls: Option<Tls>,
}

/// HTTPS, with a certificate of its own making.
#[derive(Clone, Copy, Debug)]
pub struct Tls {
    /// Records are the socket's where that and OpenSSL can (`Options KTLS`), so that its sendfile works.
    pub kernel: bool,
}

/// A running nginx: a master and its workers.
#[derive(Debug)]
pub struct Nginx {
    /// Its own directory.
    dir: PathBuf,
    /// The master when it stays in the foreground.
    program: Option<Program>,
}

impl Nginx {
    /// Starts nginx with `command` (which names the stack), its own files in the lab's directory `name`, serving what
    /// lies in the lab's directory. It has read its configuration when this returns; it may not listen yet.
    pub fn start(lab: &Lab, name: &str, options: Options, mut command: Command) -> Result<Nginx> {
        lab.share_dir()?;
        let dir = lab.dir().join(name);
        let config = dir.join("nginx.conf");
        let failed = |error| Error::failed(config.display().to_string(), error);
        fs::create_dir_all(&dir).map_err(failed)?;
        fs::write(&config, configuration(lab, options)).map_err(failed)?;
        if options.tls.is_some() {
            certify(&dir)?;
        }
        command.arg("-p").arg(&dir).arg("-c").arg(&config).arg("-e").arg(dir.join("error.log"));
        let program = if options.daemon {
            // Not by `child::run`: that ends the whole process group, which the daemon leaves only a moment after its
            // parent has ended.
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let status = command.status().map_err(|error| Error::cannot_run("nginx", error))?;
            if !status.success() {
                return Err(Error::failed("nginx in the background", status));
            }
            None
        } else {
            Some(Program::spawn("nginx", &mut command)?)
        };
        let mut nginx = Nginx { dir, program };
        let look = || {
            if nginx.program.as_mut().is_some_and(|program| !program.is_running()) {
                let said = nginx.program.as_ref().map(Program::output).unwrap_or_default();
                return Err(Error::failed("nginx ended at once", said));
            }
            Ok(master_pid(&nginx.dir))
        };
        wait::until("nginx wrote its pid file", SOON, look)?;
        Ok(nginx)
    }

    /// The master's process number, while there is one.
    pub fn master(&self) -> Option<u32> {
        master_pid(&self.dir)
    }

    /// The program that was started, when it stays in the foreground.
    pub fn program(&mut self) -> Option<&mut Program> {
        self.program.as_mut()
    }

    /// The workers that accept connections now (not those that a reload is ending).
    pub fn workers(&self) -> Vec<u32> {
        let children = self.master().map(process::children_of).unwrap_or_default();
        children
            .into_iter()
            .filter(|pid| process::command_line(*pid).contains("worker process") && process::is_alive(*pid))
            .filter(|pid| !process::command_line(*pid).contains("shutting down"))
            .collect()
    }

    /// What it logged at level `error` and above.
    pub fn errors(&self) -> String {
        fs::read_to_string(self.dir.join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- nginx error log:\n{}----", tail(&self.errors(), 40));
        }
        if let Some(master) = self.master().filter(|pid| process::is_alive(*pid)) {
            // The master first, or it would start new workers.
            let workers = process::children_of(master);
            [master].into_iter().chain(workers).for_each(process::end);
        }
        drop(self.program.take());
    }
}

fn master_pid(dir: &std::path::Path) -> Option<u32> {
    fs::read_to_string(dir.join("nginx.pid")).ok()?.trim().parse().ok()
}

/// Makes the certificate and its key in `dir`.
fn certify(dir: &std::path::Path) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    command.args(["-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"]).current_dir(dir);
    let output = command.output().map_err(|error| Error::cannot_run("openssl", error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::failed("openssl req", String::from_utf8_lossy(&output.stderr))),
    }
}

fn configuration(lab: &Lab, options: Options) -> String {
    let on = |switch: bool| if switch { "on" } else { "off" };
    let user = options.user.map(|user| format!("user {user};\n")).unwrap_or_default();
    let cache = if options.open_file_cache { "max=16" } else { "off" };
    format!(
        "{user}worker_processes {workers};
daemon {daemon};
pid nginx.pid;
error_log error.log error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile {sendfile};
    open_file_cache {cache};
    keepalive_requests 1000000000;
    client_body_temp_path tmp;
    proxy_temp_path tmp;
    fastcgi_temp_path tmp;
    uwsgi_temp_path tmp;
    scgi_temp_path tmp;
    server {{
        listen 0.0.0.0:{port}{tls};
        root {root};
        location = /pid {{ return 200 \"$pid\\n\"; }}
    }}
}}
",
        workers = options.workers,
        daemon = on(options.daemon),
        sendfile = on(options.sendfile),
        port = options.port,
        tls = match options.tls {
            None => "",
            // A cipher that the socket has, too.
            Some(Tls { kernel: false }) => {
                " ssl; ssl_certificate cert.pem; ssl_certificate_key key.pem; \
                 ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256"
            }
            Some(Tls { kernel: true }) => {
                " ssl; ssl_certificate cert.pem; ssl_certificate_key key.pem; \
                 ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256; ssl_conf_command Options KTLS"
            }
        },
        root = lab.dir().display(),
    )
}
