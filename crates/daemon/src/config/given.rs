//! What was given, with the place for errors.

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
