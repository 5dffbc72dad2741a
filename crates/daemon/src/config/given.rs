//! What was given, with the place for errors.

use serde::Deserialize;
use std::ops::Range;
use std::str::FromStr;
use toml::Spanned;

/// What is wrong with the configuration, and what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{origin}: cannot read it ({error}); give the path of a readable file with --config")]
    Unreadable { origin: String, error: String },
    #[error("{origin}: {what}")]
    Bad { origin: String, what: String },
}

impl ConfigError {
    pub(super) fn on_command_line(what: impl Into<String>) -> ConfigError {
        ConfigError::Bad { origin: "command line".to_owned(), what: what.into() }
    }
}

/// A value together with where it was given, for errors.
pub(super) struct Given<T> {
    pub(super) value: T,
    pub(super) origin: String,
}

impl<T> Given<T> {
    pub(super) fn flag(value: T, flag: &str) -> Given<T> {
        Given { value, origin: flag.to_owned() }
    }

    pub(super) fn bad(&self, what: String) -> ConfigError {
        ConfigError::Bad { origin: self.origin.clone(), what }
    }
}

/// A value as a flag or the file has it: one type for both, so that one structure holds either.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Spanned<T>")]
pub struct Setting<T> {
    value: T,
    /// Where the file has it.
    span: Option<Range<usize>>,
}

impl<T> From<Spanned<T>> for Setting<T> {
    fn from(value: Spanned<T>) -> Setting<T> {
        Setting { span: Some(value.span()), value: value.into_inner() }
    }
}

impl<T: FromStr> FromStr for Setting<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Setting<T>, T::Err> {
        Ok(Setting { value: text.parse()?, span: None })
    }
}

impl<T> Setting<T> {
    /// What the flag of this name has, or else the file, of which `origin` tells the line.
    pub(super) fn given(
        flag: Option<Setting<T>>,
        name: &str,
        file: Option<Setting<T>>,
        origin: &dyn Fn(Range<usize>) -> String,
    ) -> Option<Given<T>> {
        let with_origin =
            |Setting { value, span }| Given { value, origin: span.map_or_else(|| name.to_owned(), origin) };
        flag.or(file).map(with_origin)
    }
}

pub(super) fn check_range(
    given: &Given<u64>,
    range: std::ops::RangeInclusive<u64>,
    unit: &str,
) -> Result<u64, ConfigError> {
    if range.contains(&given.value) {
        return Ok(given.value);
    }
    let (min, max) = (range.start(), range.end());
    Err(given.bad(format!("{} is out of range; give {min} to {max} {unit}", given.value)))
}
