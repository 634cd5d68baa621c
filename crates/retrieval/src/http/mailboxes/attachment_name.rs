//! File names of attachments: made harmless, and written into Content-Disposition (RFC 6266).

use protocol::http::server::encode_path;

/// Characters of a name. Of a longer one the end is kept, with its extension.
const NAME_CHARACTERS_MAX: usize = 100;

/// A name from a message as a name in one folder; None if nothing is left of it. Control characters
/// and those that change the direction of text are left out: they would hide the extension.
pub(super) fn clean(name: &str) -> Option<String> {
    let is_kept = |character: &char| !character.is_control() && !is_direction(*character);
    let kept: Vec<char> = name.chars().filter(is_kept).collect();
    let end = &kept[kept.len().saturating_sub(NAME_CHARACTERS_MAX)..];
    let separated: String =
        end.iter().map(|character| if matches!(character, '/' | '\\') { '_' } else { *character }).collect();
    let name = separated.trim_matches(|character: char| character == '.' || character.is_whitespace());
    (!name.is_empty()).then(|| name.to_owned())
}

/// The name of a part without one.
pub(super) fn default_name(number: usize, media_type: &str) -> String {
    let extension = match media_type {
        "text/plain" => "txt",
        "text/html" => "html",
        "text/calendar" => "ics",
        "message/rfc822" => "eml",
        "image/gif" => "gif",
        "image/jpeg" => "jpg",
        "image/png" => "png",
        "application/pdf" => "pdf",
        _ => "bin",
    };
    format!("part-{number}.{extension}")
}

/// The value of Content-Disposition. A name that is not ASCII comes in both forms, as RFC 6266
/// appendix D recommends.
pub(super) fn disposition(name: &str) -> String {
    let is_plain = |character: char| matches!(character, ' '..='~') && !matches!(character, '"' | '\\' | '%');
    let plain: String = name.chars().map(|character| if is_plain(character) { character } else { '_' }).collect();
    if plain == name {
        return format!("attachment; filename=\"{plain}\"");
    }
    // What a path leaves unescaped is also allowed by RFC 8187, except for slashes.
    let encoded = encode_path(name.as_bytes()).replace('/', "%2F");
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

/// Marks, embeddings, overrides and isolates of the bidirectional algorithm (UAX #9).
fn is_direction(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_harmless() {
        for (name, expected) in [
            ("report.pdf", Some("report.pdf")),
            ("../../etc/passwd", Some("_.._etc_passwd")),
            ("C:\\x\\evil.exe", Some("C:_x_evil.exe")),
            (".htaccess", Some("htaccess")),
            ("photo\u{202e}gpj.exe", Some("photogpj.exe")),
            ("a\r\nSet-Cookie: b", Some("aSet-Cookie: b")),
            (" .. ", None),
            ("", None),
        ] {
            assert_eq!(clean(name).as_deref(), expected, "{name:?}");
        }
        let long = format!("{}.pdf", "ä".repeat(500));
        let cut = clean(&long).unwrap();
        assert!(cut.chars().count() == NAME_CHARACTERS_MAX && cut.ends_with("ä.pdf"));
    }

    #[test]
    fn a_name_that_is_not_plain_comes_in_both_forms() {
        assert_eq!(disposition("a b.txt"), "attachment; filename=\"a b.txt\"");
        assert_eq!(
            disposition("Übung \"1\";.txt"),
            "attachment; filename=\"_bung _1_;.txt\"; filename*=UTF-8''%C3%9Cbung%20%221%22%3B.txt"
        );
        assert_eq!(disposition("100%/\\"), "attachment; filename=\"100_/_\"; filename*=UTF-8''100%25%2F%5C");
    }
}
