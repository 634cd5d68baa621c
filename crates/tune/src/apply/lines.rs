//! Files with a setting on each line: sysctl.d, udev rules, tmpfiles.d, and drop-ins of systemd. A line of another value
//! is replaced where it is; everything else in the file stays as it is.

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
}

impl LineFile {
    /// All of them.
    pub(crate) const ALL: [LineFile; 4] = [LineFile::Sysctl, LineFile::Udev, LineFile::Tmpfiles, LineFile::Unit];

    /// Folders and files that can set the same.
    pub(crate) fn others(self) -> &'static [&'static str] {
        match self {
            LineFile::Sysctl => &["/etc/sysctl.d", "/run/sysctl.d", "/usr/lib/sysctl.d"],
            LineFile::Unit => &["/etc/systemd/system/mailrace.service.d"],
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
        LineSetting { file: LineFile::Sysctl, key: name.to_owned(), value: value.to_owned() }
    }

    /// An attribute of a disk, such as `queue/scheduler`.
    pub(crate) fn udev(disk: &str, attribute: &str, value: &str) -> LineSetting {
        let key = format!("ACTION==\"add|change\", SUBSYSTEM==\"block\", KERNEL==\"{disk}\", ATTR{{{attribute}}}");
        LineSetting { file: LineFile::Udev, key, value: value.to_owned() }
    }

    /// A file in /sys, which is written when the host starts.
    pub(crate) fn tmpfiles(path: &str, value: &str) -> LineSetting {
        LineSetting { file: LineFile::Tmpfiles, key: format!("w {path} - - - -"), value: value.to_owned() }
    }

    /// A key of the server's unit.
    pub(crate) fn unit(key: &str, value: &str) -> LineSetting {
        LineSetting { file: LineFile::Unit, key: key.to_owned(), value: value.to_owned() }
    }

    /// The text of the file with this setting.
    pub(crate) fn add_to(&self, text: &str) -> String {
        let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let line = format!("{}{end}", self.line());
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        // The last one wins.
        if let Some(place) = lines.iter().rposition(|line| self.is_in(line)) {
            lines[place] = &line;
            return lines.concat();
        }
        let is_section = |line: &&str| line.trim() == "[Service]";
        if let Some(section) = lines.iter().position(is_section).filter(|_| self.file == LineFile::Unit) {
            let head = lines[..=section].concat();
            let break_after_head = if head.ends_with('\n') { "" } else { end };
            return [&head, break_after_head, &line, &lines[section + 1..].concat()].concat();
        }
        let header = if text.is_empty() { format!("{HEADER}{end}") } else { String::new() };
        let break_before = if text.is_empty() || text.ends_with('\n') { "" } else { end };
        let section = if self.file == LineFile::Unit { format!("[Service]{end}") } else { String::new() };
        [text, break_before, &header, &section, &line].concat()
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
            LineFile::Sysctl => line
                .split_once('=')
                .is_some_and(|(key, _)| key.trim().trim_start_matches('-').replace('/', ".") == self.key),
            LineFile::Unit => line.split_once('=').is_some_and(|(key, _)| key.trim() == self.key),
            LineFile::Udev | LineFile::Tmpfiles => line.starts_with(&self.key),
        }
    }
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
        let rule = LineSetting::udev("sda", "queue/scheduler", "none");
        let once = rule.add_to("");
        assert_eq!(rule.add_to(&once), once);
        assert_eq!(LineSetting { value: "bfq".into(), ..rule.clone() }.add_to(&once), once.replace("none", "bfq"));
        assert_eq!(LineSetting::udev("sdb", "queue/scheduler", "none").add_to(&once).lines().count(), 3);
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
