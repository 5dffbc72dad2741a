//! Who may do what: attach, control the engine, see the sockets of others, hand the right to attach on. One value, asked
//! by whoever takes control connections and by `attach`, `capture` and `report`; it may be asked from any thread.
//!
//! Who somebody is, is what the kernel says of his control connection ([`Credentials`]), and nothing that he says himself.
//!
//! | may … | who |
//! |---|---|
//! | attach | root, the starter, whom `--allow-uid`, `--allow-group` or `--allow-all` names, and to whom root or the starter handed the right on |
//! | control (stop, capture of all, reports of all) | root and the starter, in the engine's own network namespace |
//! | hand on | root and the starter, to users of their own network namespace |
//! | see a socket | who may control; else the user whose it is, in the network namespace that he is in |

use crate::sys;
use nix::sys::socket::{getsockopt, sockopt};
use std::collections::HashMap;
use std::fs::Permissions;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::{Cred, NetNs};

/// Users to whom the right was handed on, at once; each costs some bytes.
const ADMITTED_MAX: usize = 4096;
/// Users whom one takes along who is not trusted: each has quotas of his own, and he could be thousands.
const TAKEN_ALONG_MAX: usize = 8;
/// The socket is closed to the kernel's own check but for its owner, a group, or nobody.
const MODE_OWN: u32 = 0o600;
const MODE_GROUP: u32 = 0o660;
const MODE_ALL: u32 = 0o666;

/// Who is at the other end of a control connection, as the kernel says: at the time when it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// 0: in a process-id namespace that cannot be seen from here.
    pub pid: u32,
    pub uid: u32,
    pub netns: NetNs,
}

impl Credentials {
    /// Who is at the other end.
    pub fn of(connection: impl AsFd) -> std::io::Result<Credentials> {
        let peer = getsockopt(&connection, sockopt::PeerCredentials)?;
        let netns = sys::netns_of(&connection);
        Ok(Credentials {
            pid: u32::try_from(peer.pid()).unwrap_or(0),
            uid: peer.uid(),
            netns: netns.ok_or_else(|| std::io::Error::other("the kernel is older than Linux 5.14"))?,
        })
    }

    /// The user in his network namespace: to whom his sockets belong.
    pub fn cred(&self) -> Cred {
        Cred { uid: self.uid, netns: self.netns }
    }
}

/// Who may attach besides root and the starter, as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    pub all: bool,
    pub uids: Vec<u32>,
    pub gids: Vec<u32>,
}

impl Allowed {
    pub fn is_nobody(&self) -> bool {
        !self.all && self.uids.is_empty() && self.gids.is_empty()
    }
}

/// Who is to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// By his number.
    ByNumber(u32),
    /// By memory that is his: who has that from nobody else can make himself this user, as root of his user namespace can.
    ByMemory(u32),
}

