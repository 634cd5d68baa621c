//! The commands about pauses.

use control::pauses::{PauseRequest, PauseStatus, PausedName, ResumeRequest};
use control::pauses_text;
use control::request::ControlRequest;

use super::{print, request_text, rows};
use crate::cli::{PausedNameArgs, QueuePauseArgs};
use crate::exit::{self, ExitError};
use config::Config;

/// `mailrace queue pause`.
pub fn pause(config: &Config, args: &QueuePauseArgs) -> anyhow::Result<()> {
    let request = PauseRequest { target: target(&args.target)?, duration: args.duration.clone() };
    let answer = request_text(&config.admin.socket, &ControlRequest::Pause(request))?;
    print(rows(&answer)?.iter().map(pauses_text::begun))
}

/// `mailrace queue resume`.
pub fn resume(config: &Config, args: &PausedNameArgs) -> anyhow::Result<()> {
    let request = ResumeRequest { target: target(args)? };
    request_text(&config.admin.socket, &ControlRequest::Resume(request)).map(drop)
}

/// `mailrace queue pauses`.
pub fn print_pauses(config: &Config, as_json: bool) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, &ControlRequest::Pauses)?;
    match as_json {
        true => print(answer.lines()),
        false => print(pauses_text::table(&rows::<PauseStatus>(&answer)?)),
    }
}

fn target(args: &PausedNameArgs) -> anyhow::Result<PausedName> {
    let none = || ExitError { code: exit::USAGE, text: "expected a queue, --next-hop or --destination".into() };
    Ok(args.name().ok_or_else(none)?)
}
