//! Files with a setting on each line: sysctl.d, udev rules, tmpfiles.d, and drop-ins of systemd. A line of another value
//! is replaced where it is; everything else in the file stays as it is. But the scheduler of a disk comes before the disk's
//! other values, which it would reset, and a value that another one sets to 0 has no line beside that one.

use crate::process::DROP_INS;

/// The first line of a new file.
const HEADER: &str = "# Written by `mailrace tune apply`; `mailrace tune revert` removes it.";

/// A file with a setting on each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFile {
    /// sysctl.d(5).
    Sysctl,
    /// udev(7).
    Udev,
    /// tmpfiles.d(5).
    Tmpfiles,
    /// The section `[Service]` of systemd.unit(5).
    Unit,
}

/// A setting of a [`LineFile`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineSetting {
    /// The file.
    pub(crate) file: LineFile,
    /// What the line says before the value.
    pub(crate) key: String,
    /// The value.
    pub(crate) value: String,
    /// The key of a value that the kernel sets to 0 with this one.
    pub(crate) rival: Option<String>,
}

/// The end of the key of a scheduler.
const SCHEDULER: &str = "ATTR{queue/scheduler}";

impl LineFile {
    /// All of them.
    pub(crate) const ALL: [LineFile; 4] = [LineFile::Sysctl, LineFile::Udev, LineFile::Tmpfiles, LineFile::Unit];

    /// Folders of files that can set the same, where that is decided by their names alone.
    pub(crate) fn others(self) -> &'static [&'static str] {
        match self {
            LineFile::Sysctl => &["/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d"],
            LineFile::Unit => &DROP_INS,
            LineFile::Udev | LineFile::Tmpfiles => &[],
        }
    }

    /// Its path. The number decides the order in which files of several programs are read.
    pub(crate) fn path(self) -> &'static str {
        match self {
            LineFile::Sysctl => "/etc/sysctl.d/60-mailrace.conf",
            LineFile::Udev => "/etc/udev/rules.d/60-mailrace.rules",
            LineFile::Tmpfiles => "/etc/tmpfiles.d/60-mailrace.conf",
            LineFile::Unit => "/etc/systemd/system/mailrace.service.d/60-mailrace.conf",
        }
    }
}

impl LineSetting {
    /// A sysctl, such as `net.core.somaxconn`.
    pub(crate) fn sysctl(name: &str, value: &str) -> LineSetting {
        LineSetting { file: LineFile::Sysctl, key: name.to_owned(), value: value.to_owned(), rival: None }
    }

    /// An attribute, such as `queue/scheduler`, of the disk that these conditions of a rule find.
    pub(crate) fn udev(disk: &str, attribute: &str, value: &str) -> LineSetting {
        let key = format!("ACTION==\"add|change\", SUBSYSTEM==\"block\", {disk}, ATTR{{{attribute}}}");
        LineSetting { file: LineFile::Udev, key, value: value.to_owned(), rival: None }
    }

    /// A file in /sys, which is written when the host starts.
    pub(crate) fn tmpfiles(path: &str, value: &str) -> LineSetting {
        let key = format!("w {path} - - - -");
        LineSetting { file: LineFile::Tmpfiles, key, value: value.to_owned(), rival: None }
    }

    /// A key of the server's unit.
    pub(crate) fn unit(key: &str, value: &str) -> LineSetting {
        LineSetting { file: LineFile::Unit, key: key.to_owned(), value: value.to_owned(), rival: None }
    }

    /// The text of the file with this setting.
    pub(crate) fn add_to(&self, text: &str) -> String {
        let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let line = format!("{}{end}", self.line());
        let mut lines: Vec<&str> = text.split_inclusive('\n').filter(|line| !self.replaces(line)).collect();
        // The last one wins.
        let known = lines.iter().rposition(|line| self.is_in(line));
        let reset = lines.iter().position(|line| self.resets(line));
        match (known, reset) {
            (Some(known), Some(reset)) if reset < known => {
                lines.remove(known);
                lines.insert(reset, &line);
            }
            (Some(known), _) => lines[known] = &line,
            (None, Some(reset)) => lines.insert(reset, &line),
            (None, None) => return self.add_at_end(&lines, text.is_empty(), &line, end),
        }
        lines.concat()
    }

    fn add_at_end(&self, lines: &[&str], is_new: bool, line: &str, end: &str) -> String {
        let is_section = |line: &&str| line.trim() == "[Service]";
        if let Some(section) = lines.iter().position(is_section).filter(|_| self.file == LineFile::Unit) {
            let head = lines[..=section].concat();
            let break_after_head = if head.ends_with('\n') { "" } else { end };
            return [&head, break_after_head, line, &lines[section + 1..].concat()].concat();
        }
        let text = lines.concat();
        let header = if is_new { format!("{HEADER}{end}") } else { String::new() };
        let break_before = if text.is_empty() || text.ends_with('\n') { "" } else { end };
        let section = if self.file == LineFile::Unit { format!("[Service]{end}") } else { String::new() };
        [&text, break_before, &header, &section, line].concat()
    }

    fn line(&self) -> String {
        let LineSetting { key, value, .. } = self;
        match self.file {
            LineFile::Sysctl => format!("{key} = {value}"),
            LineFile::Udev => format!("{key}=\"{value}\""),
            LineFile::Tmpfiles => format!("{key} {value}"),
            LineFile::Unit => format!("{key}={value}"),
        }
    }

