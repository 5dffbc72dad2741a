//! The table `[quota]`: what users may have of the engine's.

use super::given::{ConfigError, Given, check_range};
use serde::Deserialize;
use toe_base::limits::{FLOWS_MAX, LISTENERS_MAX, SESSIONS_MAX};
use toe_engine::{Limit, Quotas, Resource};
use toml::Spanned;

const MIB: u64 = 1 << 20;
/// Of the memory that the engine may have, what all users together may have of each kind. The engine's own is in the rest.
const MEMORY_ONE_IN: u64 = 4;
const SESSION_MEMORY_ONE_IN: u64 = 8;
const STAGING_ONE_IN: u64 = 8;
const FLOWS_ONE_IN: u64 = 8;
const ANCHORS_ONE_IN: u64 = 8;
/// When nobody says how much that is: what makes a quarter of it 1 GiB.
const MEMORY_DEFAULT: u64 = 4 << 30;
/// The engine's record of a connection with what hangs on it, and a directory with its watch: bytes.
const FLOW_COST: u64 = 2 << 10;
const ANCHOR_COST: u64 = 3 << 10;
const MEMORY_MIN: u64 = 64 * MIB;
/// Less is not even one window.
const MEMORY_MIB: std::ops::RangeInclusive<u64> = 16..=1 << 30;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileQuota {
    memory_mib: Option<Spanned<u64>>,
    user_memory_mib: Option<Spanned<u64>>,
    user_sessions: Option<Spanned<u64>>,
    user_flows: Option<Spanned<u64>>,
    user_listeners: Option<Spanned<u64>>,
}