impl Named {
    pub const fn uid(self) -> u32 {
        match self {
            Named::ByNumber(uid) | Named::ByMemory(uid) => uid,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Policy {
    /// The user who started the engine. It may run as another by now.
    pub starter: u32,
    /// The engine's own network namespace.
    pub netns: NetNs,
    pub allowed: Allowed,
    /// What a session gets.
    pub layout: RegionLayout,
    /// Users, each in a network namespace, to whom the right was handed on. They keep it until the engine ends: a server
    /// may make a worker of that user at any time, and nothing tells that it never will again.
    /// With each, the user who did.
    admitted: Mutex<HashMap<Cred, u32>>,
    /// Where the socket is, and what it is opened to when somebody is let in whom its mode keeps out.
    socket: OnceLock<PathBuf>,
}

impl Policy {
    pub fn new(starter: Cred, allowed: Allowed, layout: RegionLayout) -> Policy {
        let Cred { uid: starter, netns } = starter;
        Policy { starter, netns, allowed, layout, admitted: Mutex::default(), socket: OnceLock::new() }
    }

    /// From now on the socket at `path` is opened to more users when the right is handed on.
    pub fn guard_socket(&self, path: PathBuf) {
        // There is one.
        let _ = self.socket.set(path);
    }

    /// Root and whoever started the engine, wherever they are.
    pub fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == self.starter
    }

    /// `groups` gives those that he is in, his own and the others.
    pub fn may_attach(&self, who: &Credentials, groups: impl FnOnce() -> Vec<u32>) -> bool {
        let Allowed { all, uids, gids } = &self.allowed;
        let is_in_one = || !gids.is_empty() && groups().iter().any(|gid| gids.contains(gid));
        self.is_trusted(who.uid)
            || *all
            || uids.contains(&who.uid)
            || self.admitted().contains_key(&who.cred())
            || is_in_one()
    }

    /// Root of a container that has a network namespace of its own is not root here.
    pub fn may_control(&self, who: &Credentials) -> bool {
        self.is_trusted(who.uid) && who.netns == self.netns
    }

    /// Whether `who` may see what belongs to `owner`.
    pub fn may_see(&self, who: &Credentials, owner: Cred) -> bool {
        self.may_control(who) || owner == who.cred()
    }

    /// `who` is about to become that user, who then may attach, too. EPERM: he has no right to hand on. ENOBUFS: he has done so too often. Whom the engine was told of
    /// hands his own on to whoever he can make himself; root and the starter to anybody.
    pub fn admit(&self, who: &Credentials, user: Named) -> Result<(), Errno> {
        let is_his = matches!(user, Named::ByMemory(_)) && self.allowed.uids.contains(&who.uid);
        let uid = user.uid();
        if !is_his && !self.is_trusted(who.uid) {
            return Err(Errno::EPERM);
        }
        let admittee = Cred { uid, netns: who.netns };
        let mut admitted = self.admitted();
        if admitted.contains_key(&admittee) {
            return Ok(());
        }
        let taken_along = || admitted.values().filter(|by| **by == who.uid).count();
        if admitted.len() >= ADMITTED_MAX || !self.is_trusted(who.uid) && taken_along() >= TAKEN_ALONG_MAX {
            return Err(Errno::ENOBUFS);
        }
        admitted.insert(admittee, who.uid);
        tracing::info!(pid = who.pid, by = who.uid, uid, "another user may attach from now on");
        self.open_socket();
        Ok(())
    }

    fn admitted(&self) -> MutexGuard<'_, HashMap<Cred, u32>> {
        // A set of numbers is whole whoever panicked beside it.
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the kernel checks before the engine does: the socket's permissions.
    pub fn socket_mode(&self) -> u32 {
        let Allowed { all, uids, gids } = &self.allowed;
        // The kernel's check knows one owner and one group; for more than that it is the engine that checks.
        match (*all || !uids.is_empty(), gids.len()) {
            // Of root's engine the owner is another, and root, too, may lack the right to pass over a file's mode; the group
            // is root's.
            (false, 0) if self.starter == 0 => MODE_GROUP,
            (false, 0) => MODE_OWN,
            (false, 1) => MODE_GROUP,
            _ => MODE_ALL,
        }
    }

    /// The group that the socket is to belong to.
    pub fn socket_group(&self) -> Option<u32> {
        (self.socket_mode() == MODE_GROUP).then(|| self.allowed.gids.first().copied()).flatten()
    }

    fn open_socket(&self) {
        let Some(path) = self.socket.get().filter(|_| self.socket_mode() != MODE_ALL) else { return };
        if let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(MODE_ALL)) {
            tracing::warn!(%error, path = %path.display(), "the socket cannot be opened to another user");
        }
    }

    /// What to do so that `uid` may attach, for the log.
    pub fn remedy(uid: u32) -> String {
        format!("start the engine with --allow-uid {uid}, or with --allow-group or --allow-all")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::TempDir;
    use std::fs;

    const HERE: NetNs = NetNs(1);
    const ELSEWHERE: NetNs = NetNs(2);

    fn policy(allowed: Allowed) -> Policy {
        let layout = RegionLayout { queue_sets: 1, flows: 1, receive_len: 4096, send_len: 4096 };
        Policy::new(Cred { uid: 1000, netns: HERE }, allowed, layout)
    }

    fn user(uid: u32) -> Credentials {
        Credentials { pid: 1, uid, netns: HERE }
    }

    #[test]
    fn by_default_only_root_and_the_starter_attach() {
        let policy = policy(Allowed::default());
        assert!(policy.may_attach(&user(0), Vec::new) && policy.may_attach(&user(1000), Vec::new));
        assert!(!policy.may_attach(&user(33), Vec::new));
        assert_eq!((policy.socket_mode(), policy.socket_group()), (0o600, None));
        let of_root = Policy { starter: 0, ..policy };
        assert_eq!((of_root.socket_mode(), of_root.socket_group()), (0o660, None));
    }

    #[test]
    fn others_attach_by_user_by_group_or_all() {
        let by_uid = policy(Allowed { uids: vec![33], ..Allowed::default() });
        assert!(by_uid.may_attach(&user(33), Vec::new) && !by_uid.may_attach(&user(34), Vec::new));
        assert_eq!(by_uid.socket_mode(), 0o666);
        let by_group = policy(Allowed { gids: vec![7], ..Allowed::default() });
        assert!(by_group.may_attach(&user(33), || vec![6, 7]));
        assert!(!by_group.may_attach(&user(33), Vec::new));
        assert_eq!((by_group.socket_mode(), by_group.socket_group()), (0o660, Some(7)));
        let all = policy(Allowed { all: true, ..Allowed::default() });
        assert!(all.may_attach(&user(4242), Vec::new));
        assert_eq!(all.socket_mode(), 0o666);
    }

    #[test]
    fn control_is_for_root_and_the_starter_in_the_engines_own_namespace() {
        let policy = policy(Allowed { all: true, ..Allowed::default() });
        assert!(policy.may_control(&user(0)) && policy.may_control(&user(1000)));
        assert!(!policy.may_control(&user(33)));
        for uid in [0, 1000] {
            assert!(!policy.may_control(&Credentials { netns: ELSEWHERE, ..user(uid) }));
        }
    }

    #[test]
    fn others_see_what_is_theirs_where_they_are() {
        let policy = policy(Allowed { all: true, ..Allowed::default() });
        assert!(policy.may_see(&user(0), Cred { uid: 33, netns: ELSEWHERE }));
        assert!(policy.may_see(&user(33), Cred { uid: 33, netns: HERE }));
        assert!(
            !policy.may_see(&user(33), Cred { uid: 33, netns: ELSEWHERE })
                && !policy.may_see(&user(33), Cred { uid: 34, netns: HERE })
        );
        let contained = Credentials { netns: ELSEWHERE, ..user(0) };
        assert!(
            policy.may_see(&contained, Cred { uid: 0, netns: ELSEWHERE })
                && !policy.may_see(&contained, Cred { uid: 0, netns: HERE })
        );
    }

    #[test]
    fn who_may_attach_by_his_number_takes_those_along_whom_he_can_become() {
        let policy = policy(Allowed { uids: vec![100_000], ..Allowed::default() });
        assert_eq!(policy.admit(&user(100_000), Named::ByNumber(100_033)), Err(Errno::EPERM));
        assert_eq!(policy.admit(&user(100_000), Named::ByMemory(100_033)), Ok(()));
        assert!(policy.may_attach(&user(100_033), Vec::new) && !policy.may_control(&user(100_033)));
        let many =
            (0..100).filter(|uid| policy.admit(&user(100_000), Named::ByMemory(200_000 + uid)).is_ok());
        assert_eq!(many.count(), TAKEN_ALONG_MAX - 1, "he could be thousands");
        assert_eq!(policy.admit(&user(100_000), Named::ByMemory(100_033)), Ok(()), "it is known");
        assert_eq!(policy.admit(&user(0), Named::ByNumber(33)), Ok(()), "which hinders nobody else");
    }

    #[test]
    fn the_right_is_handed_on_within_a_namespace_and_not_further() {
        let policy = policy(Allowed::default());
        assert_eq!(policy.admit(&user(33), Named::ByNumber(33)), Err(Errno::EPERM));
        assert_eq!(policy.admit(&user(0), Named::ByNumber(33)), Ok(()));
        assert!(policy.may_attach(&user(33), Vec::new));
        assert!(!policy.may_attach(&Credentials { netns: ELSEWHERE, ..user(33) }, Vec::new));
        assert_eq!(
            policy.admit(&user(33), Named::ByNumber(34)),
            Err(Errno::EPERM),
            "who was let in lets nobody in"
        );
        assert!(!policy.may_control(&user(33)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let policy = policy(Allowed::default());
        for uid in 0..ADMITTED_MAX as u32 {
            assert_eq!(policy.admit(&user(0), Named::ByNumber(uid)), Ok(()));
        }
        assert_eq!(policy.admit(&user(0), Named::ByNumber(ADMITTED_MAX as u32)), Err(Errno::ENOBUFS));
        assert_eq!(policy.admit(&user(0), Named::ByNumber(7)), Ok(()), "it is known");
    }

    #[test]
    fn the_socket_opens_when_the_right_is_handed_on() {
        let dir = TempDir::new();
        let path = dir.path().join("a.sock");
        fs::write(&path, "").expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("chmod");
        let policy = policy(Allowed::default());
        policy.guard_socket(path.clone());
        policy.admit(&user(0), Named::ByNumber(33)).expect("admitted");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o666);
    }
}
