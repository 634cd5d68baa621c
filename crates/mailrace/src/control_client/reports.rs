//! The commands about reports to the owners of other domains.

use serde_json::Value;

use control::reports_text;
use control::request::ControlRequest;

use super::{print, request_text};
use config::Config;

/// `mailrace reports show`.
pub fn show_reports(config: &Config, as_json: bool) -> anyhow::Result<()> {
    print_rows(config, &ControlRequest::ReportsShow, as_json, reports_text::pending_table)
}

/// `mailrace reports send`.
pub fn send_reports(config: &Config, domain: &str, as_json: bool) -> anyhow::Result<()> {
    let request = ControlRequest::ReportsSend { domain: domain.to_ascii_lowercase() };
    print_rows(config, &request, as_json, reports_text::sent_table)
}

fn print_rows(
    config: &Config,
    request: &ControlRequest,
    as_json: bool,
    table: fn(&[Value]) -> Vec<String>,
) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, request)?;
    if as_json {
        return print(answer.lines());
    }
    let rows = answer.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    print(table(&rows))
}