    /// Whether a line sets the same.
    pub(crate) fn is_in(&self, line: &str) -> bool {
        let line = line.trim();
        match self.file {
            LineFile::Sysctl => sysctl_key(line).as_ref() == Some(&self.key),
            LineFile::Unit => line.split_once('=').is_some_and(|(key, _)| key.trim() == self.key),
            LineFile::Udev | LineFile::Tmpfiles => line.starts_with(&self.key),
        }
    }

    /// Whether a line sets what this setting sets to 0.
    pub(crate) fn replaces(&self, line: &str) -> bool {
        self.rival.is_some() && sysctl_key(line.trim()) == self.rival
    }

    /// Whether a line sets what the kernel resets when this setting, a scheduler, is set after it.
    fn resets(&self, line: &str) -> bool {
        let disk = self.key.strip_suffix(SCHEDULER).filter(|_| self.file == LineFile::Udev);
        disk.is_some_and(|disk| line.trim().starts_with(disk) && !self.is_in(line))
    }
}

/// The key of a line of sysctl.d(5), with dots.
fn sysctl_key(line: &str) -> Option<String> {
    let (key, _) = line.split_once('=')?;
    Some(key.trim().trim_start_matches('-').replace('/', "."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somaxconn() -> LineSetting {
        LineSetting::sysctl("net.core.somaxconn", "1024")
    }

    #[test]
    fn a_new_file_says_who_wrote_it() {
        assert_eq!(somaxconn().add_to(""), format!("{HEADER}\nnet.core.somaxconn = 1024\n"));
        let unit = LineSetting::unit("LimitNOFILE", "9").add_to("");
        assert_eq!(unit, format!("{HEADER}\n[Service]\nLimitNOFILE=9\n"));
    }

    #[test]
    fn another_value_is_replaced_where_it_is() {
        let text = "# mine\r\n-net/core/somaxconn=1\r\nvm.swappiness = 1\r\n net.core.somaxconn = 2\r\n# end";
        let expected = "# mine\r\n-net/core/somaxconn=1\r\nvm.swappiness = 1\r\nnet.core.somaxconn = 1024\r\n# end";
        assert_eq!(somaxconn().add_to(text), expected);
        let rule = LineSetting::udev("KERNEL==\"sda\"", "queue/scheduler", "none");
        let once = rule.add_to("");
        assert_eq!(rule.add_to(&once), once);
        assert_eq!(LineSetting { value: "bfq".into(), ..rule.clone() }.add_to(&once), once.replace("none", "bfq"));
        assert_eq!(LineSetting::udev("KERNEL==\"sdb\"", "queue/scheduler", "none").add_to(&once).lines().count(), 3);
    }

    /// At the start of the host, a scheduler that is set later resets the number of requests.
    #[test]
    fn the_scheduler_of_a_disk_comes_before_its_other_values() {
        let rule = |disk: &str, attribute: &str, value: &str| {
            LineSetting::udev(&format!("KERNEL==\"{disk}\""), attribute, value)
        };
        let attributes = |text: &str| {
            let short = |line: &str| line.split_once("KERNEL==").map(|(_, rest)| rest.replace(['"', '{', '}'], ""));
            text.lines().filter_map(short).collect::<Vec<_>>()
        };
        let requests =
            rule("sda", "queue/nr_requests", "64").add_to(&rule("sdb", "queue/nr_requests", "32").add_to(""));
        let scheduler = rule("sda", "queue/scheduler", "mq-deadline");
        let both = scheduler.add_to(&requests);
        let (other, requests) = ("sdb, ATTRqueue/nr_requests=32", "sda, ATTRqueue/nr_requests=64");
        assert_eq!(attributes(&both), [other, "sda, ATTRqueue/scheduler=mq-deadline", requests]);
        assert_eq!(scheduler.add_to(&both), both);
        // A file in which the lines are the other way round.
        let wrong = both.lines().rev().map(|line| format!("{line}\n")).collect::<String>();
        let right = rule("sda", "queue/scheduler", "none").add_to(&wrong);
        assert_eq!(attributes(&right), ["sda, ATTRqueue/scheduler=none", requests, other]);
    }

    /// At the start of the host, the later line of the two would win.
    #[test]
    fn a_value_that_another_one_sets_to_0_has_no_line_beside_it() {
        let bytes = LineSetting { rival: Some("vm.dirty_ratio".into()), ..LineSetting::sysctl("vm.dirty_bytes", "9") };
        let text = "# mine\nvm/dirty_ratio = 5\nvm.dirty_ratio_x = 1\n";
        assert_eq!(bytes.add_to(text), "# mine\nvm.dirty_ratio_x = 1\nvm.dirty_bytes = 9\n");
        assert_eq!(bytes.add_to("vm.dirty_ratio = 5"), "vm.dirty_bytes = 9\n");
        assert!(bytes.replaces(" -vm.dirty_ratio=1") && !bytes.replaces("vm.dirty_bytes = 1"));
    }

    #[test]
    fn a_file_without_a_final_line_end_gets_one_first() {
        assert_eq!(somaxconn().add_to("vm.swappiness = 1"), "vm.swappiness = 1\nnet.core.somaxconn = 1024\n");
        let unit = LineSetting::unit("LimitNOFILE", "9");
        assert_eq!(unit.add_to("[Service]"), "[Service]\nLimitNOFILE=9\n");
        assert_eq!(unit.add_to("[Unit]\n"), "[Unit]\n[Service]\nLimitNOFILE=9\n");
        assert_eq!(unit.add_to("[Service]\nUMask=0077\n"), "[Service]\nLimitNOFILE=9\nUMask=0077\n");
    }

    #[test]
    fn a_file_in_sys_is_written_when_the_host_starts() {
        let line = LineSetting::tmpfiles("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
        assert!(line.add_to("").ends_with("\nw /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise\n"));
    }
}
