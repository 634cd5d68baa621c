//! The reference of all knobs in Markdown, for `docs/tuning.md`.

use std::fmt::Write;

use crate::knob::{ABSENT_ON_FREEBSD, Knob, KnobGroup, Rule, RuleName, ValueKind, knobs};
use crate::value::display_number;

/// A section for each group, with a table of its knobs.
pub fn reference() -> String {
    let knobs = knobs();
    let mut text = String::new();
    for (group, title) in KnobGroup::TITLES {
        let rows: String = knobs.iter().filter(|knob| knob.group == group).map(row).collect();
        write!(
            text,
            "## {title}\n\n| knob | wanted | what it does | how sure | on FreeBSD |\n|---|---|---|---|---|\n{rows}\n"
        )
        .expect("a String takes every text");
    }
    text
}

fn row(knob: &Knob) -> String {
    let cells = [
        format!("`{}`", knob.name),
        wanted(&knob.wanted, knob.kind),
        format!("{}. {} Source: {}", knob.title, knob.why, knob.source),
        knob.sure.name().to_owned(),
        if knob.freebsd == ABSENT_ON_FREEBSD { "–".to_owned() } else { format!("`{}`", knob.freebsd) },
    ];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

fn wanted(rule: &Rule, kind: ValueKind) -> String {
    match rule {
        Rule::AtLeast(least) => format!("at least {}", display_number(*least, kind)),
        Rule::AtMost(most) => format!("at most {}", display_number(*most, kind)),
        Rule::Between(least, most) => format!("{} to {}", display_number(*least, kind), display_number(*most, kind)),
        Rule::OneOf(words) => words.join(" or "),
        Rule::Not(words) | Rule::NoneOf(words) => format!("not {}", words.join(", ")),
        Rule::Function(name) => of_function(*name).to_owned(),
    }
}

fn of_function(name: RuleName) -> &'static str {
    match name {
        RuleName::FilesForServer => "enough for all sessions and deliveries",
        RuleName::Backlog => "at least `limits.backlog`",
        RuleName::SynBacklog => "at least `limits.backlog`, up to 1024",
        RuleName::PortsForDeliveries => "enough for the concurrency of all queues, and at least 28232",
        RuleName::SocketMemoryPages => "8 KiB for each session and delivery",
        RuleName::TrackedConnections => "four for each session and delivery",
        RuleName::AccessTimes => "noatime",
        RuleName::FileSystem => "ext4 or xfs",
        RuleName::MemoryForServer => "enough for `limits.body_memory`, sessions and caches",
        RuleName::ProcessorsForServer => "at least `threads`, unless that is 0",
        RuleName::PressureEnabled => "on",
        RuleName::Loopback => "an address of this host first",
        RuleName::Threads => "at most the processors",
        RuleName::BodyMemory => "8 MiB to a quarter of the memory",
        RuleName::Durability => "commit",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each knob is in one of the two tables of the section, and in no more.
    #[test]
    fn the_document_says_of_each_knob_whether_it_has_figures() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tuning.md");
        let document = std::fs::read_to_string(path).unwrap();
        let (_, rest) = document.split_once("## Which knobs have figures\n").expect("the section");
        let (section, _) = rest.split_once("\nThe following tables").expect("its end");
        let rows = section.lines().filter(|line| line.starts_with('|'));
        let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
        let mut named: Vec<String> = names.collect();
        let mut known: Vec<String> = knobs().into_iter().map(|knob| knob.name).collect();
        named.sort();
        known.sort();
        assert_eq!(named, known);
    }

    /// With UPDATE_DOCS in the environment, the document is written anew.
    #[test]
    fn the_document_describes_each_knob_as_the_table_does() {
        const START: &str = "## Files and sockets\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tuning.md");
        let document = std::fs::read_to_string(path).unwrap();
        let (introduction, _) = document.split_once(START).expect("the reference begins with the first group");
        let expected = format!("{introduction}{}", reference().trim_end().to_owned() + "\n");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            return std::fs::write(path, &expected).unwrap();
        }
        assert!(document == expected, "docs/tuning.md differs from knobs.toml: run this test with UPDATE_DOCS=1");
    }
}
