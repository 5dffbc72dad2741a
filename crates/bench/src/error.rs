//! Why a benchmark failed. Made by every module here, shown by `toe bench`.

use std::fmt::Display;

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// A failure; its text names the cause and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Lab(#[from] toe_lab::Error),
    #[error("{0}")]
    Options(String),
    #[error("{tool}: {cause}; its output was:\n{output}")]
    Unreadable { tool: &'static str, cause: String, output: String },
    #[error("{what}: {cause}")]
    Failed { what: String, cause: String },
}

impl Error {
    pub(crate) fn failed(what: impl Into<String>, cause: impl Display) -> Error {
        Error::Failed { what: what.into(), cause: cause.to_string() }
    }

    pub(crate) fn unreadable(tool: &'static str, cause: impl Display, output: &str) -> Error {
        Error::Unreadable { tool, cause: cause.to_string(), output: output.trim_end().to_owned() }
    }

    /// The user has ended it.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Error::Lab(toe_lab::Error::Interrupted))
    }
}
