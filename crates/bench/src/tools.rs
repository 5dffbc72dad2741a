//! The programs that a workload needs, and where they are. Used by `runner`, `servers` and `clients`.

use crate::error::{Error, Result};
use crate::options::Workload;
use crate::row::{Load, Row};
use std::path::PathBuf;

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
pub(crate) const WRK: Tool = tool("wrk", "wrk");
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
        let found = dirs.map(|dir| dir.join(self.program)).find(|path| path.is_file());
        found.ok_or_else(|| Error::failed(self.program, self.remedy()))
    }

    fn remedy(self) -> String {
        format!("not installed; Debian: apt-get install {} (or scripts/setup.sh bench)", self.package)
    }
}

/// Why a row cannot be measured here: which tools are missing, and how to get them.
pub(crate) fn missing(row: &Row, programs: &std::path::Path) -> Option<String> {
    let wanted: &[Tool] = match row.load {
        Load::Http { .. } => &[NGINX, WRK],
        Load::Redis { .. } => &[REDIS, REDIS_BENCHMARK],
        Load::Memcached { .. } => &[MEMCACHED, MEMCASLAP],
        _ => &[],
    };
    let absent = ALWAYS.iter().chain(wanted).find(|tool| tool.path().is_err());
    if let Some(tool) = absent {
        return Some(format!("{} is {}", tool.program, tool.remedy()));
    }
    let uses_load = !matches!(row.workload, Workload::Http | Workload::Kv);
    if uses_load && !programs.join("toe-load").is_file() {
        return Some(format!("there is no toe-load in {}; run 'make build'", programs.display()));
    }
    None
}
