//! Where log lines go and how they look. Set up once, by `main`.
//!
//! A file may be on a disk that is busy, and a pipe's reader may not read. So once the engine runs, a thread beside it
//! writes; lines for which there is no room are lost, and counted.

use crate::config::{Config, LogFormat};
use crate::own_file;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that wait to be written.
const LINES_MAX: usize = 1024;
/// How long an engine that ends waits for its last lines to be written.
const FINISH_WITHIN: Duration = Duration::from_secs(1);

/// Why nothing can be logged, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{path}: cannot open the log file ({error}); give another with --log-file")]
    File { path: PathBuf, error: std::io::Error },
    #[error("{filter:?} is no log filter ({error}); write a level such as info, or toe_daemon=debug")]
    Filter { filter: String, error: String },
    #[error("logging cannot be set up ({0})")]
    SetUp(String),
}

/// Starts logging to `file`, or to the standard error output. The filter is the configuration's, else that of
/// `RUST_LOG`, else everything from `info` up.
pub fn start(config: &Config, file: Option<&Arc<File>>) -> Result<Log, LogError> {
    let from_env = || std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = config.log.filter.clone().or_else(from_env).unwrap_or_else(|| "info".to_owned());
    let targets = filter
        .parse::<Targets>()
        .map_err(|error| LogError::Filter { filter: filter.clone(), error: error.to_string() })?;
    let ansi = file.is_none() && std::io::stderr().is_terminal();
    let log = Log::to(file.cloned());
    let lines = tracing_subscriber::fmt::layer().with_ansi(ansi).with_writer(log.clone());
    let filtered = tracing_subscriber::registry().with(targets);
    let done = match config.log.format {
        LogFormat::Text => filtered.with(lines).try_init(),
        LogFormat::Json => filtered.with(lines.json()).try_init(),
    };
    done.map_err(|error| LogError::SetUp(error.to_string()))?;
    Ok(log)
}

/// The log of the process.
#[derive(Clone, Debug)]
pub struct Log(Arc<Lines>);

/// What takes its lines.
#[derive(Debug)]
pub struct Lines {
    sink: Arc<Sink>,
    /// To the thread that writes, once there is one.
    writer: OnceLock<SyncSender<Item>>,
}

#[derive(Debug)]
struct Sink {
    /// `None`: the standard error output.
    file: Option<Arc<File>>,
    lost: AtomicU64,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Say when all before it is written.
    Finish(SyncSender<()>),
}

impl Log {
    fn to(file: Option<Arc<File>>) -> Log {
        let sink = Arc::new(Sink { file, lost: AtomicU64::new(0) });
        Log(Arc::new(Lines { sink, writer: OnceLock::new() }))
    }

    /// From here on a thread of its own writes. To be called when the process has given up what its threads must not have.
    pub fn write_asynchronously(&self) -> std::io::Result<()> {
        let (sender, items) = sync_channel(LINES_MAX);
        let sink = Arc::clone(&self.0.sink);
        crate::cores::spawn("toe-log", move || sink.write_items(&items))?;
        // Only `main` calls this, and once.
        let _ = self.0.writer.set(sender);
        Ok(())
    }

    /// Waits a little for what was logged to be written: the process ends.
    pub fn finish(&self) {
        let Some(writer) = self.0.writer.get() else { return };
        let until = Instant::now() + FINISH_WITHIN;
        let (sender, finished) = sync_channel(1);
        let mut item = Item::Finish(sender);
        while let Err(TrySendError::Full(back)) = writer.try_send(item) {
            if Instant::now() > until {
                return;
            }
            item = back;
            std::thread::yield_now();
        }
        let _ = finished.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl Sink {
    /// The thread that writes.
    fn write_items(&self, items: &Receiver<Item>) {
        while let Ok(item) = items.recv() {
            match item {
                Item::Line(line) => self.write_now(&line),
                Item::Finish(finished) => drop(finished.send(())),
            }
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                self.write_now(
                    format!("{lost} lines are lost: they came faster than they are written\n").as_bytes(),
                );
            }
        }
    }

    fn write_now(&self, line: &[u8]) {
        // Where a line cannot be written nobody can be told.
        let _ = match &self.file {
            Some(file) => (&**file).write_all(line),
            None => std::io::stderr().write_all(line),
        };
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        &self.0
    }
}

impl Write for &Lines {
    /// One whole line, as the subscriber gives it.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        match self.writer.get() {
            None => self.sink.write_now(line),
            Some(writer) => {
                if let Err(TrySendError::Full(_)) = writer.try_send(Item::Line(line.to_vec())) {
                    self.sink.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Opens a log file, adding to what is there. Where others can put things it must be a plain file of the starter's or the
/// engines' user's; elsewhere it may be what it likes (/dev/stderr, a link to another disk).
pub fn open(path: &Path) -> Result<Arc<File>, LogError> {
    let mut options = File::options();
    options.append(true);
    let opened = match own_file::open_undisturbed(path, options.clone().create(true)) {
        Some(opened) => opened,
        None => own_file::open(path, &mut options),
    };
    opened.map(Arc::new).map_err(|error| LogError::File { path: path.to_path_buf(), error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    #[test]
    fn where_nobody_else_can_put_anything_a_log_is_what_it_likes() {
        let dir = crate::tests::TempDir::new();
        let (path, link) = (dir.path().join("a.log"), dir.path().join("link.log"));
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        (&*open(&link).expect("nobody else could put the link there")).write_all(b"line\n").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "line\n");
        open(Path::new("/dev/null")).expect("root's directory");
        open(Path::new("/dev/stderr")).expect("root's directory");
        // As soon as others can, it is looked at.
        let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open_to_all).expect("chmod");
        open(&link).expect_err("who knows where it leads");
        open(&path).expect("a plain file of one's own");
    }

    #[test]
    fn whoever_reads_no_log_holds_up_nobody() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let log = Log::to(Some(Arc::new(File::from(OwnedFd::from(writer)))));
        log.make_writer().write_all(b"first\n").expect("written");
        log.write_asynchronously().expect("a thread");
        // A pipe has 64 KiB, and so many wait; the rest has no place.
        let line = [b'x'; 1000];
        for _ in 0..LINES_MAX * 2 {
            log.make_writer().write_all(&line).expect("taken");
        }
        let reading = std::thread::spawn(move || std::io::read_to_string(&mut reader).expect("text"));
        // What waits goes out now; then there is room for the last word.
        log.finish();
        log.make_writer().write_all(b"last\n").expect("taken");
        log.finish();
        drop(log);
        let text = reading.join().expect("a thread");
        assert!(
            text.starts_with("first\nxxx") && text.contains(" lines are lost") && text.ends_with("last\n")
        );
    }
}
