//! Memory and CPU time of a process, from the kernel.

use std::time::Duration;

use crate::Outcome;

/// The unit of CPU time in `/proc`; the same on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// Resident memory in KiB.
pub fn resident_kib(pid: u32) -> Outcome<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let value = line.and_then(|line| line.split_whitespace().next());
    Ok(value.ok_or("no VmRSS")?.parse()?)
}

/// User and kernel CPU time of all threads since the start.
pub fn cpu(pid: u32) -> Outcome<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may contain anything; the numbers follow it.
    let (_, numbers) = stat.rsplit_once(')').ok_or("no name in stat")?;
    let mut times = numbers.split_whitespace().skip(11).take(2);
    let mut ticks = || -> Outcome<u32> { Ok(times.next().ok_or("no CPU time")?.parse()?) };
    let total = ticks()?.saturating_add(ticks()?);
    Ok(TICK * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_costs_something() {
        let own = std::process::id();
        assert!(resident_kib(own).unwrap() > 100);
        let before = cpu(own).unwrap();
        let mut sum = 0_u64;
        while cpu(own).unwrap() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu(own).unwrap() > before);
    }
}
