//! The programs that a workload needs, and where they are. Used by `runner`, `servers` and `clients`.

use crate::error::{Error, Result};
use crate::options::Workload;
use crate::row::{Load, Row, Web};
use std::path::{Path, PathBuf};

/// Where a plain user's PATH does not look.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// A program and the Debian package that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

pub(crate) const NGINX: Tool = tool("nginx", "nginx");
const OPENSSL: Tool = tool("openssl", "openssl");
pub(crate) const WRK: Tool = tool("wrk", "wrk");
pub(crate) const APACHE: Tool = tool("apache2", "apache2");
pub(crate) const PUMA: Tool = tool("puma", "puma");
/// Its program has its version in its name.
pub(crate) const PHP_FPM: Tool = tool("php-fpm", "php-fpm");
pub(crate) const REDIS: Tool = tool("redis-server", "redis-server");
pub(crate) const REDIS_BENCHMARK: Tool = tool("redis-benchmark", "redis-tools");
pub(crate) const MEMCACHED: Tool = tool("memcached", "memcached");
pub(crate) const MEMCASLAP: Tool = tool("memcaslap", "libmemcached-tools");
/// Needed by every row, for pinning and namespaces.
const ALWAYS: [Tool; 1] = [tool("taskset", "util-linux")];

impl Tool {
    /// Its path.
    pub(crate) fn path(self) -> Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::env::split_paths(&path).chain(SBIN.map(PathBuf::from));
        let dirs: Vec<PathBuf> = dirs.collect();
        let found = dirs.iter().map(|dir| dir.join(self.program)).find(|path| path.is_file());
        found
            .or_else(|| dirs.iter().find_map(|dir| self.of_a_version(dir)))
            .ok_or_else(|| Error::failed(self.program, self.remedy()))
    }

    /// The last of the programs in `dir` whose name is this one's and a version.
    fn of_a_version(self, dir: &Path) -> Option<PathBuf> {
        let is_version =
            |rest: &str| !rest.is_empty() && rest.bytes().all(|c| c == b'.' || c.is_ascii_digit());
        let names = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
        names
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                name.strip_prefix(self.program).is_some_and(is_version)
            })
            .max()
    }

    fn remedy(self) -> String {
        format!("not installed; Debian: apt-get install {} (or scripts/setup.sh bench)", self.package)
    }
}

/// Why a row cannot be measured here: which tools are missing, and how to get them.
pub(crate) fn missing(row: &Row, programs: &std::path::Path) -> Option<String> {
    let wanted: &[Tool] = match row.load {
        Load::Http { .. } | Load::Web { how: Web::Plain, .. } => &[NGINX, WRK],
        Load::Web { .. } => &[NGINX, WRK, OPENSSL],
        Load::App(_) => &[WRK],
        Load::Redis { .. } => &[REDIS, REDIS_BENCHMARK],
        Load::Memcached { .. } => &[MEMCACHED, MEMCASLAP],
        _ => &[],
    };
    let served = if let Load::App(app) = row.load { app.tools() } else { &[] };
    let absent = ALWAYS.iter().chain(wanted).chain(served).find(|tool| tool.path().is_err());
    if let Some(tool) = absent {
        return Some(format!("{} is {}", tool.program, tool.remedy()));
    }
    if row.workload == Workload::Via && !programs.join("toe-message").is_file() {
        return Some(format!("there is no toe-message in {}; run 'make build'", programs.display()));
    }
    if row.workload == Workload::File {
        let wanted = ["libtoe.so", "toe-cable"].into_iter().find(|name| !programs.join(name).is_file());
        if let Some(name) = wanted {
            return Some(format!("there is no {name} in {}; run 'make build'", programs.display()));
        }
    }
    let uses_load = !matches!(row.workload, Workload::Http | Workload::Apps | Workload::Kv);
    if uses_load && !programs.join("toe-load").is_file() {
        return Some(format!("there is no toe-load in {}; run 'make build'", programs.display()));
    }
    None
}
