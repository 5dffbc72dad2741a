//! Where log lines go and how they look. Set up once, by `main`.

use crate::config::{Config, LogFormat};
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

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
pub fn start(config: &Config, file: Option<&Arc<File>>) -> Result<(), LogError> {
    let from_env = || std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = config.log.clone().or_else(from_env).unwrap_or_else(|| "info".to_owned());
    let env_filter = EnvFilter::try_new(&filter)
        .map_err(|error| LogError::Filter { filter: filter.clone(), error: error.to_string() })?;
    let (writer, ansi) = match file {
        Some(file) => (BoxMakeWriter::new(Arc::clone(file)), false),
        None => (BoxMakeWriter::new(std::io::stderr), std::io::stderr().is_terminal()),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(env_filter).with_ansi(ansi).with_writer(writer);
    let done = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    done.map_err(|error| LogError::SetUp(error.to_string()))
}

/// Opens a log file, adding to what is there.
pub fn open(path: &Path) -> Result<Arc<File>, LogError> {
    let opened = File::options().create(true).append(true).open(path);
    opened.map(Arc::new).map_err(|error| LogError::File { path: path.to_path_buf(), error })
}
