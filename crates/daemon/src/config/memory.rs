//! How much memory the engine may have: the machine's, or less where its cgroup, or one above, has a limit.

use std::path::{Path, PathBuf};

/// Files that say a limit, of version 2 and of version 1. What is above `high` is throttled, what is above the others is killed.
const LIMITS_V2: &[&str] = &["memory.max", "memory.high"];
const LIMITS_V1: &[&str] = &["memory.limit_in_bytes"];

/// Bytes. `None`: nobody says.
pub(super) fn available() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    available_by(&read)
}

fn available_by(read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    [of_machine(read), of_cgroups(read)].into_iter().flatten().min()
}

/// MemTotal.
fn of_machine(read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let info = read(Path::new("/proc/meminfo"))?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The least of the limits of the cgroups that this process is in, of both versions, and of all above them.
fn of_cgroups(read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let (mounts, own) = (read(Path::new("/proc/self/mountinfo"))?, read(Path::new("/proc/self/cgroup"))?);
    mounts.lines().filter_map(|line| limit_below(line, &own, read)).min()
}

/// What one mount says, if it is of cgroups that limit memory.
fn limit_below(mount: &str, own: &str, read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let (left, right) = mount.split_once(" - ")?;
    let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
    let (root, point) = (left.next()?, unescaped(left.next()?));
    let (is_v2, options) = (right.next()? == "cgroup2", right.nth(1)?);
    let has_memory = |list: &str| list.split(',').any(|name| name == "memory");
    if !is_v2 && !has_memory(options) {
        return None;
    }
    // HIERARCHY:CONTROLLERS:PATH, of version 2 without controllers.
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        (if is_v2 { controllers.is_empty() } else { has_memory(controllers) }).then_some(path)
    })?;
    // What is mounted may be a part, as in a container.
    let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or_default().trim_start_matches('/');
    let files = if is_v2 { LIMITS_V2 } else { LIMITS_V1 };
    let groups = Path::new(&point).join(below);
    let groups: Vec<PathBuf> = groups.ancestors().map(Path::to_owned).collect();
    let within = groups.iter().take_while(|group| group.starts_with(&point));
    let limits = within.flat_map(|group| files.iter().map(|file| group.join(file)));
    // "max", or a number that no machine has, is none.
    limits.filter_map(|file| read(&file)?.trim().parse().ok()).min()
}

/// A path as /proc/self/mountinfo writes it.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is available where these files are.
    fn with(files: &[(&str, &str)]) -> Option<u64> {
        available_by(&|path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemFree: 5 kB\nMemTotal:        8388608 kB\n");
    const V2: (&str, &str) = (
        "/proc/self/mountinfo",
        "23 1 0:21 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
    );
    const V1: (&str, &str) = (
        "/proc/self/mountinfo",
        "31 30 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu\n32 30 0:28 /docker/x /cg/a\\040b rw - cgroup cgroup rw,memory\n",
    );

    #[test]
    fn without_cgroups_it_is_the_machines() {
        assert_eq!(with(&[MACHINE]), Some(8192 * MIB));
        assert_eq!(with(&[MACHINE, V2, ("/proc/self/cgroup", "0::/\n")]), Some(8192 * MIB));
        assert_eq!(with(&[]), None);
        assert!(available().is_some_and(|bytes| bytes > 64 * MIB), "here");
    }

    #[test]
    fn the_least_limit_of_a_cgroup_and_those_above_it_counts() {
        let own = ("/proc/self/cgroup", "0::/system.slice/toe.service\n");
        let file = |text| ("/sys/fs/cgroup/system.slice/toe.service/memory.max", text);
        assert_eq!(with(&[MACHINE, V2, own, file("209715200\n")]), Some(200 * MIB));
        assert_eq!(with(&[MACHINE, V2, own, file("max\n")]), Some(8192 * MIB));
        let high = ("/sys/fs/cgroup/system.slice/toe.service/memory.high", "104857600\n");
        assert_eq!(with(&[MACHINE, V2, own, file("209715200\n"), high]), Some(100 * MIB));
        let above = ("/sys/fs/cgroup/system.slice/memory.max", "52428800\n");
        assert_eq!(with(&[MACHINE, V2, own, file("max\n"), above]), Some(50 * MIB));
    }

    #[test]
    fn of_version_1_too_and_where_only_a_part_is_mounted() {
        let own = ("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/docker/x/inner\n0::/\n");
        let file = |name, text| (name, text);
        let none = file("/cg/a b/inner/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(with(&[MACHINE, V1, own, none]), Some(8192 * MIB));
        let outer = file("/cg/a b/memory.limit_in_bytes", "157286400\n");
        assert_eq!(with(&[MACHINE, V1, own, none, outer]), Some(150 * MIB));
        let elsewhere = file("/cg/memory.limit_in_bytes", "1\n");
        assert_eq!(with(&[MACHINE, V1, own, none, outer, elsewhere]), Some(150 * MIB));
    }
}
