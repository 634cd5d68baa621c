//! Splits Postfix's lists at commas and white space outside braces, and reads times.

/// Splits at these characters outside braces, without empty words.
pub(crate) fn split(text: &str, parts: impl Fn(char) -> bool) -> Vec<String> {
    let (mut words, mut word, mut depth) = (Vec::new(), String::new(), 0_usize);
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match depth == 0 && parts(c) {
            true if !word.is_empty() => words.push(std::mem::take(&mut word)),
            true => {}
            false => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// The elements of a list.
pub(crate) fn list(text: &str) -> Vec<String> {
    split(text, |c| c == ',' || c.is_whitespace())
}

/// A value, and settings after it if both are in braces: `{ inet:localhost:1, timeout=5s }`.
pub(crate) fn definition_list(text: &str) -> (String, Vec<(String, String)>) {
    let Some(inside) = braced(text) else { return (text.to_owned(), Vec::new()) };
    let mut words = list(inside).into_iter();
    let first = words.next().unwrap_or_default();
    let settings = words.filter_map(|word| {
        let word = braced(&word).unwrap_or(&word).to_owned();
        let (name, value) = word.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    });
    (first, settings.collect())
}

/// The text inside braces that enclose the whole text.
pub(crate) fn braced(text: &str) -> Option<&str> {
    let (inside, rest) = leading_braces(text)?;
    rest.trim().is_empty().then(|| inside.trim())
}

/// The text inside the leading braces, and the rest.
pub(crate) fn leading_braces(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    let text = text.trim_start();
    for (place, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match depth {
            0 if place == 0 => return None,
            0 => return Some((&text[1..place], &text[place + 1..])),
            _ => {}
        }
    }
    None
}

/// A time in seconds; `unit` applies to values without one.
pub(crate) fn duration_seconds(value: &str, unit: char) -> Option<u64> {
    let unit = value.chars().last().filter(|c| c.is_ascii_alphabetic()).unwrap_or(unit);
    let number: u64 = value.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse::<u32>().ok()?.into();
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 604_800,
        _ => return None,
    };
    Some(number * seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_hold_together_what_they_enclose() {
        assert_eq!(list("a, b\tinline:{ {c = d}, e=f } ,g"), ["a", "b", "inline:{ {c = d}, e=f }", "g"]);
        assert_eq!(braced(" { a {b} c } "), Some("a {b} c"));
        assert_eq!(braced("{a} b"), None);
        assert_eq!(leading_braces("{a}:{b}"), Some(("a", ":{b}")));
        assert_eq!(leading_braces("{a"), None);
    }
}
