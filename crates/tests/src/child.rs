//! A running program, as [`toe_lab::child`] has it; here what fails is a failed test.

use crate::must;
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;
use toe_lab::child;
use toe_lab::process;

pub use toe_lab::process::{end, is_alive};

/// A child process; ended when this is dropped, and its output shown when the test fails.
#[derive(Debug)]
pub struct Program(child::Program);

/// What a program that ended left.
#[derive(Debug)]
pub struct Finished {
    pub status: std::process::ExitStatus,
    /// Standard output and standard error as they came.
    pub output: String,
}

#[track_caller]
fn finished(done: toe_lab::Result<child::Finished>) -> Finished {
    let done = must(done);
    Finished { status: done.status, output: done.output }
}

impl Program {
    /// Starts `command`; `name` is what messages call it.
    ///
    /// # Panics
    /// When it cannot be started; as all functions here when what they are for fails.
    #[track_caller]
    pub fn spawn(name: &str, command: &mut Command) -> Program {
        Program(must(child::Program::spawn(name, command)))
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// What it wrote so far.
    pub fn output(&self) -> String {
        self.0.output()
    }

    /// Writes one line to its standard input.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        must(self.0.tell(line));
    }

    /// Ends its standard input.
    pub fn close_input(&mut self) {
        self.0.close_input();
    }

    pub fn is_running(&mut self) -> bool {
        self.0.is_running()
    }

    /// Waits until a line of its output holds `text`, and gives that line.
    #[track_caller]
    pub fn wait_for_line(&mut self, text: &str, limit: Duration) -> String {
        must(self.0.wait_for_line(text, limit))
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(self, limit: Duration) -> Finished {
        finished(self.0.wait(limit))
    }

    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        must(self.0.signal(signal));
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

/// Runs `command` to its end.
#[track_caller]
pub fn run(name: &str, command: &mut Command, limit: Duration) -> Finished {
    finished(child::run(name, command, limit))
}

/// Ends the process `pid` as `kill -9` does. Only for processes that the test started, or whose parent it started.
#[track_caller]
pub fn kill_hard(pid: u32) {
    must(process::kill_hard(pid));
}
