//! The TXT record of a key (RFC 6376 section 3.6.1): written for a private key, and what is wrong
//! with one that is published.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::private_key::{CryptoError, PrivateKey};
use crate::tag_list::{TagList, without_white_space};

/// A string of a TXT record (RFC 1035 section 3.3).
const STRING_OCTETS_MAX: usize = 255;

/// The value of the record.
pub fn record_value(key: &PrivateKey) -> Result<String, CryptoError> {
    let public = BASE64_STANDARD.encode(key.public_key()?);
    Ok(format!("v=DKIM1; k={}; p={public}", key.algorithm().key_type()))
}

/// The name of the record.
pub fn record_name(selector: &str, domain: &str) -> String {
    format!("{selector}._domainkey.{domain}")
}

/// The record as a line of a zone file, in strings that are short enough.
pub fn zone_line(name: &str, value: &str) -> String {
    let strings: Vec<_> = value
        .as_bytes()
        .chunks(STRING_OCTETS_MAX)
        .map(|string| format!("\"{}\"", String::from_utf8_lossy(string)))
        .collect();
    match &strings[..] {
        [only] => format!("{name}. IN TXT {only}"),
        several => format!("{name}. IN TXT ( {} )", several.join("\n    ")),
    }
}

/// What is wrong with the published TXT records for a private key; empty if they fit it.
pub fn record_faults(published: &[Box<[u8]>], key: &PrivateKey) -> Result<Vec<String>, CryptoError> {
    let [record] = published else {
        return Ok(vec![match published.len() {
            0 => "there is no TXT record".into(),
            count => format!("there are {count} TXT records, of which verifiers take any (RFC 6376 section 3.6.2.2)"),
        }]);
    };
    let Ok(tags) = TagList::parse(record) else {
        return Ok(vec!["it is not a list of `name=value`, separated by `;`, in which each name appears once".into()]);
    };
    let mut faults = tag_faults(&tags, key);
    faults.extend(public_key_fault(tags.value("p"), &key.public_key()?));
    Ok(faults)
}

/// All tags but `p`.
fn tag_faults(tags: &TagList<'_>, key: &PrivateKey) -> Vec<String> {
    let mut faults = Vec::new();
    let expected_type = key.algorithm().key_type();
    if tags.value("v").is_some_and(|version| version != "DKIM1" || tags.first().is_none_or(|(first, _)| first != "v")) {
        faults.push("`v=DKIM1` must be the first tag, or be left out".into());
    }
    match tags.value("k").unwrap_or("rsa") {
        published if published != expected_type => {
            faults.push(format!("it is for a key of type {published}, but the private key is {expected_type}"));
        }
        _ => {}
    }
    if tags.value("h").is_some_and(|hashes| !hashes.split(':').any(|hash| hash.trim() == "sha256")) {
        faults.push("`h=` does not allow sha256".into());
    }
    if tags.value("s").is_some_and(|services| !services.split(':').any(|it| matches!(it.trim(), "*" | "email"))) {
        faults.push("`s=` does not allow email".into());
    }
    if tags.value("t").is_some_and(|flags| flags.split(':').any(|flag| flag.trim() == "y")) {
        faults.push("`t=y` says that the domain only tests: verifiers treat its mail as unsigned".into());
    }
    faults
}

fn public_key_fault(published: Option<&str>, expected: &[u8]) -> Option<String> {
    let Some(published) = published else { return Some("it has no public key (`p=`)".into()) };
    let compact = without_white_space(published);
    match BASE64_STANDARD.decode(&compact) {
        _ if compact.is_empty() => Some("the key is revoked (`p=` is empty)".into()),
        Err(_) => Some("the public key (`p=`) is not base64".into()),
        Ok(public) if public != expected => Some("the public key (`p=`) belongs to another private key".into()),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8463 appendix A.2.
    fn key() -> PrivateKey {
        PrivateKey::parse(b"nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=\n").unwrap()
    }

    const VALUE: &str = "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    #[test]
    fn the_record_of_the_rfc() {
        assert_eq!(record_value(&key()).unwrap(), VALUE);
        assert_eq!(record_name("brisbane", "example.com"), "brisbane._domainkey.example.com");
    }

    #[test]
    fn long_records_are_split_into_strings() {
        assert_eq!(zone_line("s._domainkey.example.org", "v"), "s._domainkey.example.org. IN TXT \"v\"");
        let line = zone_line("n", &"x".repeat(600));
        let strings: Vec<_> = line.split('"').skip(1).step_by(2).map(str::len).collect();
        assert_eq!(strings, [255, 255, 90]);
        assert!(line.starts_with("n. IN TXT ( \"") && line.ends_with("\" )"), "{line}");
    }

    #[test]
    fn faults_of_published_records_are_told() {
        let faults = |records: &[&str]| {
            let records: Vec<Box<[u8]>> = records.iter().map(|record| record.as_bytes().into()).collect();
            record_faults(&records, &key()).unwrap().join("; ")
        };
        assert_eq!(faults(&[VALUE]), "");
        assert_eq!(faults(&["k=ed25519; p = 11qYAYKxCrfVS/7TyWQH Og7hcvPapiMlrwIaaPcHURo= ;"]), "");
        for (records, fault) in [
            (&[][..], "there is no TXT record"),
            (&[VALUE, VALUE], "there are 2 TXT records"),
            (&[""], "not a list of"),
            (&["v=DKIM1 k=ed25519"], "must be the first tag"),
            (&["nonsense"], "not a list of"),
            (&["k=ed25519; v=DKIM1; p=x"], "must be the first tag"),
            (&["v=DKIM1; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="], "for a key of type rsa"),
            (&["v=DKIM1; k=ed25519; p="], "revoked"),
            (&["v=DKIM1; k=ed25519"], "no public key"),
            (&["v=DKIM1; k=ed25519; p=!"], "not base64"),
            (&["v=DKIM1; k=ed25519; p=AAAA"], "another private key"),
            (&["k=ed25519; h=sha1; s=tlsrpt; t=y:s; p=AAAA"], "`h=` does not allow sha256; `s=` does not allow email"),
            (&["k=ed25519; t=y; p=AAAA"], "only tests"),
        ] {
            let told = faults(records);
            assert!(told.contains(fault), "{records:?}: {told}");
        }
    }
}
