//! Processor time by process, from `/proc`: where the cores went while a run lasted.

use std::fs;
use std::time::Duration;

use super::bed::Bed;

/// Linux counts processor time for us in hundredths of a second, on every machine.
const TICK: Duration = Duration::from_millis(10);

/// Processor time of every party.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    pub(super) generator: Duration,
    pub(super) nodes: Duration,
    pub(super) chain: Duration,
    /// All processes of the server, the background's too; `None` when it runs on another machine.
    pub(super) postgres: Option<Duration>,
}

impl Cpu {
    pub(super) fn read(bed: &Bed<'_>) -> Self {
        let own = |pid: u32| Stat::of(pid).map_or(Duration::ZERO, |stat| stat.own);
        Self {
            generator: own(std::process::id()),
            nodes: bed.nodes.iter().map(|node| own(node.child.pid)).sum(),
            chain: own(bed.chain.pid),
            postgres: bed.database.postmaster.and_then(of_family),
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

/// The parent of a backend, when that is a process of this machine.
pub(super) fn postmaster_of(backend: u32) -> Option<u32> {
    let name = fs::read_to_string(format!("/proc/{backend}/comm")).ok()?;
    // Another process may have this number here when the server is elsewhere.
    if name.trim() != "postgres" {
        return None;
    }
    Stat::of(backend).map(|stat| stat.parent)
}

/// A process, its children, and those of its children that have ended.
fn of_family(parent: u32) -> Option<Duration> {
    let head = Stat::of(parent)?;
    let processes = fs::read_dir("/proc").ok()?;
    let children = processes.filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Stat::of(pid).filter(|stat| stat.parent == parent)
    });
    let children: Duration = children.map(|stat| stat.own).sum();
    Some(head.own + head.of_ended_children + children)
}

struct Stat {
    parent: u32,
    own: Duration,
    of_ended_children: Duration,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name stands in parentheses and may hold anything, so the fields are counted after it.
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
    fn a_name_with_spaces_and_parentheses_does_not_move_the_fields() {
        let line = "42 (a ) b) S 7 42 42 0 -1 4194304 100 0 0 0 150 50 30 20 20 0 1 0 1 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat.parent, 7);
        assert_eq!(stat.own, Duration::from_secs(2));
        assert_eq!(stat.of_ended_children, Duration::from_millis(500));
        assert!(Stat::of(std::process::id()).is_some());
    }
}
