//! Where an engine of a given name is found: the one rule that `toed`, `toe` and the host library share.
//!
//! Pure functions over strings; who calls them looks up the user id and the environment.

/// Name of the engine that is meant when none is named.
pub const DEFAULT_ENGINE: &str = "default";
/// Environment variable with the full path of an engine's socket, or of several with ':' between them; `toe run` sets it
/// for the programs it starts.
pub const ENGINE_VARIABLE: &str = "TOE_ENGINE";
/// Environment variable with the user ids, ':' between them, of further users whose engines a program trusts.
pub const ENGINE_UID_VARIABLE: &str = "TOE_ENGINE_UID";
/// Directory of the engines that root started.
pub const SYSTEM_DIR: &str = "/run/opentoe";
/// Longest name of an engine.
pub const NAME_LEN_MAX: usize = 48;

/// Directories in which the engines that user `euid` starts have their sockets: the first that can be had. `xdg` is the value of
/// `XDG_RUNTIME_DIR`, which counts for root only after /run: sudo may hand on another user's.
pub fn runtime_dirs(euid: u32, xdg: Option<&str>) -> Vec<String> {
    let own = xdg.filter(|dir| dir.starts_with('/')).map(|dir| format!("{dir}/opentoe"));
    if euid == 0 {
        // /run may be read-only, or another user's, as for root of a user namespace.
        return [SYSTEM_DIR.to_owned()].into_iter().chain(own).chain([dir_in_tmp(euid)]).collect();
    }
    vec![own.unwrap_or_else(|| dir_in_tmp(euid))]
}

/// The one of [`runtime_dirs`] that anybody could have made: see [`is_good_dir`].
pub fn dir_in_tmp(euid: u32) -> String {
    format!("/tmp/opentoe-{euid}")
}

/// Directories in which a program of user `euid` looks for an engine, in this order.
pub fn search_dirs(euid: u32, xdg: Option<&str>) -> Vec<String> {
    let mut dirs = runtime_dirs(euid, xdg);
    if euid != 0 {
        dirs.push(SYSTEM_DIR.to_owned());
    }
    dirs
}

/// Whether a program trusts an engine that `engine` started: it reads and writes all that goes through it. `own`: the
/// program's users, real and effective; `listed`: the value of [`ENGINE_UID_VARIABLE`].
pub fn trusts(engine: u32, own: [u32; 2], listed: Option<&str>) -> bool {
    let listed = listed.unwrap_or_default();
    engine == 0 || own.contains(&engine) || listed.split(':').any(|uid| uid.trim().parse() == Ok(engine))
}

/// Whose engines, besides root's, a process trusts: its own user's. `is_secure`: it has got rights by being executed (AT_SECURE), and then
/// who executed it is nobody to trust; by group or capabilities alone it has only his user.
pub fn own_users(real: u32, effective: u32, is_secure: bool) -> [u32; 2] {
    match is_secure {
        true if real == effective => [0; 2],
        true => [effective; 2],
        false => [real, effective],
    }
}

/// Whether a directory of [`search_dirs`] can have engines of user `euid` in it: in /tmp anybody may have made it. `mode` is
/// that of the directory itself, not of what a link leads to.
pub fn is_good_dir(is_dir: bool, owner: u32, mode: u32, euid: u32) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    is_dir && (owner == 0 || owner == euid && mode & OTHERS_WRITE == 0)
}

/// The socket at which the engine `name` listens.
pub fn socket_path(dir: &str, name: &str) -> String {
    format!("{dir}/{name}.sock")
}

/// Whether `name` can be an engine's: it becomes part of a file name.
pub fn is_valid_name(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= NAME_LEN_MAX && !name.starts_with('.') && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_directory_and_may_use_roots() {
        assert_eq!(
            search_dirs(0, Some("/run/user/0")),
            ["/run/opentoe", "/run/user/0/opentoe", "/tmp/opentoe-0"]
        );
        assert_eq!(search_dirs(1000, Some("/run/user/1000")), ["/run/user/1000/opentoe", "/run/opentoe"]);
        assert_eq!(search_dirs(1000, None), ["/tmp/opentoe-1000", "/run/opentoe"]);
        assert_eq!(runtime_dirs(1000, Some("relative")), ["/tmp/opentoe-1000"]);
    }

    #[test]
    fn a_program_trusts_its_own_user_root_and_whom_it_is_told() {
        assert!(
            trusts(0, [1000, 1000], None) && trusts(1000, [1000, 33], None) && trusts(33, [1000, 33], None)
        );
        assert!(!trusts(1001, [1000, 1000], None) && !trusts(1001, [0, 0], None));
        assert!(trusts(1001, [1000, 1000], Some("7:1001")) && !trusts(1001, [1000, 1000], Some("7:10011")));
    }

    #[test]
    fn who_executed_a_program_with_more_rights_is_not_trusted() {
        assert_eq!(own_users(1000, 33, false), [1000, 33]);
        assert_eq!(own_users(1000, 0, true), [0, 0]);
        assert_eq!(own_users(1000, 33, true), [33, 33]);
        assert!(!trusts(1000, own_users(1000, 1000, true), None), "set-group-id, or file capabilities");
    }

    #[test]
    fn a_directory_is_good_where_nobody_else_could_have_put_something() {
        assert!(is_good_dir(true, 1000, 0o700, 1000) && is_good_dir(true, 0, 0o1775, 1000));
        assert!(!is_good_dir(true, 1001, 0o700, 1000), "a stranger's");
        assert!(!is_good_dir(true, 1000, 0o777, 1000) && !is_good_dir(false, 1000, 0o700, 1000));
    }

    #[test]
    fn a_name_cannot_leave_the_directory() {
        assert!(is_valid_name("default") && is_valid_name("run-12.a_b"));
        for bad in ["", ".", "..", ".x", "a/b", "a b", "ä", &"x".repeat(49)] {
            assert!(!is_valid_name(bad), "{bad}");
        }
    }
}
