//! Finds and reads scripts.

use crate::parse::{ParseError, parse};
use crate::script::Script;
use std::io;
use std::path::{Path, PathBuf};

/// What a script's name ends with.
pub const EXTENSION: &str = "toe";

/// Why scripts could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{0}")]
    Parse(#[from] ParseError),
    #[error("there is no script in {}: names end with .{EXTENSION}", .0.display())]
    None(PathBuf),
}

/// The scripts of a file, or of a folder and the folders in it, in the order of their names.
pub fn read_all(path: &Path) -> Result<Vec<Script>, ReadError> {
    let mut paths = Vec::new();
    collect(path, &mut paths)?;
    paths.sort();
    if paths.is_empty() {
        return Err(ReadError::None(path.to_owned()));
    }
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<Script, ReadError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| ReadError::Io { path: path.to_owned(), error })?;
    Ok(parse(path, &text)?)
}

fn collect(path: &Path, paths: &mut Vec<PathBuf>) -> Result<(), ReadError> {
    let failed = |error| ReadError::Io { path: path.to_owned(), error };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        paths.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?.path();
        if entry.is_dir() || entry.extension().is_some_and(|extension| extension == EXTENSION) {
            collect(&entry, paths)?;
        }
    }
    Ok(())
}
