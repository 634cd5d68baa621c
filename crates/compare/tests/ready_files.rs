//! The ready files in examples/compare are valid, and no configuration in them has a name in braces
//! that was meant to be replaced and is not.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use compare::file::{CommandTemplate, CompareFile};
use compare::template::Words;

fn files() -> Vec<(String, CompareFile)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/compare");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let parsed = paths.filter(|path| path.extension().is_some_and(|kind| kind == "toml")).map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let file = CompareFile::parse(&text, &name).unwrap_or_else(|error| panic!("{error}"));
        (name, file)
    });
    parsed.collect()
}

#[test]
fn every_ready_file_is_valid_and_every_server_is_in_one() {
    let files = files();
    for server in ["mailrace", "postfix", "exim", "opensmtpd", "kumomta", "dovecot", "nginx", "apache"] {
        assert!(files.iter().any(|(_, file)| file.system(server).is_some()), "{server}");
    }
}

#[test]
fn loads_have_only_names_that_are_replaced() {
    let mut words = Words::for_report(IpAddr::from([127, 0, 0, 1]));
    ["count", "seconds", "value"].into_iter().for_each(|name| words.set(name, 1));
    for (name, file) in files() {
        for scenario in &file.scenarios {
            for system in file.systems_of(scenario) {
                let line = words.line(scenario.load_of(system).unwrap());
                assert!(!line.replace("user{}", "").contains('{'), "{name}: {line}");
            }
        }
        for command in file.systems.iter().flat_map(|system| [&system.start, &system.stop]).flatten() {
            if let CommandTemplate::Shell(line) = command {
                assert!(!words.fill(line).contains('{'), "{name}: {line}");
            }
        }
    }
}

/// Scenarios of different files would overwrite one another's results.
#[test]
fn scenarios_have_names_of_their_own() {
    let files = files();
    let mut names: Vec<&String> =
        files.iter().flat_map(|(_, file)| &file.scenarios).map(|scenario| &scenario.name.get_ref().0).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}
