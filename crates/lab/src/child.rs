//! A running program whose output is kept, and which is ended when it is no longer held.

use crate::{Error, Result, process, wait};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of output that are shown when a test fails.
const SHOWN_MAX: usize = 8 << 10;

/// A child process, in a process group of its own so that what it started ends with it.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    kept: Arc<Mutex<Kept>>,
    readers: Vec<JoinHandle<()>>,
}

/// What a program wrote.
#[derive(Debug, Default)]
struct Kept {
    /// Standard output and standard error as they came.
    both: Vec<u8>,
    /// Standard output alone.
    stdout: Vec<u8>,
}

/// What a program that ended left.
#[derive(Debug)]
pub struct Finished {
    name: String,
    pub status: ExitStatus,
    /// Standard output and standard error as they came.
    pub output: String,
    /// Standard output alone.
    pub stdout: String,
}

impl Program {
    /// Starts `command`; `name` is what messages call it.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Program> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|error| Error::cannot_run(program, error))?;
        let kept = Arc::new(Mutex::new(Kept::default()));
        let mut readers = Vec::new();
        readers.extend(child.stdout.take().map(|pipe| keep(pipe, Arc::clone(&kept), true)));
        readers.extend(child.stderr.take().map(|pipe| keep(pipe, Arc::clone(&kept), false)));
        Ok(Program { name: name.to_owned(), child, kept, readers })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&lock(&self.kept).both).into_owned()
    }

    /// Writes one line to its standard input.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let Some(stdin) = self.child.stdin.as_mut() else {
            return Err(Error::failed(&self.name, "its standard input is closed"));
        };
        writeln!(stdin, "{line}").map_err(|error| Error::failed(&self.name, error))
    }

    /// Ends its standard input.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn is_running(&mut self) -> bool {
        // An error says that there is no such child.
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Waits until a line of its output holds `text`, and gives that line.
    pub fn wait_for_line(&mut self, text: &str, limit: Duration) -> Result<String> {
        let what = format!("{} says {text:?}", self.name);
        let found = wait::until(&what, limit, || {
            // Looked at in this order, so that the last words of a program that just ended are not missed.
            let running = self.is_running();
            // A line that is still being written is none: what follows the words that are waited for belongs to it.
            let output = self.output();
            let whole = |line: &&str| line.ends_with('\n') || !running;
            let mut lines = output.split_inclusive('\n').filter(whole);
            let found =
                lines.find(|line| line.contains(text)).map(|line| line.trim_end_matches('\n').to_owned());
            match found {
                None if !running => {
                    let cause = format!("ended without saying {text:?}:\n{}", self.output());
                    Err(Error::failed(&self.name, cause))
                }
                found => Ok(found),
            }
        });
        Ok(found.map_err(|error| self.with_output(error))?.0)
    }

    /// Waits for its end.
    pub fn wait(mut self, limit: Duration) -> Result<Finished> {
        let what = format!("{} ends", self.name);
        let ended = wait::until(&what, limit, || {
            self.child.try_wait().map_err(|error| Error::failed(&self.name, error))
        });
        let (status, _) = ended.map_err(|error| self.with_output(error))?;
        self.reap_group();
        for reader in self.readers.drain(..) {
            // It only copies, and does not panic.
            let _ = reader.join();
        }
        let stdout = String::from_utf8_lossy(&lock(&self.kept).stdout).into_owned();
        Ok(Finished { name: self.name.clone(), status, output: self.output(), stdout })
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        process::signal(self.pid(), signal)
    }

    /// A wait that took too long is explained by what the program said, and by where its threads are.
    fn with_output(&self, error: Error) -> Error {
        match error {
            Error::NotInTime { what, limit, .. } => {
                let mut said = match self.output().trim_end() {
                    "" => String::new(),
                    said => format!("; it said:\n{said}"),
                };
                said += &format!("\nits threads:\n{}", process::threads_of(self.pid()));
                Error::NotInTime { what, limit, said }
            }
            error => error,
        }
    }

    /// Ends what is left of the group, so that nothing holds the output pipes open.
    fn reap_group(&self) {
        if let Some(group) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // An error says that the group is empty already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Finished {
    /// The program's output, or an error when it did not end well.
    pub fn success(self) -> Result<Finished> {
        if self.status.success() {
            return Ok(self);
        }
        Err(Error::failed(self.name, format!("{}\n{}", self.status, self.output.trim_end())))
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
            let presented: String = output.chars().skip(cut).collect();
            eprintln!("---- output of {} (pid {}):\n{presented}----", self.name, self.pid());
        }
    }
}

/// Runs `command` to its end.
pub fn run(name: &str, command: &mut Command, limit: Duration) -> Result<Finished> {
    let mut program = Program::spawn(name, command)?;
    program.close_input();
    program.wait(limit)
}

/// Copies all that comes from `pipe`, on a thread of its own.
fn keep(mut pipe: impl Read + Send + 'static, kept: Arc<Mutex<Kept>>, is_stdout: bool) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            let mut kept = lock(&kept);
            kept.both.extend_from_slice(&chunk[..n]);
            if is_stdout {
                kept.stdout.extend_from_slice(&chunk[..n]);
            }
        }
    })
}

fn lock(kept: &Mutex<Kept>) -> std::sync::MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
