//! The file names in the parameters of a field (RFC 2045 section 5.1, RFC 2231), as any reader might find them.
//! Readers differ about repeated parameters, pieces out of order, missing types and quotes that do not end. So
//! each `name=` and `filename=` counts, wherever it stands, and pieces are also put together.

/// The parameters that name a file.
const PARAMETERS: [&str; 2] = ["filename", "name"];

/// A piece of a value (RFC 2231 section 3).
struct Piece {
    parameter: &'static str,
    number: u32,
    text: String,
}

/// All names that the parameters may give, those of whole values first.
pub(super) fn parameter_names(value: &str) -> Vec<String> {
    let (mut names, mut pieces) = (Vec::new(), Vec::new());
    for (place, _) in value.match_indices('=') {
        let Some((parameter, section)) = parameter_before(&value[..place]) else { continue };
        let text = parameter_value(&value[place + 1..]);
        match section.map(|section| (section, section.trim_end_matches('*'))) {
            None => names.push(text),
            Some((_, "")) => names.push(extended(&text)),
            Some((section, number)) => {
                let Ok(number) = number.parse() else { continue };
                let text = if section.ends_with('*') { extended(&text) } else { text };
                pieces.push(Piece { parameter, number, text });
            }
        }
    }
    names.extend(joined(pieces));
    names
}

/// The parameter whose name ends a text, and what follows its `*`; None: it names no file.
fn parameter_before(text: &str) -> Option<(&'static str, Option<&str>)> {
    let text = text.trim_end();
    let is_part = |c: char| c.is_ascii_alphanumeric() || "*-_".contains(c);
    let start = text.char_indices().rev().take_while(|(_, c)| is_part(*c)).last()?.0;
    let (name, section) = match text[start..].split_once('*') {
        Some((name, section)) => (name, Some(section)),
        None => (&text[start..], None),
    };
    let parameter = PARAMETERS.into_iter().find(|known| known.eq_ignore_ascii_case(name))?;
    Some((parameter, section))
}

/// The value at the start of a text: what is in quotes, or all up to a semicolon or a comment.
fn parameter_value(text: &str) -> String {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        return text.split([';', '(']).next().unwrap_or_default().trim_end().to_owned();
    };
    let (mut value, mut chars) = (String::new(), quoted.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => value.extend(chars.next()),
            c => value.push(c),
        }
    }
    value
}

/// `charset'language'text` or the text alone, with its octets decoded. The end of a name, which decides, is ASCII.
fn extended(text: &str) -> String {
    let text = text.splitn(3, '\'').nth(2).unwrap_or(text);
    let (mut octets, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let code = after.get(..2).filter(|_| *first == b'%').and_then(|code| str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(octet) => {
                octets.push(octet);
                rest = &after[2..];
            }
            None => {
                octets.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&octets).into_owned()
}

/// The pieces of each parameter in the order of their numbers.
fn joined(mut pieces: Vec<Piece>) -> Vec<String> {
    pieces.sort_by_key(|piece| piece.number);
    let of_parameter = |parameter: &str| {
        let own = pieces.iter().filter(|piece| piece.parameter == parameter);
        own.map(|piece| piece.text.as_str()).collect::<String>()
    };
    PARAMETERS.map(of_parameter).into_iter().filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message was accepted whose attachment many readers save as a.exe.
    #[test]
    fn no_notation_hides_a_name() {
        for value in [
            "attachment; filename=\"a.txt\"; filename*0=\"a.e\"; filename*1=\"xe\"",
            "attachment; filename*1=\"xe\"; filename*0=\"a.e\"",
            "attachment; filename*0*=utf-8''a%2Ee; filename*1*=%78e",
            "attachment; filename*00=a; filename*01=.exe",
            "attachment; filename=a.exe; filename=a.txt",
            "; filename=a.exe",
            "filename=\"a.exe\"",
            "attachment; filename = a.exe (program)",
            "attachment; x=\"; FileName=\"a.exe",
            "attachment; filename=\"a\\.exe\"",
            "attachment; filename*=a.exe",
            "attachment filename=a.exe",
            "application/x; name*=''a.%65xe",
        ] {
            let names = parameter_names(value);
            assert!(names.iter().any(|name| name == "a.exe"), "{value}: {names:?}");
        }
    }

    #[test]
    fn other_parameters_name_no_file() {
        assert_eq!(parameter_names("text/plain; charset=a.exe; x-name=b.exe; name*x=c.exe"), [""; 0]);
        assert_eq!(parameter_names("attachment; filename*=''%zz%4"), ["%zz%4"]);
    }

    /// All sequences of these pieces: no cut is inside a character, and nothing is read twice.
    #[test]
    fn any_text_is_read() {
        let pieces = ["name", "=", "*0*", "\"", "%\u{e9}", "\\", ";", "'"];
        let count = pieces.len();
        for number in 0..count.pow(5) {
            let text: String = (0..5).map(|place| pieces[number / count.pow(place) % count]).collect();
            let names = parameter_names(&format!("filename*0*={text}"));
            assert!(names.len() <= 6, "{text}: {names:?}");
        }
    }
}
