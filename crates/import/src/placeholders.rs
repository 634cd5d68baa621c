//! Postfix's placeholders in queries, filters and formats, such as `%s`, in our notation. They are those
//! of ldap_table(5), mysql_table(5) and their relatives.

/// Names of the parts of a key in our queries, by the letters of Postfix's.
pub(crate) fn key_part(letter: char, local: bool) -> Result<Option<String>, String> {
    Ok(Some(match letter {
        's' | 'S' if local => "local".into(),
        's' | 'S' => "key".into(),
        'u' | 'U' => "local".into(),
        // Postfix looks up names without a domain, and so never asks.
        'd' | 'D' | '1'..='9' if local => return Err(format!("%{letter} is never there in names without a domain")),
        'd' | 'D' => "domain".into(),
        '1'..='9' => format!("label{letter}"),
        _ => return Ok(None),
    }))
}

/// `result_format` with our placeholders. `local`: Postfix looks up names without a domain.
pub(crate) fn result_format(format: &str, local: bool) -> Result<String, String> {
    let mut made = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' => made.extend([c, c]),
            '%' => {
                let letter = chars.next().unwrap_or(' ');
                let part = match letter {
                    '%' => {
                        made.push('%');
                        continue;
                    }
                    's' => Some("value".to_owned()),
                    'u' => Some("value_local".to_owned()),
                    'd' => Some("value_domain".to_owned()),
                    _ => key_part(letter, local)?,
                };
                let part = part.ok_or_else(|| format!("%{letter} in result_format is not a known placeholder"))?;
                made.push_str(&format!("{{{part}}}"));
            }
            _ => made.push(c),
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_take_our_placeholders() {
        for (format, local, expected) in [
            ("%s", false, "{value}"),
            ("smtp:[%s]", false, "smtp:[{value}]"),
            ("%d/%u/", false, "{value_domain}/{value_local}/"),
            ("%S %U %D %1 %9 100%% {x}", false, "{key} {local} {domain} {label1} {label9} 100% {{x}}"),
            ("%s-%S", true, "{value}-{local}"),
        ] {
            assert_eq!(result_format(format, local).as_deref(), Ok(expected), "{format}");
        }
        for (format, local) in [("%x", false), ("%", false), ("%D", true), ("%0", false)] {
            assert!(result_format(format, local).is_err(), "{format}");
        }
    }
}
