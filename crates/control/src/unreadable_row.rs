//! The last row of a count, a list or a summary from which messages were left out because they cannot be read: it has
//! their number. Without such messages there is no such row.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::text::plural;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnreadableRow {
    unreadable: usize,
}

/// Ends an answer.
pub(crate) fn write_unreadable(unreadable: usize, out: &mut impl Write) -> io::Result<()> {
    match unreadable {
        0 => Ok(()),
        _ => writeln!(out, "{}", serde_json::to_string(&UnreadableRow { unreadable })?),
    }
}

/// Splits an answer into the rows before the last one and the number of messages that were left out.
pub fn split_unreadable(answer: &str) -> (&str, usize) {
    let rows = answer.strip_suffix('\n').unwrap_or(answer);
    let start = rows.rfind('\n').map_or(0, |end| end + 1);
    match serde_json::from_str(&rows[start..]) {
        Ok(UnreadableRow { unreadable }) => (&answer[..start], unreadable),
        Err(_) => (answer, 0),
    }
}

/// The same for lines.
pub(crate) fn take_unreadable(lines: &mut Vec<String>) -> usize {
    let unreadable = lines.last().map_or(0, |last| split_unreadable(last).1);
    if unreadable > 0 {
        lines.pop();
    }
    unreadable
}

/// The line for people; None: nothing was left out.
pub fn unreadable_text(unreadable: usize) -> Option<String> {
    let messages = || plural(unreadable, "message");
    (unreadable > 0).then(|| format!("{} left out: unable to read; the log names the first one", messages()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_unreadable_messages_stays_as_it_is() {
        for answer in ["", "7\n", "{\"recipients\":1}\n", "{\"recipients\":1,\"unreadable\":2}\n"] {
            let mut out = answer.as_bytes().to_vec();
            write_unreadable(0, &mut out).unwrap();
            assert_eq!(split_unreadable(std::str::from_utf8(&out).unwrap()), (answer, 0));
        }
    }

    #[test]
    fn the_number_of_unreadable_messages_is_the_last_row() {
        for answer in ["", "7\n", "{\"recipients\":1}\n{\"recipients\":2}\n"] {
            let mut out = answer.as_bytes().to_vec();
            write_unreadable(3, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(split_unreadable(&text), (answer, 3));
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            assert_eq!(take_unreadable(&mut lines), 3);
            assert_eq!(lines, answer.lines().collect::<Vec<_>>());
        }
        assert_eq!(unreadable_text(0), None);
        let text = unreadable_text(1).unwrap();
        assert_eq!(text, "1 message left out: unable to read; the log names the first one");
    }
}
