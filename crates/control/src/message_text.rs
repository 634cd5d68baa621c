//! Shows a message for people and for programs, from the objects in the server's answer.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::explanation::Obstacle;
use crate::explanation_text::obstacle_sentence;
use crate::text::{plural, short_duration};

/// One JSON object for everything.
pub fn json(mut message: Value, recipients: Vec<Value>, header: &str) -> Value {
    message["recipients"] = recipients.into();
    message["header"] = header.into();
    message
}

/// The lines for people.
pub fn lines(message: &Value, recipients: &[Value], header: &str, log_file: Option<&Path>) -> Vec<String> {
    let mut lines = envelope(message);
    lines.push(plural(recipients.len(), "recipient"));
    recipients.iter().for_each(|recipient| push_recipient(recipient, &mut lines));
    for destination in message["destinations"].as_array().into_iter().flatten() {
        push_destination(destination, &mut lines);
    }
    let place = log_hint(log_file, text(message, "id"));
    lines.push(format!("history: for its attempts and their replies, see the log: {place}"));
    lines.push(
        "  while its next hop is unreachable it is not attempted, and nothing is logged: see mailrace explain".into(),
    );
    lines.push("header".into());
    lines.extend(header.lines().filter(|line| !line.is_empty()).map(|line| format!("  {}", line.replace('\t', " "))));
    lines
}

fn envelope(message: &Value) -> Vec<String> {
    let age = short_duration(Duration::from_secs(message["age_seconds"].as_u64().unwrap_or_default()));
    let mut lines = vec![
        format!("{} from <{}>", text(message, "id"), text(message, "sender")),
        format!("  accepted: {} ({age} ago), {} bytes", text(message, "accepted"), message["size"]),
    ];
    let client = match (message["client"].as_str(), text(message, "helo")) {
        (Some(address), "") => address.to_owned(),
        (Some(address), helo) => format!("{address}, HELO {helo}"),
        (None, _) => "none: submitted locally".into(),
    };
    lines.push(format!("  client: {client}"));
    let utf8 = if message["smtputf8"] == true { " SMTPUTF8" } else { "" };
    let mut asked = format!("BODY={}{utf8}", text(message, "body"));
    for (key, name) in [("ret", "RET"), ("envid", "ENVID")] {
        if let Some(value) = message[key].as_str() {
            asked.push_str(&format!(" {name}={value}"));
        }
    }
    lines.push(format!("  parameters: {asked}"));
    lines
}

fn push_recipient(recipient: &Value, lines: &mut Vec<String>) {
    let until = recipient["until"].as_str().map(|until| format!(" until {until}")).unwrap_or_default();
    let attempts = recipient["attempts"].as_u64().map(|count| format!(", {}", plural(count as usize, "attempt")));
    let (address, state) = (text(recipient, "recipient"), text(recipient, "state"));
    lines.push(format!("  <{address}>: {state}{until}{}", attempts.unwrap_or_default()));
    let named = [
        ("original", "sent to"),
        ("orcpt", "ORCPT"),
        ("notify", "NOTIFY"),
        ("destination", "destination"),
        ("error", "last reply"),
    ];
    for (key, name) in named {
        if let Some(value) = recipient[key].as_str() {
            lines.push(format!("    {name}: {value}"));
        }
    }
}

fn push_destination(destination: &Value, lines: &mut Vec<String>) {
    let (name, queue) = (text(destination, "destination"), text(destination, "queue"));
    let next_hop = destination["next_hop"].as_str().unwrap_or("not known yet");
    lines.push(format!("destination {name}: queue {queue}, next hop {next_hop}"));
    let obstacles = destination["obstacles"].as_array().into_iter().flatten();
    let obstacles = obstacles.filter_map(|obstacle| Obstacle::deserialize(obstacle).ok());
    lines.extend(obstacles.map(|obstacle| format!("  waits: {}", obstacle_sentence(&obstacle))));
}

/// How to find the message in the log, as far as the configuration tells.
fn log_hint(log_file: Option<&Path>, id: &str) -> String {
    match log_file {
        Some(path) => format!("grep {id} {}", path.display()),
        None => format!("look for {id} in the server's standard error"),
    }
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::answer;

    #[test]
    fn a_message_is_shown_with_its_recipients_its_destinations_and_its_header() {
        let rows: Vec<Value> = answer().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let header = "Received: from x\r\n\tby y\r\nSubject: \u{202e}x\r\n\r\n";
        let log = Path::new("/var/log/mailrace.log");
        let shown = lines(&rows[0], &rows[1..], header, Some(log));
        let shown: Vec<_> = shown.iter().map(|line| mail::printable(line)).collect();
        insta::assert_snapshot!("queue_show", shown.join("\n"));
        let object = json(rows[0].clone(), rows[1..].to_vec(), header);
        assert_eq!((object["recipients"].as_array().unwrap().len(), &object["header"]), (4, &header.into()));
    }
}
