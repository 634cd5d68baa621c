//! The commands about certificates that the server obtains.

use control::certificates_text::acme_table;
use control::request::ControlRequest;
use control::text::plural;

use super::{print, request_text, rows};
use config::Config;

/// `mailrace acme status`.
pub fn print_acme_status(config: &Config, as_json: bool) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, &ControlRequest::AcmeStatus)?;
    match as_json {
        true => print(answer.lines()),
        false => print(acme_table(&rows(&answer)?)),
    }
}

/// `mailrace acme renew`.
pub fn renew_certificates(config: &Config, name: Option<&str>) -> anyhow::Result<()> {
    let request = ControlRequest::AcmeRenew { name: name.map(str::to_owned) };
    let answer = request_text(&config.admin.socket, &request)?;
    print([format!("{} to be renewed now", plural(answer.trim_end().parse()?, "certificate"))])
}
