//! Users: who may attach, and whom the engine runs as. Names are looked up here, before the engine gives its rights up.

use super::given::{ConfigError, Given};
use crate::policy::Allowed;
use nix::unistd::{Group, User};
use serde::Deserialize;
use std::ops::Range;
use toml::Spanned;

/// Whom an engine that root started runs as when nothing else is said: this user if there is one, else [`OWN_UID`].
const OWN_USER: &str = "opentoe";
/// A number that nobody else has: from the range that distributions and systemd leave alone (1879048192 to 2147483647).
/// It reads "pTOE".
const OWN_UID: u32 = 0x7054_4f45;

#[derive(Debug, Default, clap::Args)]
pub struct UserFlags {
    /// A user, by number or name, who may attach besides root and whoever starts the engine.
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<String>,
    /// A group, by number or name, whose members may attach.
    #[arg(long, value_name = "GID")]
    pub allow_group: Vec<String>,
    /// Every user may attach.
    #[arg(long)]
    pub allow_all: bool,
    /// Whom to run as once links are open, if root starts it: a user by number or name.
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// What a system call gets that the engine does not need: errno, strict (the engine is killed), audit (logged, and
    /// done), off.
    #[arg(long, value_name = "MODE")]
    pub seccomp: Option<String>,
}

/// The same, of the file.
#[derive(Debug, Default)]
pub(super) struct FileUsers {
    pub(super) allow_uids: Option<Vec<Spanned<Id>>>,
    pub(super) allow_groups: Option<Vec<Spanned<Id>>>,
    pub(super) allow_all: Option<bool>,
    pub(super) user: Option<Spanned<Id>>,
    pub(super) seccomp: Option<Spanned<String>>,
}

/// A user or a group as people write it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Id {
    Number(u32),
    Name(String),
}

impl From<String> for Id {
    fn from(text: String) -> Id {
        text.parse().map_or(Id::Name(text), Id::Number)
    }
}

/// Whom the engine runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
    /// Nobody chose it: where it cannot be had (a user namespace without that number) the engine stays who it is.
    pub is_default: bool,
}

/// What a system call gets that is not on the engine's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeccompMode {
    /// The call fails with ENOSYS.
    #[default]
    Errno,
    /// The engine is killed.
    Strict,
    /// The kernel logs it and does it.
    Audit,
    Off,
}

impl SeccompMode {
    const ALL: [(&'static str, SeccompMode); 4] = [
        ("errno", SeccompMode::Errno),
        ("strict", SeccompMode::Strict),
        ("audit", SeccompMode::Audit),
        ("off", SeccompMode::Off),
    ];

    pub fn as_str(self) -> &'static str {
        SeccompMode::ALL.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// Who may attach, and what the engine itself may do.
#[derive(Clone, Debug)]
pub struct UserConfig {
    pub allowed: Allowed,
    /// Whom the engine runs as once it has opened what it needs root for.
    pub user: RunAs,
    pub seccomp: SeccompMode,
}

pub(super) fn check(
    flags: UserFlags,
    file: FileUsers,
    origin: &dyn Fn(Range<usize>) -> String,
) -> Result<UserConfig, ConfigError> {
    let given = |id: Spanned<Id>| Given { origin: origin(id.span()), value: id.into_inner() };
    let list = |flags: Vec<String>, name: &str, file: Option<Vec<Spanned<Id>>>| -> Vec<Given<Id>> {
        if flags.is_empty() {
            file.into_iter().flatten().map(given).collect()
        } else {
            flags.into_iter().map(|text| Given::flag(text.into(), name)).collect()
        }
    };
    let uids = list(flags.allow_uid, "--allow-uid", file.allow_uids);
    let gids = list(flags.allow_group, "--allow-group", file.allow_groups);
    let user = match (flags.user, file.user) {
        (Some(text), _) => Some(Given::flag(text.into(), "--user")),
        (None, file) => file.map(given),
    };
    let seccomp = match (flags.seccomp, file.seccomp) {
        (Some(text), _) => Some(Given::flag(text, "--seccomp")),
        (None, file) => file.map(|word| Given { origin: origin(word.span()), value: word.into_inner() }),
    };
    Ok(UserConfig {
        allowed: Allowed {
            all: flags.allow_all || file.allow_all.unwrap_or(false),
            uids: uids.iter().map(|id| Ok(find_user(id)?.0)).collect::<Result<_, ConfigError>>()?,
            gids: gids.iter().map(find_group).collect::<Result<_, _>>()?,
        },
        user: match user {
            None => RunAs::own(),
            Some(user) => {
                let (uid, gid) = find_user(&user)?;
                RunAs { uid, gid, is_default: false }
            }
        },
        seccomp: seccomp.map_or(Ok(SeccompMode::default()), |word| find_mode(&word))?,
    })
}

impl RunAs {
    /// The user that is there for engines.
    pub fn own() -> RunAs {
        match User::from_name(OWN_USER) {
            Ok(Some(user)) => RunAs { uid: user.uid.as_raw(), gid: user.gid.as_raw(), is_default: true },
            _ => RunAs { uid: OWN_UID, gid: OWN_UID, is_default: true },
        }
    }

    /// Whether this group has nobody but engines in it, as `nogroup` and `users` have.
    pub fn is_own_group(gid: u32) -> bool {
        let name = || Group::from_gid(gid.into()).ok().flatten().map(|group| group.name);
        gid == OWN_UID || name().is_some_and(|name| name == OWN_USER)
    }
}

/// The number of a user and that of his group. A number need not be anybody's.
fn find_user(id: &Given<Id>) -> Result<(u32, u32), ConfigError> {
    let of = |user: &User| (user.uid.as_raw(), user.gid.as_raw());
    match &id.value {
        Id::Number(uid) => {
            let known = User::from_uid((*uid).into()).ok().flatten();
            Ok(known.as_ref().map_or((*uid, *uid), of))
        }
        Id::Name(name) => {
            let known = User::from_name(name).ok().flatten();
            known.as_ref().map(of).ok_or_else(|| {
                id.bad(format!("no user is called {name:?}; give a number, or a name of /etc/passwd"))
            })
        }
    }
}

fn find_group(id: &Given<Id>) -> Result<u32, ConfigError> {
    match &id.value {
        Id::Number(gid) => Ok(*gid),
        Id::Name(name) => {
            let known = Group::from_name(name).ok().flatten();
            known.map(|group| group.gid.as_raw()).ok_or_else(|| {
                id.bad(format!("no group is called {name:?}; give a number, or a name of /etc/group"))
            })
        }
    }
}

fn find_mode(word: &Given<String>) -> Result<SeccompMode, ConfigError> {
    let found = SeccompMode::ALL.iter().find(|(name, _)| *name == word.value);
    found.map(|(_, mode)| *mode).ok_or_else(|| {
        let names: Vec<&str> = SeccompMode::ALL.iter().map(|(name, _)| *name).collect();
        word.bad(format!("{:?} is no mode; give one of {}", word.value, names.join(", ")))
    })
}
