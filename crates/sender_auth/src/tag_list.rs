//! Lists of `tag=value` (RFC 6376 section 3.2), as in DKIM and ARC fields, keys and DMARC records.
//!
//! A list is read as a whole or not at all: an unreadable part, a tag that appears twice, or more tags
//! than [`TAGS_MAX`] make it invalid. Names are case-sensitive.

/// The most tags of a list; real ones have about ten.
const TAGS_MAX: usize = 64;

/// The text is not a list of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidTagList;

/// The tags of a list, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TagList<'a> {
    tags: Vec<(&'a str, &'a str)>,
}

impl<'a> TagList<'a> {
    /// Reads a list. Values have no white space around them, but may be folded.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<TagList<'a>, InvalidTagList> {
        let text = std::str::from_utf8(bytes).map_err(|_| InvalidTagList)?.trim_matches(is_white_space);
        let text = text.strip_suffix(';').unwrap_or(text);
        let mut tags: Vec<(&str, &str)> = Vec::with_capacity(12);
        for part in text.split(';') {
            let (name, value) = part.split_once('=').ok_or(InvalidTagList)?;
            let (name, value) = (name.trim_matches(is_white_space), value.trim_matches(is_white_space));
            let is_new = tags.iter().all(|(known, _)| *known != name);
            if !is_tag_name(name) || !is_tag_value(value) || !is_new || tags.len() == TAGS_MAX {
                return Err(InvalidTagList);
            }
            tags.push((name, value));
        }
        Ok(TagList { tags })
    }

    /// The value of a tag.
    pub(crate) fn value(&self, name: &str) -> Option<&'a str> {
        self.tags.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The name and value of the first tag.
    pub(crate) fn first(&self) -> Option<(&'a str, &'a str)> {
        self.tags.first().copied()
    }
}

/// A value without the white space that folding has put into it.
pub(crate) fn without_white_space(value: &str) -> String {
    value.chars().filter(|c| !is_white_space(*c)).collect()
}

/// White space, and the line ends of folded fields.
pub(crate) fn is_white_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn is_tag_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_tag_value(value: &str) -> bool {
    value.chars().all(|c| !c.is_control() || is_white_space(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Vec<(&str, &str)>> {
        TagList::parse(text.as_bytes()).ok().map(|list| list.tags)
    }

    #[test]
    fn a_list_is_read_as_a_whole_or_not_at_all() {
        for (text, expected) in [
            ("v=1; a=rsa-sha256", Some(vec![("v", "1"), ("a", "rsa-sha256")])),
            (" v = 1 ;\r\n\tb=ab\r\n cd ; ", Some(vec![("v", "1"), ("b", "ab\r\n cd")])),
            ("p=", Some(vec![("p", "")])),
            ("p=;", Some(vec![("p", "")])),
            ("n=a=b", Some(vec![("n", "a=b")])),
            ("", None),
            (";", None),
            ("v=1;;a=2", None),
            ("v", None),
            ("=1", None),
            ("1v=1", None),
            ("v-x=1", None),
            ("v=1; v=1", None),
            ("v=\u{0}", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
        assert!(TagList::parse(b"v=\xff").is_err());
        let many: Vec<String> = (0..=TAGS_MAX).map(|number| format!("t{number}=x")).collect();
        assert!(parse(&many.join(";")).is_none());
        assert!(parse(&many[1..].join(";")).is_some());
    }
}
