//! What a sink prints with `--json` when it ends.

use serde::Deserialize;

/// The part of the report of `bench sink` that a measurement uses.
#[derive(Debug, Deserialize)]
struct SinkReport {
    messages: u64,
}

/// The messages that a sink received, from its log: lines with its addresses, then its report. An error is a text that
/// says what is wrong.
pub(super) fn sink_messages(log: &str) -> Result<u64, String> {
    let report = log.find('{').map_or("", |at| &log[at..]);
    let report: SinkReport =
        serde_json::from_str(report).map_err(|error| format!("the report of the sink is not as expected: {error}"))?;
    Ok(report.messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_says_how_many_messages_it_got() {
        assert_eq!(sink_messages("listening on 127.0.0.1:25\n{\"messages\": 7, \"recipients\": 8}\n"), Ok(7));
        assert!(sink_messages("listening on 127.0.0.1:25\n").is_err());
    }
}
