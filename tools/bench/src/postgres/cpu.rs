//! CPU time by process during a run, from `/proc`.

use std::fs;
use std::time::Duration;

use super::test_cluster::TestCluster;

/// The unit of CPU time in `/proc`: user space always sees hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// CPU time by role.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuTimes {
    pub(super) generator: Duration,
    pub(super) nodes: Duration,
    pub(super) chain: Duration,
    /// All processes of the server, including background workers; `None` when it runs on another machine.
    pub(super) postgres: Option<Duration>,
}

impl CpuTimes {
    pub(super) fn read(cluster: &TestCluster<'_>) -> Self {
        let own = |pid: u32| ProcessStat::read(pid).map_or(Duration::ZERO, |stat| stat.own);
        Self {
            generator: own(std::process::id()),
            nodes: cluster.nodes.iter().map(|node| own(node.child.pid)).sum(),
            chain: own(cluster.chain.pid),
            postgres: cluster.database.postmaster.and_then(family_time),
        }
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            generator: self.generator.saturating_sub(before.generator),
            nodes: self.nodes.saturating_sub(before.nodes),
            chain: self.chain.saturating_sub(before.chain),
            postgres: (self.postgres.zip(before.postgres))
                .map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// The parent of a backend, if the backend is a process of this machine.
pub(super) fn find_postmaster(backend: u32) -> Option<u32> {
    let name = fs::read_to_string(format!("/proc/{backend}/comm")).ok()?;
    // If the server runs elsewhere, this may be the pid of an unrelated process.
    if name.trim() != "postgres" {
        return None;
    }
    ProcessStat::read(backend).map(|stat| stat.parent)
}

/// The CPU time of a process, its children, and its children that have ended.
fn family_time(parent: u32) -> Option<Duration> {
    let head = ProcessStat::read(parent)?;
    let processes = fs::read_dir("/proc").ok()?;
    let children = processes.filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        ProcessStat::read(pid).filter(|stat| stat.parent == parent)
    });
    let children: Duration = children.map(|stat| stat.own).sum();
    Some(head.own + head.of_ended_children + children)
}

struct ProcessStat {
    parent: u32,
    own: Duration,
    of_ended_children: Duration,
}

impl ProcessStat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Fields are counted after the name, which is in parentheses and may contain any character.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u32>().ok();
        let ticks = |at: usize| Some(TICK * number(at)?);
        Some(Self {
            parent: number(1)?,
            own: ticks(11)? + ticks(12)?,
            of_ended_children: ticks(13)? + ticks(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_spaces_and_parentheses_is_skipped() {
        let line = "42 (a ) b) S 7 42 42 0 -1 4194304 100 0 0 0 150 50 30 20 20 0 1 0 1 0 0";
        let stat = ProcessStat::parse(line).unwrap();
        assert_eq!(stat.parent, 7);
        assert_eq!(stat.own, Duration::from_secs(2));
        assert_eq!(stat.of_ended_children, Duration::from_millis(500));
        assert!(ProcessStat::read(std::process::id()).is_some());
    }
}
