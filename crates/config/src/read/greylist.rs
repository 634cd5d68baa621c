//! `[greylist]`.

use std::path::{Path, PathBuf};

use filter::greylist::GreylistSettings;

use super::external::listener_addresses;
use super::rate_limits::prefixes;
use super::{fill_path, networks, unspanned};
use crate::section::Section;
use crate::value_kind::{self, ValueKind};
use crate::{GreylistConfig, ListenerSettings};

const FILE: &str = "greylist";

pub(super) fn greylist(
    document: &mut Section<'_, '_>,
    listeners: &[ListenerSettings],
    data_dir: &Path,
) -> Option<GreylistConfig> {
    let mut section = document.section("greylist")?;
    let defaults = GreylistSettings::default();
    let settings = GreylistSettings {
        delay: section.take_or("delay", &value_kind::DURATION, defaults.delay),
        retry_window: section.take_or("retry_window", &value_kind::DURATION, defaults.retry_window),
        known_for: section.take_or("known_for", &value_kind::DURATION, defaults.known_for),
        client_passes: section.take_or("client_passes", &ValueKind::COUNT_OR_ZERO, defaults.client_passes),
        prefixes: prefixes(&mut section, defaults.prefixes),
        entries_max: section.take_or("entries", &value_kind::TABLE_SIZE, defaults.entries_max),
        listeners: listener_addresses(&mut section, listeners),
        exempt: networks(&mut section, "exempt").unwrap_or(defaults.exempt),
    };
    if settings.retry_window <= settings.delay {
        let place = section.span_of("retry_window");
        let label = format!("expected more than `delay`, {:?}", settings.delay);
        section.report(place, "retry_window", "is too short", label);
    }
    let exempt_recipients = section.list("exempt_recipients", &value_kind::RECIPIENT_PATTERN).map(unspanned);
    let file = file(&mut section, data_dir);
    Some(GreylistConfig { settings, exempt_recipients: exempt_recipients.unwrap_or_default(), file })
}

fn file(section: &mut Section<'_, '_>, data_dir: &Path) -> PathBuf {
    let named = section.take_spanned("file", &value_kind::TEXT);
    let named = named.and_then(|file| fill_path(section, "file", &file, data_dir));
    named.unwrap_or_else(|| data_dir.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(text: &str) -> Result<Option<GreylistConfig>, String> {
        Config::parse(text, "text", "mx.here").map(|config| config.greylist).map_err(|faults| faults.to_string())
    }

    #[test]
    fn the_section_alone_is_enough() {
        assert_eq!(parse(""), Ok(None));
        let greylist = parse("[greylist]\n").unwrap().unwrap();
        assert_eq!(greylist.settings, GreylistSettings::default());
        assert_eq!(greylist.file, Path::new("./mailrace-data/greylist"));
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (text, expected) in [
            ("delay = \"0s\"", "`greylist.delay` has an invalid value"),
            ("delay = \"2d\"", "`greylist.retry_window` is too short"),
            ("ipv4_prefix = 33", "`greylist.ipv4_prefix` has an invalid value"),
            ("entries = 0", "`greylist.entries` has an invalid value"),
            ("exempt_recipients = [\"<>\"]", "`greylist.exempt_recipients` has an invalid value"),
            ("listeners = [\"127.0.0.1:99\"]", "`greylist.listeners` names no listener"),
            ("file = \"{spool}/x\"", "`greylist.file` has an invalid value"),
        ] {
            let faults = parse(&format!("[greylist]\n{text}\n")).unwrap_err();
            assert!(faults.contains(expected), "{text}: {faults}");
        }
    }
}
