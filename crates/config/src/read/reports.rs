//! `[reports]`: reports to the owners of other domains.

use mail::Address;
use sender_auth::reports::{CountLimits, ReportSettings};
use toml::Spanned;

use crate::section::Section;
use crate::value_kind::{self, ValueKind};

pub(super) fn reports(document: &mut Section<'_, '_>) -> ReportSettings {
    let defaults = ReportSettings::default();
    let Some(mut s) = document.section("reports") else { return defaults };
    let counts = CountLimits {
        domains_max: s.take_or("domains", &ValueKind::COUNT, defaults.counts.domains_max),
        rows_max: s.take_or("rows", &ValueKind::COUNT, defaults.counts.rows_max),
        octets_max: s.take_or("size", &value_kind::SIZE, defaults.counts.octets_max),
    };
    ReportSettings {
        dmarc: s.take_or("dmarc", &value_kind::FLAG, defaults.dmarc),
        tls: s.take_or("tls", &value_kind::FLAG, defaults.tls),
        organization: s.take("organization", &value_kind::TEXT).map(Into::into),
        contact: contact(&mut s),
        spread: s.take_or("spread", &value_kind::DURATION, defaults.spread),
        destinations_max: s.take_or("destinations", &ValueKind::COUNT, defaults.destinations_max),
        counts,
    }
}

/// The author of reports: their header is in ASCII.
fn contact(section: &mut Section<'_, '_>) -> Option<Address> {
    let address = section.take_spanned("contact", &value_kind::ADDRESS)?;
    if !address.get_ref().is_ascii() {
        let label = "expected an address in ASCII, such as dmarc-reports@example.org".to_owned();
        section.report(address.span(), "contact", "has an invalid value", label);
        return None;
    }
    Some(Spanned::into_inner(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(text: &str) -> Result<ReportSettings, String> {
        let text = format!("[reports]\n{text}\n");
        Config::parse(&text, "text", "mx.here").map(|config| config.reports).map_err(|faults| faults.to_string())
    }

    #[test]
    fn reports_are_off_until_they_are_wanted() {
        assert!(parse("").unwrap().is_off());
        let settings = parse("dmarc = true\ncontact = \"d@example.org\"\nrows = 7").unwrap();
        assert!(settings.dmarc && !settings.tls && !settings.is_off());
        assert_eq!((settings.contact, settings.counts.rows_max), ("d@example.org".parse().ok(), 7));
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (text, expected) in [
            ("contact = \"j\u{f6}rg@example.org\"", "`reports.contact` has an invalid value"),
            ("contact = \"nobody\"", "`reports.contact` has an invalid value"),
            ("dmarc = \"yes\"", "`reports.dmarc` has an invalid value"),
            ("rua = \"x\"", "unknown key `reports.rua`"),
        ] {
            let faults = parse(text).unwrap_err();
            assert!(faults.contains(expected), "{text}: {faults}");
        }
    }
}
