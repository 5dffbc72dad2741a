//! A running program whose output is kept, and which is ended when it is no longer held.

use crate::wait;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Octets of output that are shown when a test fails.
const SHOWN_MAX: usize = 8 << 10;

/// A child process, in a process group of its own so that what it started ends with it.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

/// What a program that ended left.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    /// Standard output and standard error as they came.
    pub output: String,
}

impl Program {
    /// Starts `command`; `name` is what messages call it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn(name: &str, command: &mut Command) -> Program {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {command:?}: {e}"));
        let output = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        readers.extend(child.stdout.take().map(|pipe| keep(pipe, Arc::clone(&output))));
        readers.extend(child.stderr.take().map(|pipe| keep(pipe, Arc::clone(&output))));
        Program { name: name.to_owned(), child, output, readers }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("output")).into_owned()
    }

    /// Writes one line to its standard input.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("standard input is a pipe");
        writeln!(stdin, "{line}").unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    /// Waits until its output holds `text`, and gives the line that does.
    ///
    /// # Panics
    /// When it ends or `limit` passes before that.
    pub fn wait_for_line(&mut self, text: &str, limit: Duration) -> String {
        let what = format!("{} says {text:?}", self.name);
        let (line, _) = wait::until(&what, limit, || {
            // Looked at in this order, so that the last words of a program that just ended are not missed.
            let running = self.is_running();
            let found = self.output().lines().find(|line| line.contains(text)).map(str::to_owned);
            assert!(
                found.is_some() || running,
                "{} ended without saying {text:?}:\n{}",
                self.name,
                self.output()
            );
            found
        });
        line
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it has not ended within `limit`.
    pub fn wait(mut self, limit: Duration) -> Finished {
        let what = format!("{} ends", self.name);
        let (status, _) = wait::until(&what, limit, || self.child.try_wait().expect("wait"));
        self.reap_group();
        for reader in self.readers.drain(..) {
            reader.join().expect("a reader does not panic");
        }
        Finished { status, output: self.output() }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(pid_of(self.pid()), signal).unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }

    /// Ends what is left of the group, so that nothing holds the output pipes open.
    fn reap_group(&self) {
        // An error says that the group is empty already.
        let _ = kill_process_group(pid_of(self.pid()), Signal::KILL);
    }
}

impl Finished {
    /// # Panics
    /// When the program did not end well.
    #[track_caller]
    pub fn expect_success(self, what: &str) -> String {
        assert!(self.status.success(), "{what}: {}\n{}", self.status, self.output);
        self.output
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.reap_group();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let output = self.output();
            let cut = output.len().saturating_sub(SHOWN_MAX);
            let shown: String = output.chars().skip(cut).collect();
            eprintln!("---- output of {} (pid {}):\n{shown}----", self.name, self.pid());
        }
    }
}

/// Runs `command` to its end.
pub fn run(name: &str, command: &mut Command, limit: Duration) -> Finished {
    let mut program = Program::spawn(name, command);
    drop(program.child.stdin.take());
    program.wait(limit)
}

/// Ends the process `pid` as `kill -9` does. Only for processes that the test started, or whose parent it started.
pub fn kill_hard(pid: u32) {
    kill_process(pid_of(pid), Signal::KILL).unwrap_or_else(|e| panic!("kill -9 {pid}: {e}"));
}

/// [`kill_hard`] for cleaning up: a process that is gone already is fine.
pub fn end(pid: u32) {
    if is_alive(pid) {
        let _ = kill_process(pid_of(pid), Signal::KILL);
    }
}

/// A process of this number exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn pid_of(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process number")
}

/// Copies all that comes from `pipe` to `output`, on a thread of its own.
fn keep(mut pipe: impl Read + Send + 'static, output: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            output.lock().expect("output").extend_from_slice(&chunk[..n]);
        }
    })
}
