//! Why something in the lab failed. Made by every module here.

use std::fmt::Display;
use std::time::Duration;

/// What a call into the lab gives.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure; its text names the cause and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("network namespaces need root: run this with sudo")]
    NeedsRoot,
    #[error("'{program}' is not installed or cannot be run ({error}){remedy}")]
    CannotRun { program: String, error: std::io::Error, remedy: String },
    #[error("not within {limit:?}: {what}{said}")]
    NotInTime { what: String, limit: Duration, said: String },
    #[error("interrupted")]
    Interrupted,
    #[error("{what}: {cause}")]
    Failed { what: String, cause: String },
}

impl Error {
    pub fn failed(what: impl Into<String>, cause: impl Display) -> Error {
        Error::Failed { what: what.into(), cause: cause.to_string() }
    }

    /// `program` could not be started.
    pub(crate) fn cannot_run(program: impl Into<String>, error: std::io::Error) -> Error {
        let program = program.into();
        let package = match program.as_str() {
            "ip" => "iproute2",
            "nsenter" | "taskset" => "util-linux",
            _ => "",
        };
        let remedy = match package {
            "" => String::new(),
            package => format!("; on Debian it is in the package {package}"),
        };
        Error::CannotRun { program, error, remedy }
    }
}
