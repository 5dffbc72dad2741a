//! Where an engine of a given name is found: the one rule that `toed`, `toe` and the host library share.
//!
//! Pure functions over strings; who calls them looks up the user id and the environment.

/// Name of the engine that is meant when none is named.
pub const DEFAULT_ENGINE: &str = "default";
/// Environment variable with the full path of an engine's socket, or of several with ':' between them; `toe run` sets it
/// for the programs it starts.
pub const ENGINE_VARIABLE: &str = "TOE_ENGINE";
/// Directory of the engines that root started.
pub const SYSTEM_DIR: &str = "/run/opentoe";
/// Longest name of an engine.
pub const NAME_LEN_MAX: usize = 48;

/// Directory of the engines that user `euid` starts. `xdg` is the value of `XDG_RUNTIME_DIR`.
pub fn runtime_dir(euid: u32, xdg: Option<&str>) -> String {
    match xdg {
        _ if euid == 0 => SYSTEM_DIR.to_owned(),
        Some(dir) if dir.starts_with('/') => format!("{dir}/opentoe"),
        _ => format!("/tmp/opentoe-{euid}"),
    }
}

/// Directories in which a program of user `euid` looks for an engine, in this order.
pub fn search_dirs(euid: u32, xdg: Option<&str>) -> Vec<String> {
    let own = runtime_dir(euid, xdg);
    if own == SYSTEM_DIR { vec![own] } else { vec![own, SYSTEM_DIR.to_owned()] }
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
        assert_eq!(search_dirs(0, Some("/run/user/0")), ["/run/opentoe"]);
        assert_eq!(search_dirs(1000, Some("/run/user/1000")), ["/run/user/1000/opentoe", "/run/opentoe"]);
        assert_eq!(search_dirs(1000, None), ["/tmp/opentoe-1000", "/run/opentoe"]);
        assert_eq!(runtime_dir(1000, Some("relative")), "/tmp/opentoe-1000");
    }

    #[test]
    fn a_name_cannot_leave_the_directory() {
        assert!(is_valid_name("default") && is_valid_name("run-12.a_b"));
        for bad in ["", ".", "..", ".x", "a/b", "a b", "ä", &"x".repeat(49)] {
            assert!(!is_valid_name(bad), "{bad}");
        }
    }
}
