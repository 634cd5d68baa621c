//! The TXT record at `_mta-sts.DOMAIN` (RFC 8461 section 3.1): `v=STSv1; id=20160831085700Z;`.

/// Letters and digits of an id (RFC 8461 section 3.1).
const ID_OCTETS_MAX: usize = 32;

/// The id of the policy that these texts announce. None if there is none: no such record, several
/// of them, or an invalid one (RFC 8461 section 3.1).
pub fn policy_id(texts: &[Box<[u8]>]) -> Option<Box<str>> {
    let mut records = texts.iter().filter_map(|text| fields_after_version(text));
    let fields = records.next()?;
    if records.next().is_some() {
        return None;
    }
    let mut ids = fields.split(';').filter_map(|field| {
        let (name, value) = field.split_once('=')?;
        (name.trim_matches(is_blank) == "id").then(|| value.trim_matches(is_blank))
    });
    let id = ids.next()?;
    let is_valid = (1..=ID_OCTETS_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_valid.then(|| id.into())
}

/// Whether a text is such a record, with or without a valid id.
pub fn is_policy_record(text: &[u8]) -> bool {
    fields_after_version(text).is_some()
}

/// What follows `v=STSv1` and its semicolon.
fn fields_after_version(text: &[u8]) -> Option<&str> {
    let fields = std::str::from_utf8(text).ok()?.strip_prefix("v=STSv1")?;
    fields.trim_start_matches(is_blank).strip_prefix(';')
}

/// White space as in the grammar.
fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(texts: &[&str]) -> Option<Box<str>> {
        let texts: Vec<Box<[u8]>> = texts.iter().map(|text| text.as_bytes().into()).collect();
        policy_id(&texts)
    }

    #[test]
    fn one_valid_record_has_an_id() {
        for text in [
            "v=STSv1; id=20160831085700Z;",
            "v=STSv1;id=20160831085700Z",
            "v=STSv1 ; id=20160831085700Z ; ext=1;",
            "v=STSv1; a=b; id=20160831085700Z",
        ] {
            assert_eq!(id(&[text]).as_deref(), Some("20160831085700Z"), "{text}");
            assert!(is_policy_record(text.as_bytes()), "{text}");
            assert_eq!(id(&["v=spf1 -all", text]).as_deref(), Some("20160831085700Z"), "{text}");
        }
    }

    #[test]
    fn anything_else_has_none() {
        let long = format!("v=STSv1; id={}", "a".repeat(33));
        for text in [
            "",
            "v=STSv1",
            "v=STSv1;",
            "v=STSv1; id=",
            "v=STSv1; id=a-b",
            "v=STSv10; id=1",
            "v=stsv1; id=1",
            " v=STSv1; id=1",
            "id=1; v=STSv1",
            "v=STSv1 id=1",
            &long,
        ] {
            assert_eq!(id(&[text]), None, "{text}");
        }
        assert_eq!(id(&[]), None);
        assert_eq!(id(&["v=STSv1; id=1", "v=STSv1; id=1"]), None);
        assert_eq!(policy_id(&[b"v=STSv1; id=\xff".as_slice().into()]), None);
    }
}
