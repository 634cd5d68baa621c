//! Gives back the pages of the program and its libraries that only the start has used. All unsafe
//! code of the binary is here.
//!
//! The start runs much code once: the command line, the configuration, the setup of libraries. The
//! kernel maps 64 KiB and more around each page that is used, and a mapped page counts as resident
//! memory as long as the process runs. What is used again is mapped again from the page cache, at
//! the cost of a minor fault for many pages.
#![expect(unsafe_code, reason = "no safe wrapper gives back the pages of a mapping")]

use std::fs;

use rustix::mm::{Advice, madvise};

/// The mappings of files that the process only reads, as of the start.
pub(crate) struct ProgramPages(Vec<ReadOnlyMapping>);

#[derive(Debug, PartialEq, Eq)]
struct ReadOnlyMapping {
    start: usize,
    octets: usize,
}

impl ProgramPages {
    /// Finds the mappings of the program and of the libraries that are loaded with it. Call it
    /// before other threads start. There are none if the kernel does not tell.
    pub(crate) fn find() -> ProgramPages {
        ProgramPages(read_only_mappings(&fs::read_to_string("/proc/self/smaps").unwrap_or_default()))
    }

    /// Unmaps their pages.
    pub(crate) fn release(&self) {
        for &ReadOnlyMapping { start, octets } in &self.0 {
            // SAFETY: No page of the mapping was ever written, and none can be: it is private to
            // this process, not writable, and the loader had finished with it when it was found. So
            // each page reads the same from the file. It stays where it is, since libraries that are
            // loaded with the program are never unloaded.
            let released = unsafe { madvise(std::ptr::without_provenance_mut(start), octets, Advice::LinuxDontNeed) };
            // A failure only costs memory.
            let _ = released;
        }
    }
}

/// The private mappings of files in the text of smaps (proc_pid_smaps(5)) that are not writable and
/// have no page of their own. Those that the loader has relocated have some, and so do those in
/// which a debugger has set a breakpoint.
fn read_only_mappings(smaps: &str) -> Vec<ReadOnlyMapping> {
    let (mut found, mut current) = (Vec::new(), None);
    for line in smaps.lines() {
        match line.split_once(':') {
            Some(("Anonymous", rest)) if rest.trim() == "0 kB" => found.extend(current.take()),
            // Only the first line of a mapping begins with a range of addresses.
            _ if line.split(' ').next().is_some_and(|range| range.contains('-')) => current = read_only_file(line),
            _ => {}
        }
    }
    found
}

/// The mapping of `55d0-55d8 r-xp 00001000 fe:00 4711   /usr/sbin/mailrace`.
fn read_only_file(line: &str) -> Option<ReadOnlyMapping> {
    let mut fields = line.split_ascii_whitespace();
    let (range, rights, path) = (fields.next()?, fields.next()?, fields.nth(3)?);
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
    let is_read_only = rights.starts_with('r') && !rights.contains('w') && rights.ends_with('p');
    let start = start.filter(|_| is_read_only && path.starts_with('/'))?;
    Some(ReadOnlyMapping { start, octets: end?.checked_sub(start)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_reads_the_same_from_the_file_is_released() {
        let mapping = |line: &str, anonymous| {
            format!("{line}\nSize:    8 kB\nRss:     8 kB\nAnonymous:   {anonymous} kB\nVmFlags: rd mr mw me sd\n")
        };
        let smaps = [
            mapping("1000-3000 r--p 00000000 fe:00 47                    /usr/sbin/mailrace", 0),
            mapping("3000-6000 r-xp 00002000 fe:00 47                    /usr/sbin/mailrace", 0),
            mapping("6000-7000 r--p 00005000 fe:00 47                    /usr/sbin/mailrace", 4),
            mapping("7000-8000 rw-p 00006000 fe:00 47                    /usr/sbin/mailrace", 0),
            mapping("8000-9000 r--s 00000000 fe:00 48                    /var/lib/mailrace/people.copy", 0),
            mapping("9000-a000 r--p 00000000 00:00 0 ", 0),
            mapping("a000-b000 r-xp 00000000 00:00 0                     [vdso]", 0),
            mapping("b000-c000 ---p 00000000 fe:00 49                    /lib/libc.so.6", 0),
            mapping("c000-d000 r-xp 00000000 fe:00 49                    /lib/libc.so.6", 0),
        ];
        let expected = [(0x1000, 0x2000), (0x3000, 0x3000), (0xc000, 0x1000)];
        let expected = expected.map(|(start, octets)| ReadOnlyMapping { start, octets });
        assert_eq!(read_only_mappings(&smaps.concat()), expected);
        assert_eq!(read_only_mappings(""), []);
    }

    #[test]
    fn the_program_goes_on_without_the_pages_of_its_start() {
        let pages = ProgramPages::find();
        let here = read_only_mappings as *const () as usize;
        let holds = |mapping: &&ReadOnlyMapping| (mapping.start..mapping.start + mapping.octets).contains(&here);
        assert_eq!(pages.0.iter().filter(holds).count(), 1);
        pages.release();
        let again = ProgramPages::find();
        assert!(pages.0.iter().all(|mapping| again.0.contains(mapping)));
    }
}
