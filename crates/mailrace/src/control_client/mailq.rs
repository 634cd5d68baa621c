//! `mailq`: lists the queue like other mail servers, each message with its recipients below.

use config::Config;
use control::RecipientFilter;
use control::list::QueuedRecipient;
use control::request::ControlRequest;
use control::unreadable_row::{split_unreadable, unreadable_text};

use super::{print, request_text, rows};
use crate::stderr::print_stderr;

const HEAD: &str = "-Queue ID-                --Size-- ---Arrival Time----  -Sender/Recipient-------";
/// The column of recipients.
const INDENT: usize = 57;

/// Lists the queue. Messages that cannot be read are counted on standard error and are no error, as with other mail
/// servers: monitors take a mailq that fails for a server that does not run.
///
/// # Errors
///
/// The server does not answer.
pub fn mailq(config: &Config) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, &ControlRequest::List(RecipientFilter::default()))?;
    let (answer, unreadable) = split_unreadable(&answer);
    print(lines(&rows(answer)?))?;
    unreadable_text(unreadable).iter().for_each(print_stderr);
    Ok(())
}

/// The server lists the recipients of a message together.
fn lines(rows: &[QueuedRecipient]) -> Vec<String> {
    if rows.is_empty() {
        return vec!["Mail queue is empty".into()];
    }
    let (mut lines, mut octets, mut messages) = (vec![HEAD.to_owned()], 0, 0);
    for of_message in rows.chunk_by(|one, next| one.id == next.id) {
        let first = &of_message[0];
        messages += 1;
        octets += first.size;
        lines.push(message_line(first));
        of_message.iter().for_each(|row| push_recipient(row, &mut lines));
        lines.push(String::new());
    }
    let plural = if messages == 1 { "" } else { "s" };
    lines.push(format!("-- {} Kbytes in {messages} Request{plural}.", octets.div_ceil(1024)));
    lines
}

/// As in Postfix, `*` marks messages in delivery and `!` those on hold.
fn message_line(row: &QueuedRecipient) -> String {
    let mark = match &*row.state {
        "in flight" => '*',
        "held" => '!',
        _ => ' ',
    };
    let sender = if row.sender.is_empty() { "MAILER-DAEMON" } else { &row.sender };
    let id = format!("{}{mark}", row.id);
    let accepted = row.accepted.split_once('.').map_or(&*row.accepted, |(seconds, _)| seconds);
    format!("{id:<25} {:>8} {accepted}  {sender}", row.size)
}

fn push_recipient(row: &QueuedRecipient, lines: &mut Vec<String>) {
    if let Some(error) = &row.error {
        lines.push(format!("({error})"));
    }
    lines.push(format!("{:INDENT$}{}", "", row.recipient));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, sender: &str, recipient: &str, state: &str, error: Option<&str>) -> QueuedRecipient {
        QueuedRecipient {
            id: id.to_owned(),
            sender: sender.to_owned(),
            recipient: recipient.to_owned(),
            size: 1500,
            accepted: "2026-11-20T17:46:16.123Z".to_owned(),
            attempts: 0,
            state: state.to_owned(),
            until: None,
            destination: "d".to_owned(),
            queue: "standard".to_owned(),
            error: error.map(str::to_owned),
        }
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
