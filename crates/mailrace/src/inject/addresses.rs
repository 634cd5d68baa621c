//! Finds the addresses in the value of a header field (RFC 5322 section 3.4), without names,
//! comments, groups and routes. It accepts any text; the caller checks the addresses.

/// The addresses as written, without white space around their parts.
pub(super) fn parse_addresses(value: &str) -> Vec<String> {
    let mut list = AddressListParser::default();
    let mut rest = value.chars();
    while let Some(character) = rest.next() {
        list.begin(character);
        match character {
            '(' => skip_comment(&mut rest),
            '"' => list.current().push_str(&quoted(&mut rest)),
            '[' => list.current().push_str(&literal(&mut rest)),
            '<' => list.in_angles = Some(String::new()),
            '>' => list.is_closed = true,
            ',' if list.is_in_route() => list.current().push(','),
            // The end of a group's name, or of a route.
            ':' if list.in_angles.is_none() => list.outside.clear(),
            ':' => list.current().clear(),
            ',' | ';' => list.end(),
            _ => list.push(character),
        }
    }
    list.end();
    list.found
}

#[derive(Default)]
struct AddressListParser {
    found: Vec<String>,
    /// Text outside of angle brackets: an address or a name.
    outside: String,
    in_angles: Option<String>,
    /// The angle bracket was closed.
    is_closed: bool,
    /// White space was seen, which matters if more text follows.
    has_gap: bool,
    /// No comma came before.
    is_unparted: bool,
}

impl AddressListParser {
    /// After a missing comma, the next address starts with a second `<`, or with text after `>`.
    fn begin(&mut self, character: char) {
        let is_text = !character.is_whitespace() && !"(),:;>".contains(character);
        if self.is_closed && is_text || self.in_angles.is_some() && character == '<' {
            self.end();
            self.is_unparted = true;
        }
    }

    /// The text being collected.
    fn current(&mut self) -> &mut String {
        match &mut self.in_angles {
            Some(inside) if !self.is_closed => inside,
            _ => &mut self.outside,
        }
    }

    /// `<@a,@b:c@d>`: a source route (RFC 5322 section 4.4), which is ignored.
    fn is_in_route(&self) -> bool {
        !self.is_closed && self.in_angles.as_ref().is_some_and(|inside| inside.starts_with('@'))
    }

    /// White space next to a separator is ignored. Between words it makes a name, or an error.
    fn push(&mut self, character: char) {
        if character.is_whitespace() {
            self.has_gap = true;
            return;
        }
        let gap = std::mem::take(&mut self.has_gap);
        let current = self.current();
        if gap && !current.is_empty() && !current.ends_with(['.', '@']) && !matches!(character, '.' | '@') {
            current.push(' ');
        }
        current.push(character);
    }

    fn end(&mut self) {
        let outside = std::mem::take(&mut self.outside);
        // Text after `<...>` is not an address, even if it looks like one of ours.
        let is_name = self.is_unparted && self.in_angles.is_none() && !outside.is_empty() && !outside.contains('@');
        let outside = if is_name { format!("> {outside}") } else { outside };
        let address = self.in_angles.take().unwrap_or(outside);
        (self.is_closed, self.has_gap, self.is_unparted) = (false, false, false);
        if !address.is_empty() {
            self.found.push(address);
        }
    }
}

fn skip_comment(rest: &mut std::str::Chars<'_>) {
    let mut depth = 1;
    while depth > 0 {
        match rest.next() {
            Some('(') => depth += 1,
            Some(')') => depth -= 1,
            Some('\\') => drop(rest.next()),
            Some(_) => {}
            None => return,
        }
    }
}

/// Includes the quotes.
fn quoted(rest: &mut std::str::Chars<'_>) -> String {
    let mut text = String::from('"');
    while let Some(character) = rest.next() {
        match character {
            '\r' | '\n' => continue,
            '\\' => {
                text.push('\\');
                text.extend(rest.next());
            }
            character => text.push(character),
        }
        if character == '"' {
            break;
        }
    }
    text
}

/// Includes the brackets.
fn literal(rest: &mut std::str::Chars<'_>) -> String {
    let mut text = String::from('[');
    for character in rest {
        text.push(character);
        if character == ']' {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_found_in_all_that_surrounds_them() {
        for (value, expected) in [
            (" a@b, c@d\r\n", &["a@b", "c@d"][..]),
            ("root", &["root"]),
            ("Bob <bob@x>, \"Doe, J\" <j@x>,, a@b", &["bob@x", "j@x", "a@b"]),
            ("bob@x (Bob, the (great\\)) one), c@d", &["bob@x", "c@d"]),
            ("friends: a@b, C <c@d>; e@f", &["a@b", "c@d", "e@f"]),
            ("undisclosed-recipients:;", &[]),
            ("\"a b\"@x, <\"a,b\"@x>", &["\"a b\"@x", "\"a,b\"@x"]),
            ("<@a,@b:c@d>", &["c@d"]),
            ("a @ b . c", &["a@b.c"]),
            ("a@[IPv6:::1], <b@[127.0.0.1]>", &["a@[IPv6:::1]", "b@[127.0.0.1]"]),
            ("=?utf-8?q?J=C3=BC?=\r\n <j@x>", &["j@x"]),
            ("a b@c", &["a b@c"]),
            ("<>", &[]),
            ("", &[]),
            ("<a@b", &["a@b"]),
            ("\"a", &["\"a"]),
            ("Bob <bob@x> Alice <alice@x>", &["bob@x", "alice@x"]),
            ("<a@b> c@d, <e@f> (E) \"G\" <g@h>", &["a@b", "c@d", "e@f", "g@h"]),
            ("<a@b> (A), <c@d> ;", &["a@b", "c@d"]),
            ("<a@b <c@d>", &["a@b", "c@d"]),
            ("<a@b> Bob", &["a@b", "> Bob"]),
            ("<a@b> Bob <c@d>, Eve", &["a@b", "c@d", "Eve"]),
        ] {
            assert_eq!(parse_addresses(value), expected, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "[a\"(),:;<>@\\\\\\[\\] \r\n\u{e4}.]{0,40}") {
            prop_assert!(parse_addresses(&text).iter().all(|address| !address.is_empty()));
        }
    }
}