impl FileQuota {
    /// Each key with its value.
    pub(super) fn given(self, origin: impl Fn(std::ops::Range<usize>) -> String) -> Vec<(Key, Given<u64>)> {
        let given = |key, value: Option<Spanned<u64>>| {
            value.map(|value| (key, Given { origin: origin(value.span()), value: value.into_inner() }))
        };
        [
            given(Key::Memory, self.memory_mib),
            given(Key::UserMemory, self.user_memory_mib),
            given(Key::UserSessions, self.user_sessions),
            given(Key::UserFlows, self.user_flows),
            given(Key::UserListeners, self.user_listeners),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Memory,
    UserMemory,
    UserSessions,
    UserFlows,
    UserListeners,
}

impl Key {
    const ALL: [(&'static str, Key); 5] = [
        ("memory_mib", Key::Memory),
        ("user_memory_mib", Key::UserMemory),
        ("user_sessions", Key::UserSessions),
        ("user_flows", Key::UserFlows),
        ("user_listeners", Key::UserListeners),
    ];
}

/// `--quota NAME=N`.
pub(super) fn from_flag(text: &str) -> Result<(Key, Given<u64>), ConfigError> {
    let wrong = || {
        let names = Key::ALL.map(|(name, _)| name).join(", ");
        ConfigError::on_command_line(format!("--quota {text}: give NAME=NUMBER, NAME being one of {names}"))
    };
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let (_, key) = Key::ALL.iter().find(|(known, _)| *known == name).ok_or_else(wrong)?;
    let value = value.parse().map_err(|_| wrong())?;
    Ok((*key, Given::flag(value, &format!("--quota {name}"))))
}

/// The limits; `memory`: bytes that the engine may have.
pub(super) fn check(given: &[(Key, Given<u64>)], memory: Option<u64>) -> Result<Quotas, ConfigError> {
    let memory = memory.unwrap_or(MEMORY_DEFAULT).max(MEMORY_MIN);
    let parts = [
        (Resource::ReceiveMemory, memory / MEMORY_ONE_IN),
        (Resource::SessionMemory, memory / SESSION_MEMORY_ONE_IN),
        (Resource::StagingMemory, memory / STAGING_ONE_IN),
        (Resource::Flows, memory / FLOWS_ONE_IN / FLOW_COST),
        (Resource::Anchors, memory / ANCHORS_ONE_IN / ANCHOR_COST),
    ];
    let at_most = |quotas: Quotas, (resource, most): (Resource, u64)| {
        quotas.with(resource, Limit::shared(quotas.of(resource).total.min(most)))
    };
    let mut quotas = parts.into_iter().fold(Quotas::default(), at_most);
    for (key, given) in given {
        let of = |resource| quotas.of(resource);
        let capped = |resource, max: usize, unit| {
            let user = check_range(given, 1..=max as u64, unit)?;
            Ok((resource, Limit { user, ..of(resource) }))
        };
        let memory = |limit: fn(Limit, u64) -> Limit| {
            let bytes = check_range(given, MEMORY_MIB, "MiB")? * MIB;
            Ok((Resource::ReceiveMemory, limit(of(Resource::ReceiveMemory), bytes)))
        };
        let (resource, limit) = match key {
            Key::Memory => memory(|limit, total| Limit { total, ..limit })?,
            Key::UserMemory => memory(|limit, user| Limit { user, ..limit })?,
            Key::UserSessions => capped(Resource::Sessions, SESSIONS_MAX, "sessions")?,
            Key::UserFlows => capped(Resource::Flows, FLOWS_MAX, "flows")?,
            Key::UserListeners => capped(Resource::Listeners, LISTENERS_MAX, "listeners")?,
        };
        quotas = quotas.with(resource, limit);
    }
    Ok(quotas)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flags: &[&str]) -> Result<Quotas, ConfigError> {
        let given: Result<Vec<_>, _> = flags.iter().map(|flag| from_flag(flag)).collect();
        check(&given?, Some(8 << 30))
    }

    #[test]
    fn a_quarter_of_the_machine_is_for_received_data_unless_something_else_is_said() {
        let memory = |flags: &[&str]| of(flags).expect("good").of(Resource::ReceiveMemory);
        assert_eq!(memory(&[]), Limit::shared(2 << 30));
        assert_eq!(memory(&["memory_mib=64"]), Limit::shared(64 << 20));
        assert_eq!(
            memory(&["memory_mib=64", "user_memory_mib=32"]),
            Limit { total: 64 << 20, user: 32 << 20 }
        );
    }

    /// All that programs can have the engine use is below what its cgroup has.
    #[test]
    fn little_memory_is_little_of_everything() {
        let quotas = check(&[], Some(200 << 20)).expect("good");
        let of = |resource| quotas.of(resource).total;
        let in_all = of(Resource::ReceiveMemory)
            + of(Resource::SessionMemory)
            + of(Resource::StagingMemory)
            + of(Resource::Flows) * FLOW_COST
            + of(Resource::Anchors) * ANCHOR_COST;
        assert!(in_all < 160 << 20, "{in_all}");
        assert_eq!(of(Resource::ReceiveMemory), 50 << 20);
        let large = check(&[], Some(64 << 30)).expect("good");
        let as_ever = [Resource::Flows, Resource::StagingMemory, Resource::Anchors];
        assert!(as_ever.iter().all(|resource| large.of(*resource) == Quotas::default().of(*resource)));
    }

    #[test]
    fn caps_are_one_users_and_leave_the_total_as_it_is() {
        let quotas = of(&["user_sessions=3", "user_flows=500", "user_listeners=7"]).expect("good");
        let caps = [Resource::Sessions, Resource::Flows, Resource::Listeners].map(|r| quotas.of(r).user);
        assert_eq!(caps, [3, 500, 7]);
        assert_eq!(quotas.of(Resource::Flows).total, FLOWS_MAX as u64);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_can_stand_there() {
        for wrong in ["flows", "user_flows=many", "sockets=3"] {
            let error = of(&[wrong]).expect_err("wrong").to_string();
            assert!(error.contains(wrong) && error.contains("user_listeners"), "{error}");
        }
        assert!(of(&["user_flows=0"]).expect_err("none").to_string().contains("1 to 65536"));
    }
}
