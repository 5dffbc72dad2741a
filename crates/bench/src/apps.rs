//! Servers as they are deployed, each request on a connection of its own: an Apache of processes, a Ruby one of threads, and PHP
//! behind nginx. Their configurations, and how they are started. Used by `servers`.

use crate::error::{Error, Result};
use crate::options::Link;
use crate::sample::Stack;
use crate::stage::{self, Stage};
use crate::tools::{self, Tool};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use toe_lab::child::Program;

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum App {
    /// Apache's httpd with a process for each connection that it serves at a time, all accepting at one socket.
    ApachePrefork,
    /// One process; threads take requests from one that accepts.
    Puma,
    /// nginx hands each request on to one of four processes, over TCP.
    PhpFpm,
}

impl App {
    pub(crate) const ALL: [App; 3] = [App::ApachePrefork, App::Puma, App::PhpFpm];

    /// The programs it needs, without the client's.
    pub(crate) fn tools(self) -> &'static [Tool] {
        match self {
            App::ApachePrefork => &[tools::APACHE],
            App::Puma => &[tools::PUMA],
            App::PhpFpm => &[tools::PHP_FPM, tools::NGINX],
        }
    }

    /// What is asked for.
    pub(crate) fn path(self) -> &'static str {
        match self {
            App::ApachePrefork => "/file",
            App::Puma => "/",
            App::PhpFpm => "/index.php",
        }
    }

    /// Starts its programs on `stack`, those that others need first.
    pub(crate) fn start(self, stage: &Stage<'_>, stack: Stack) -> Result<Vec<Program>> {
        let place = Place::new(stage, self, stack)?;
        match self {
            App::ApachePrefork => Ok(vec![apache(&place)?]),
            App::Puma => Ok(vec![puma(&place)?]),
            App::PhpFpm => {
                let behind = stage::free_port()?;
                Ok(vec![php_fpm(&place, behind)?, front(&place, behind)?])
            }
        }
    }
}

impl fmt::Display for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            App::ApachePrefork => "apache-prefork",
            App::Puma => "puma",
            App::PhpFpm => "php-fpm",
        })
    }
}

/// Where a program has its files, and where it listens.
struct Place<'a, 'b> {
    stage: &'a Stage<'b>,
    stack: Stack,
    dir: PathBuf,
    port: u16,
    /// Only root may choose, and must.
    is_root: bool,
}

impl Place<'_, '_> {
    fn new<'a, 'b>(stage: &'a Stage<'b>, app: App, stack: Stack) -> Result<Place<'a, 'b>> {
        stage.lab.share_dir()?;
        stage.lab.file("file", 256)?;
        let dir = stage.lab.dir().join(format!("{app}-{}", stack.title().to_lowercase()));
        std::fs::create_dir_all(&dir).map_err(|error| Error::failed(dir.display().to_string(), error))?;
        let is_root = rustix::process::geteuid().is_root();
        Ok(Place { stage, stack, dir, port: stage.port(stack), is_root })
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        std::fs::write(&path, text).map_err(|error| Error::failed(path.display().to_string(), error))?;
        Ok(path)
    }

    fn command(&self, tool: Tool) -> Result<Command> {
        Ok(self.stage.server(self.stack, &tool.path()?))
    }

    /// The stack that an address of loopback is on: an engine with a link alone leaves it to the kernel.
    fn loopback(&self) -> Stack {
        if self.stage.link == Link::Local { self.stack } else { Stack::Linux }
    }

    /// Runs `command` until it listens on `stack` at `port`.
    fn program(&self, name: &str, mut command: Command, (stack, port): (Stack, u16)) -> Result<Program> {
        let mut program = Program::spawn(name, &mut command)?;
        self.stage.wait_for_listener_at(stack, &mut program, port)?;
        Ok(program)
    }
}

/// Where Debian and its like have Apache's modules.
const APACHE_MODULES: &str = "/usr/lib/apache2/modules";

fn apache(place: &Place<'_, '_>) -> Result<Program> {
    let user = if place.is_root { "User www-data\nGroup www-data\n" } else { "" };
    let (dir, root) = (place.dir.display(), place.stage.lab.dir().display());
    let config = place.write(
        "httpd.conf",
        &format!(
            "ServerRoot {dir}
DefaultRuntimeDir {dir}
PidFile {dir}/pid
ErrorLog {dir}/error.log
Listen 0.0.0.0:{port}
LoadModule mpm_prefork_module {APACHE_MODULES}/mod_mpm_prefork.so
LoadModule authz_core_module {APACHE_MODULES}/mod_authz_core.so
ServerName localhost
{user}DocumentRoot {root}
<Directory {root}>
Require all granted
</Directory>
",
            port = place.port,
        ),
    )?;
    let mut command = place.command(tools::APACHE)?;
    command.arg("-f").arg(config).args(["-D", "FOREGROUND"]);
    place.program("apache2", command, (place.stack, place.port))
}

fn puma(place: &Place<'_, '_>) -> Result<Program> {
    let app = "run lambda { |_| [200, { 'content-type' => 'text/plain' }, [\"hello\\n\"]] }\n";
    let config = place.write("config.ru", app)?;
    let mut command = place.command(tools::PUMA)?;
    command.args(["--quiet", "--threads", "4:4", "--bind", &format!("tcp://0.0.0.0:{}", place.port)]);
    command.arg(config);
    place.program("puma", command, (place.stack, place.port))
}

fn php_fpm(place: &Place<'_, '_>, port: u16) -> Result<Program> {
    place.write("index.php", "<?php echo 'hello';\n")?;
    let user = if place.is_root { "user = www-data\ngroup = www-data\n" } else { "" };
    let dir = place.dir.display();
    let config = place.write(
        "fpm.conf",
        &format!(
            "[global]
pid = {dir}/fpm.pid
error_log = {dir}/fpm.log
daemonize = no
[www]
{user}listen = 127.0.0.1:{port}
pm = static
pm.max_children = 4
"
        ),
    )?;
    let mut command = place.command(tools::PHP_FPM)?;
    command.arg("--fpm-config").arg(config).arg("--nodaemonize");
    place.program("php-fpm", command, (place.loopback(), port))
}

/// The nginx before php-fpm.
fn front(place: &Place<'_, '_>, behind: u16) -> Result<Program> {
    let user = if place.is_root { "user root;\n" } else { "" };
    let dir = place.dir.display();
    let config = place.write(
        "nginx.conf",
        &format!(
            "{user}worker_processes 1;
daemon off;
pid nginx.pid;
error_log error.log error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path tmp;
    proxy_temp_path tmp;
    fastcgi_temp_path tmp;
    uwsgi_temp_path tmp;
    scgi_temp_path tmp;
    server {{
        listen 0.0.0.0:{port};
        location / {{
            fastcgi_pass 127.0.0.1:{behind};
            fastcgi_param SCRIPT_FILENAME {dir}/index.php;
            fastcgi_param REQUEST_METHOD $request_method;
        }}
    }}
}}
",
            port = place.port,
        ),
    )?;
    let mut command = place.command(tools::NGINX)?;
    command.arg("-p").arg(&place.dir).arg("-c").arg(config);
    command.arg("-e").arg(Path::join(&place.dir, "error.log"));
    place.program("nginx", command, (place.stack, place.port))
}
