//! The addresses in the value of a header field (RFC 5322 section 3.4): names, comments, groups and routes are left out.
//! Nothing is too broken to be read; what comes out is held to be an address elsewhere.

/// The addresses as they are written, without white space around their parts.
pub(super) fn addresses(value: &str) -> Vec<String> {
    let mut list = List::default();
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
            // A group's name ends, or a route.
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
struct List {
    found: Vec<String>,
    /// What stands outside of angles: an address, or a name.
    outside: String,
    in_angles: Option<String>,
    /// The angle was closed.
    is_closed: bool,
    /// White space was seen, which counts if more text follows.
    gap: bool,
    /// No comma stands before it.
    is_unparted: bool,
}

impl List {
    /// Where a comma was forgotten, the next one begins with a second `<`, or with text behind `>`.
    fn begin(&mut self, character: char) {
        let is_text = !character.is_whitespace() && !"(),:;>".contains(character);
        if self.is_closed && is_text || self.in_angles.is_some() && character == '<' {
            self.end();
            self.is_unparted = true;
        }
    }

    /// What is being written.
    fn current(&mut self) -> &mut String {
        match &mut self.in_angles {
            Some(inside) if !self.is_closed => inside,
            _ => &mut self.outside,
        }
    }

    /// `<@a,@b:c@d>`: hosts on the way (RFC 5322 section 4.4), which nobody goes by.
    fn is_in_route(&self) -> bool {
        !self.is_closed && self.in_angles.as_ref().is_some_and(|inside| inside.starts_with('@'))
    }

    /// White space is none beside the signs that part an address; between words it makes of them a name, or a fault.
    fn push(&mut self, character: char) {
        if character.is_whitespace() {
            self.gap = true;
            return;
        }
        let gap = std::mem::take(&mut self.gap);
        let current = self.current();
        if gap && !current.is_empty() && !current.ends_with(['.', '@']) && !matches!(character, '.' | '@') {
            current.push(' ');
        }
        current.push(character);
    }

    fn end(&mut self) {
        let outside = std::mem::take(&mut self.outside);
        // A name behind an address is no address, although it could be one's that is ours.
        let is_name = self.is_unparted && self.in_angles.is_none() && !outside.is_empty() && !outside.contains('@');
        let outside = if is_name { format!("> {outside}") } else { outside };
        let address = self.in_angles.take().unwrap_or(outside);
        (self.is_closed, self.gap, self.is_unparted) = (false, false, false);
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

/// With its quotes.
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

/// With its brackets.
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
            assert_eq!(addresses(value), expected, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "[a\"(),:;<>@\\\\\\[\\] \r\n\u{e4}.]{0,40}") {
            prop_assert!(addresses(&text).iter().all(|address| !address.is_empty()));
        }
    }
}
