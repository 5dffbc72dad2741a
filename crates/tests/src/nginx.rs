//! nginx on an engine under test, with two workers, as [`toe_lab::nginx`] starts it.

use crate::engine::Engine;
use crate::lab::Lab;
use crate::must;
use toe_lab::nginx;

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
pub struct Nginx(nginx::Nginx);

impl Nginx {
    /// Starts nginx on `engine` and waits until it listens there.
    pub fn on_engine(lab: &Lab, engine: &Engine, options: Options) -> Nginx {
        lab.file("small", SMALL_LEN);
        let options = nginx::Options {
            port: PORT,
            workers: 2,
            daemon: options.daemon,
            sendfile: options.sendfile,
            open_file_cache: false,
            tls: None,
            user: Some(options.user),
        };
        let nginx = must(nginx::Nginx::start(lab, "nginx", options, engine.run(lab, "nginx")));
        engine.wait_for_listener(PORT);
        Nginx(nginx)
    }

    /// The master's process number.
    pub fn master(&self) -> u32 {
        self.0.master().expect("nginx runs")
    }

    /// The workers that accept connections now (not those that a reload is ending).
    pub fn workers(&self) -> Vec<u32> {
        self.0.workers()
    }

    /// What it logged at level `error` and above.
    pub fn errors(&self) -> String {
        self.0.errors()
    }
}
