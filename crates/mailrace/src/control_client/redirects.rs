//! The commands about redirects.

use control::redirects::{EndRedirectRequest, Redirect};
use control::redirects_text;
use control::request::ControlRequest;

use super::{print, request_text, rows};
use crate::cli::QueueRedirectArgs;
use crate::exit::{self, ExitError};
use config::Config;

/// `mailrace queue redirect`.
pub fn redirect(config: &Config, args: &QueueRedirectArgs) -> anyhow::Result<()> {
    let none = || ExitError { code: exit::USAGE, text: "expected --next-hop or --destination".into() };
    let from = args.source.name().ok_or_else(none)?;
    let request = match &args.to {
        Some(to) => ControlRequest::Redirect(Redirect { from, to: to.clone(), transport: args.transport.clone() }),
        None => ControlRequest::EndRedirect(EndRedirectRequest { from }),
    };
    request_text(&config.admin.socket, &request).map(drop)
}

/// `mailrace queue redirects`.
pub fn print_redirects(config: &Config, as_json: bool) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, &ControlRequest::Redirects)?;
    match as_json {
        true => print(answer.lines()),
        false => print(redirects_text::table(&rows::<Redirect>(&answer)?)),
    }
}
