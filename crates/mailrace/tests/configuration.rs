//! The configuration file: what is wrong with a text is told with its place, and all of it at once.

use std::path::Path;
use std::time::Duration;

use mailrace::config::{Config, DEFAULT, Durability, LineEnds, LogFormat, LogTarget, Protocol};
use proptest::prelude::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "mailrace.toml", "host.example").map_err(|faults| faults.to_string())
}

fn faults(text: &str) -> String {
    parse(text).expect_err("the text has faults")
}

#[test]
fn the_built_in_text_states_every_default() {
    assert_eq!(parse(DEFAULT), parse(""));
}

#[test]
fn without_a_file_it_keeps_mail_for_localhost() {
    let config = parse("").unwrap();
    assert_eq!(&*config.hostname, "host.example");
    assert_eq!(config.listeners[0].address.to_string(), "127.0.0.1:2525");
    assert_eq!(&*config.domains[0].name, "localhost");
    let transport = config.transport(&config.domains[0].transport).unwrap();
    assert_eq!(transport.path.folder("localhost", "bob"), Path::new("./mailrace-data/mail/localhost/bob"));
    assert_eq!(config.spool.lanes, [Path::new("./mailrace-data/spool")]);
    assert!(config.relay.networks[0].contains("127.0.0.1".parse().unwrap()));
}

#[test]
fn a_machine_without_a_usable_name_is_localhost() {
    for name in ["", "a b", "-"] {
        assert_eq!(&*Config::parse("", "", name).unwrap().hostname, "localhost");
    }
}

#[test]
fn every_setting_arrives_where_it_belongs() {
    let config = parse(include_str!("full.toml")).unwrap();
    insta::assert_debug_snapshot!(config);
    assert_eq!(config.listeners[1].protocol, Protocol::Lmtp);
    assert_eq!(config.transports[0].line_ends, LineEnds::Lf);
    assert_eq!(config.spool.durability, Durability::Relaxed { sync_every: Duration::from_millis(250) });
    assert_eq!((config.log.format, config.log.to), (LogFormat::Json, LogTarget::File("/srv/mail/log".into())));
}

#[test]
fn an_unknown_key_is_told_with_the_nearest_known_one() {
    let shown = faults("hostnam = \"mx1.example.org\"\n\n[limits]\nmesage = \"50MiB\"\ncolour = 3\n");
    insta::assert_snapshot!(shown);
}

#[test]
fn a_wrong_type_is_told_with_what_was_found() {
    let shown = faults(
        "hostname = 5\nallow_root = \"yes\"\nlistener = 25\nlimits = []\n[relay]\nnetworks = \"10.0.0.0/8\"\n[transport]\nmaildir = 1\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn a_wrong_unit_or_range_is_told_with_examples() {
    let shown = faults(
        "[limits]\nsession_time = \"2 parsecs\"\nidle_time = 300\nmessage = \"50 mib\"\nsessions = 0\nerrors = -1\n\
         spill_above = \"63KiB\"\n\
         [relay]\nnetworks = [\"10.0.0.0/8\", \"10.0.0.1/8\"]\n[spool]\nsegment = \"1KiB\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn the_same_twice_is_told_with_both_places() {
    let shown = faults(
        "[[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:25\"\n\n[[listener]]\nprotocol = \"lmtp\"\n\
         address = \"127.0.0.1:25\"\n\n[[domain]]\nname = \"example.org\"\n\n[[domain]]\nname = \"Example.ORG\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn a_name_that_nothing_bears_is_told_with_those_there_are() {
    let shown = faults(
        "[[domain]]\nname = \"example.org\"\nmailboxes = \"peeple\"\naliases = \"others\"\ntransport = \"mailder\"\n\n\
         [[table]]\nname = \"people\"\ntype = \"text\"\npath = \"people\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn what_is_missing_is_told_at_its_section() {
    let shown = faults("[[listener]]\n[[table]]\nname = \"people\"\n[[domain]]\nmailboxes = \"people\"\n");
    insta::assert_snapshot!(shown);
}

#[test]
fn what_the_design_has_and_this_version_has_not_is_told_as_such() {
    let shown = faults(include_str!("designed.toml"));
    insta::assert_snapshot!(shown);
}

#[test]
fn a_text_that_is_not_toml_is_told_by_its_syntax_alone() {
    let shown = faults("hostname = \"mx1\ncolour = \n[limits\n");
    insta::assert_snapshot!(shown);
}

#[test]
fn settings_that_do_not_go_together_are_told() {
    let shown = faults(
        "[[queue]]\nname = \"standard\"\nretry = { first = \"5h\", factor = 0.5, jitter = 2 }\n\n\
         [spool]\nsync_every = \"1s\"\nsegment = 4194303\nlanes = [\"/a\", \"/a\", \"{local}\"]\n\n\
         [transport.maildir]\ntype = \"maildir\"\npath = \"{data_dir}/mail\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn a_text_full_of_faults_does_not_fill_the_screen() {
    let text: String = (0..5000).map(|n| format!("k{n} = 1\n")).collect();
    let shown = faults(&text);
    assert_eq!(shown.matches("error: ").count(), 50);
    assert!(shown.ends_with("5000 faults in mailrace.toml, the first 50 are shown"));
}

/// Texts that are nearly configurations: known keys with values of every kind, in any order.
fn nearly_toml() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        proptest::sample::select(DEFAULT.lines().collect::<Vec<_>>()).prop_map(str::to_owned),
        ("[a-z_]{1,12}", "[\"\\[\\]{}0-9a-zA-Zé\u{202e}\t .=,-]{0,12}")
            .prop_map(|(key, value)| format!("{key} = {value}")),
        any::<String>(),
    ];
    proptest::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_text_brings_the_reader_down(text in nearly_toml()) {
        let _ = parse(&text);
    }
}
