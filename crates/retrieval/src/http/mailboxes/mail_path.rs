//! What a path in a mailbox stands for.

/// A path; UIDs and numbers are not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MailPath {
    /// `/`, `/?page=2`: a page of the list of messages, counted from 1.
    Messages { page: usize },
    /// `/UID.eml`: the message.
    Message { uid: u32 },
    /// `/UID/`: its fields and parts.
    Parts { uid: u32 },
    /// `/UID`: the same, but links on the page would lead elsewhere.
    PartsWithoutSlash { uid: u32 },
    /// `/UID/N/NAME`: a part, counted from 1. The name is for the browser only.
    Part { uid: u32, number: usize },
}

impl MailPath {
    /// Parses the path of a request, in one spelling, and its query. None: there is nothing.
    pub(super) fn parse(path: &[u8], query: Option<&[u8]>) -> Option<MailPath> {
        let path = str::from_utf8(path).ok()?.strip_prefix('/')?;
        if path.is_empty() {
            return Some(MailPath::Messages { page: page(query)? });
        }
        let Some((uid, rest)) = path.split_once('/') else {
            return match path.strip_suffix(".eml") {
                Some(uid) => Some(MailPath::Message { uid: number(uid)? }),
                None => Some(MailPath::PartsWithoutSlash { uid: number(path)? }),
            };
        };
        let uid = number(uid)?;
        if rest.is_empty() {
            return Some(MailPath::Parts { uid });
        }
        let (part, name) = rest.split_once('/')?;
        let number = number(part)? as usize;
        (!name.is_empty() && !name.contains('/')).then_some(MailPath::Part { uid, number })
    }
}

/// The page that a query names; 1 if it names none. Other parameters are ignored.
fn page(query: Option<&[u8]>) -> Option<usize> {
    let mut parameters = query.unwrap_or_default().split(|octet| *octet == b'&');
    match parameters.find_map(|parameter| parameter.strip_prefix(b"page=")) {
        Some(page) => Some(number(str::from_utf8(page).ok()?)? as usize),
        None => Some(1),
    }
}

/// A number in its only spelling, and not 0.
fn number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|octet| octet.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_resource_has_one_path() {
        for (path, expected) in [
            ("/", MailPath::Messages { page: 1 }),
            ("/7.eml", MailPath::Message { uid: 7 }),
            ("/7", MailPath::PartsWithoutSlash { uid: 7 }),
            ("/4294967295/", MailPath::Parts { uid: u32::MAX }),
            ("/7/2/a b.txt", MailPath::Part { uid: 7, number: 2 }),
        ] {
            assert_eq!(MailPath::parse(path.as_bytes(), None), Some(expected), "{path}");
        }
        for path in [
            "/07.eml",
            "/0",
            "/+7",
            "/4294967296",
            "/7.EML",
            "/.eml",
            "/7/1",
            "/7/1/",
            "/7/1/a/b",
            "/7/x/a",
            "/7.eml/",
            "/alice/new/1",
            "/index.html",
        ] {
            assert_eq!(MailPath::parse(path.as_bytes(), None), None, "{path}");
        }
        assert_eq!(MailPath::parse(b"/7/1/\xff", None), None);
    }

    #[test]
    fn a_query_may_name_a_page() {
        let page = |query: &str| MailPath::parse(b"/", Some(query.as_bytes()));
        assert_eq!(page("page=3"), Some(MailPath::Messages { page: 3 }));
        assert_eq!(page("a=b&page=12"), Some(MailPath::Messages { page: 12 }));
        assert_eq!(page("pages=3"), Some(MailPath::Messages { page: 1 }));
        for query in ["page=", "page=0", "page=-1", "page=x", "page=99999999999"] {
            assert_eq!(page(query), None, "{query}");
        }
    }
}
