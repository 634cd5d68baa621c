//! Values of the network, of cgroups, of pressure and of the processors.

use crate::host::Host;
use crate::process::{ServerProcess, limit};
use crate::survey::Observed;
use crate::value::Value;

/// cgroups of the first version have a number instead of "no limit", which depends on the page size.
const V1_UNLIMITED: u64 = 1 << 62;
/// The length of a period of the first version, in microseconds, unless somebody changed it.
const V1_PERIOD_US: u64 = 100_000;
/// Drivers whose governor "powersave" follows the load.
const DRIVERS_THAT_SCALE: [&str; 3] = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];

/// The number of local ports for outgoing connections.
pub(super) fn port_count(host: &Host) -> Option<u64> {
    let text = host.read("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut words = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (first, last) = (words.next()?.ok()?, words.next()?.ok()?);
    last.checked_sub(first)?.checked_add(1)
}

/// The memory limit of the server's cgroup, in bytes.
pub(super) fn cgroup_memory(host: &Host, server: Option<&ServerProcess>) -> Option<u64> {
    let v1 = ("memory", "memory.limit_in_bytes");
    let limits = server?.cgroup_limits(host, &["memory.max", "memory.high"], v1)?;
    let limits = limits.iter().filter_map(|text| limit(text));
    let least = limits.min().unwrap_or(Value::UNLIMITED);
    Some(if least >= V1_UNLIMITED { Value::UNLIMITED } else { least })
}

/// The processors that the server's cgroup may use, rounded down.
pub(super) fn cgroup_processors(host: &Host, server: Option<&ServerProcess>) -> Option<u64> {
    let limits = server?.cgroup_limits(host, &["cpu.max"], ("cpu", "cpu.cfs_quota_us"))?;
    Some(limits.iter().filter_map(|text| quota(text)).min().unwrap_or(Value::UNLIMITED))
}

/// `QUOTA PERIOD` or `max PERIOD`; the first version has only the quota, which is -1 without a limit.
fn quota(text: &str) -> Option<u64> {
    let mut words = text.split_ascii_whitespace();
    let quota: u64 = words.next()?.parse().ok()?;
    let period = words.next().map_or(Some(V1_PERIOD_US), |word| word.parse().ok())?;
    quota.checked_div(period)
}

/// Without pressure stall information the kernel has no such folder.
pub(super) fn pressure_enabled(host: &Host) -> Option<&'static str> {
    match host.list("/proc/pressure") {
        Some(_) => Some("on"),
        None => host.read("/proc/stat").map(|_| "off"),
    }
}

/// The part of the last five minutes in which all tasks waited, in percent.
pub(super) fn stalled_percent(host: &Host, path: &str) -> Observed {
    pressure_percent(host, path, "full ")
}

/// The part of the last five minutes in which some task waited, in percent. Of processors nothing else is known: while one
/// task waits for one, another has it.
pub(super) fn waiting_percent(host: &Host, path: &str) -> Observed {
    pressure_percent(host, path, "some ")
}

fn pressure_percent(host: &Host, path: &str, kind: &str) -> Observed {
    let Some(text) = host.read(path) else { return Observed::Absent };
    let line = text.lines().find_map(|line| line.strip_prefix(kind));
    let average = line.and_then(|line| line.split(' ').find_map(|word| word.strip_prefix("avg300=")));
    let whole = average.and_then(|average| average.split('.').next());
    Observed::number(whole.and_then(|whole| whole.parse().ok()))
}

/// The governor of all processors; of different ones, the slowest.
pub(super) fn governor(host: &Host) -> Observed {
    let folder = "/sys/devices/system/cpu/cpufreq";
    let policies = host.list(folder).unwrap_or_default();
    let policies = policies.iter().filter(|name| name.starts_with("policy"));
    let mut governors: Vec<String> = policies.filter_map(|name| policy(host, &format!("{folder}/{name}"))).collect();
    governors.sort_by_key(|name| !["powersave", "userspace"].contains(&&**name));
    governors.into_iter().next().map_or(Observed::Absent, |name| Observed::Value(Value::Text(name)))
}

fn policy(host: &Host, folder: &str) -> Option<String> {
    let driver = host.read(&format!("{folder}/scaling_driver")).unwrap_or_default();
    let governor = host.read(&format!("{folder}/scaling_governor"))?;
    match DRIVERS_THAT_SCALE.contains(&driver.trim()) {
        true => Some(format!("{} of {}", governor.trim(), driver.trim())),
        false => Some(governor.trim().to_owned()),
    }
}

/// The part of the time since the start of the host that other virtual machines took, in percent. The figures are in
/// the order of proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of them.
pub(super) fn steal_percent(host: &Host) -> Option<u64> {
    let text = host.read("/proc/stat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Option<Vec<u128>> = line.split_ascii_whitespace().take(8).map(|word| word.parse().ok()).collect();
    let times = times.filter(|times| times.len() == 8)?;
    let total = times.iter().try_fold(0_u128, |sum, time| sum.checked_add(*time))?;
    u64::try_from(times[7].checked_mul(100)?.checked_div(total)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_both_versions_are_processors() {
        assert_eq!(quota("250000 100000\n"), Some(2));
        assert_eq!(quota("max 100000\n"), None);
        assert_eq!(quota("300000\n"), Some(3));
        assert_eq!(quota("-1\n"), None);
        assert_eq!(quota("1 0\n"), None);
    }
}
