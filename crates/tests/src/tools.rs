//! The programs that tests use beside nginx: curl, wrk, redis and Python; and looks into `/proc` and at text.

use crate::child::{self, Finished, Program};
use crate::engine::Engine;
use crate::lab::{Lab, Side};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub use toe_lab::engine::tail;
pub use toe_lab::process::{children_of, comm, command_line};

/// Debian's Python, not one that a user's PATH may put before it.
const PYTHON: &str = "/usr/bin/python3";

/// Which stack a program is given.
#[derive(Clone, Copy, Debug)]
pub enum On<'a> {
    Engine(&'a Engine),
    Kernel(Side),
}

impl On<'_> {
    /// A command for `program`.
    pub fn command(self, lab: &Lab, program: &str) -> Command {
        match self {
            On::Engine(engine) => engine.run(lab, program),
            On::Kernel(side) => lab.command(side, program),
        }
    }

    /// A role of `peer.py`.
    pub fn peer(self, lab: &Lab, role: &str, args: &[&str]) -> Program {
        let mut command = self.command(lab, PYTHON);
        command.arg(lab.dir().join("peer.py")).arg(role).args(args);
        Program::spawn(role, &mut command)
    }

    /// `python3 -m http.server` in the lab's directory.
    pub fn http_server(self, lab: &Lab, port: u16) -> Program {
        let mut command = self.command(lab, PYTHON);
        command.args(["-u", "-m", "http.server", &port.to_string()]).arg("--directory").arg(lab.dir());
        Program::spawn("http.server", &mut command)
    }

    /// The same at one address.
    pub fn http_server_at(self, lab: &Lab, port: u16, addr: &str) -> Program {
        let mut command = self.command(lab, PYTHON);
        command
            .args(["-u", "-m", "http.server", &port.to_string(), "--bind", addr, "--directory"])
            .arg(lab.dir());
        Program::spawn("http.server", &mut command)
    }

    /// curl with `args`; silent but for errors, with a limit on the time to connect.
    pub fn curl(self, lab: &Lab, args: &[&str], limit: Duration) -> Finished {
        let mut command = self.command(lab, "curl");
        command.args(["-sS", "--connect-timeout", "10"]).args(args);
        child::run("curl", &mut command, limit)
    }

    /// Fetches `url` `count` times over one curl; gives the answers' status codes that are not 200.
    pub fn bad_answers(self, lab: &Lab, url: &str, count: u32) -> Vec<String> {
        let urls = format!("{url}?[1-{count}]");
        let args = ["-o", "/dev/null", "-w", "%{http_code}\n", &urls];
        let output = self.curl(lab, &args, Duration::from_secs(60)).expect_success("curl");
        let codes: Vec<String> = output.lines().map(str::to_owned).collect();
        assert_eq!(codes.len(), count as usize, "one answer each: {codes:?}");
        codes.into_iter().filter(|code| code != "200").collect()
    }

    /// The SHA-256 of what `url` gives, and how long it took.
    pub fn fetched_sha256(self, lab: &Lab, url: &str, limit: Duration) -> (String, Duration) {
        let file = lab.dir().join("fetched");
        let start = std::time::Instant::now();
        self.curl(lab, &["-f", "-o", &file.to_string_lossy(), url], limit).expect_success("curl");
        (crate::lab::sha256(&file), start.elapsed())
    }

    /// wrk; ends by itself after `secs`.
    pub fn wrk(self, lab: &Lab, url: &str, connections: u32, secs: u32) -> Program {
        let mut command = self.command(lab, "wrk");
        command.args(["-t2", &format!("-c{connections}"), &format!("-d{secs}s"), "--latency", url]);
        Program::spawn("wrk", &mut command)
    }
}

/// What wrk counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WrkReport {
    pub requests: u64,
    pub per_second: f64,
    /// Socket errors of all four kinds, and answers other than 2xx or 3xx.
    pub errors: u64,
}

impl WrkReport {
    /// Reads wrk's output.
    ///
    /// # Panics
    /// When it is not a report of wrk.
    pub fn parse(output: &str) -> WrkReport {
        let mut report = WrkReport::default();
        for line in output.lines().map(str::trim) {
            if let Some((requests, _)) = line.split_once(" requests in ") {
                report.requests = requests.parse().expect("wrk: requests");
            } else if let Some(rate) = line.strip_prefix("Requests/sec:") {
                report.per_second = rate.trim().parse().expect("wrk: requests/s");
            } else if let Some(kinds) = line.strip_prefix("Socket errors:") {
                let numbers = kinds.split([' ', ',']).filter_map(|word| word.parse::<u64>().ok());
                report.errors += numbers.sum::<u64>();
            } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses:") {
                report.errors += count.trim().parse::<u64>().expect("wrk: answers");
            }
        }
        assert!(output.contains("Requests/sec:"), "not a report of wrk:\n{output}");
        report
    }
}

/// Lets every user read and write in `dir`.
pub fn share(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("permissions");
}

/// Megabytes a second.
pub fn rate(bytes: u64, took: Duration) -> String {
    format!("{:.0} MB/s", bytes as f64 / 1e6 / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_reports_are_read_with_and_without_errors() {
        let clean = "  12345 requests in 2.00s, 5.00MB read\nRequests/sec:   6172.50\n";
        let report = WrkReport::parse(clean);
        assert_eq!(report, WrkReport { requests: 12345, per_second: 6172.5, errors: 0 });
        let bad = "  Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: 5\n";
        assert_eq!(WrkReport::parse(&format!("{clean}{bad}")).errors, 15);
    }
}
