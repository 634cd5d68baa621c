//! `mailq`: lists the queue like other mail servers, each message with its recipients below.

use serde_json::Value;

use config::Config;
use control::RecipientFilter;
use control::request::ControlRequest;

use super::{print, request_text};

const HEAD: &str = "-Queue ID-                --Size-- ---Arrival Time----  -Sender/Recipient-------";
/// The column of recipients.
const INDENT: usize = 57;

/// Lists the queue.
///
/// # Errors
///
/// The server does not answer.
pub fn mailq(config: &Config) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, &ControlRequest::List(RecipientFilter::default()))?;
    let rows = answer.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    print(lines(&rows))
}

/// The server lists the recipients of a message together.
fn lines(rows: &[Value]) -> Vec<String> {
    if rows.is_empty() {
        return vec!["Mail queue is empty".into()];
    }
    let (mut lines, mut octets, mut messages) = (vec![HEAD.to_owned()], 0, 0);
    for of_message in rows.chunk_by(|one, next| one["id"] == next["id"]) {
        let first = &of_message[0];
        messages += 1;
        octets += first["size"].as_u64().unwrap_or_default();
        lines.push(message_line(first));
        of_message.iter().for_each(|row| push_recipient(row, &mut lines));
        lines.push(String::new());
    }
    let plural = if messages == 1 { "" } else { "s" };
    lines.push(format!("-- {} Kbytes in {messages} Request{plural}.", octets.div_ceil(1024)));
    lines
}

/// As in Postfix, `*` marks messages in delivery and `!` those on hold.
fn message_line(row: &Value) -> String {
    let mark = match text(row, "state") {
        "in flight" => '*',
        "held" => '!',
        _ => ' ',
    };
    let (sender, accepted) = (text(row, "sender"), text(row, "accepted"));
    let sender = if sender.is_empty() { "MAILER-DAEMON" } else { sender };
    let id = format!("{}{mark}", text(row, "id"));
    let accepted = accepted.split_once('.').map_or(accepted, |(seconds, _)| seconds);
    format!("{id:<25} {:>8} {accepted}  {sender}", row["size"].as_u64().unwrap_or_default())
}

fn push_recipient(row: &Value, lines: &mut Vec<String>) {
    if let Some(error) = row["error"].as_str() {
        lines.push(format!("({error})"));
    }
    lines.push(format!("{:INDENT$}{}", "", text(row, "recipient")));
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(id: &str, sender: &str, recipient: &str, state: &str, error: Option<&str>) -> Value {
        let accepted = "2026-11-20T17:46:16.123Z";
        json!({"id": id, "sender": sender, "recipient": recipient, "size": 1500, "accepted": accepted, "state": state,
               "error": error})
    }

    #[test]
    fn it_looks_as_operators_know_it() {
        let rows = [
            row("7-0-1", "a@b", "c@d", "in flight", None),
            row("7-0-1", "a@b", "e@f", "waiting", Some("450 4.2.1 later")),
            row("7-0-2", "", "g@h", "held", None),
        ];
        insta::assert_snapshot!("mailq", lines(&rows).join("\n"));
        assert_eq!(lines(&[]), ["Mail queue is empty"]);
    }
}
