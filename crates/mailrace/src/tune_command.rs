//! `mailrace tune check`: what of this host and of the configuration is not as a mail server needs it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::termios::tcgetwinsize;

use crate::cli::TuneCheckArgs;
use crate::exit::{self, ExitError};
use crate::output::output;
use config::Config;
use tune::{Host, Probes, ResolverTimes, ServerSettings, SyncTimes};

/// The width of the table if the output is not a terminal, in columns.
const WIDTH: u16 = 160;
/// Narrower tables would have a letter in each line.
const WIDTH_MIN: u16 = 80;

/// Checks and prints. Findings are an error with the exit code 1.
///
/// # Errors
///
/// `--root` is not a folder, or a sync cannot be timed.
pub fn check(config: &Config, options: &TuneCheckArgs) -> anyhow::Result<()> {
    let settings = ServerSettings::from_config(config);
    let host = host(options.root.as_deref())?;
    let probes = if options.probe { measure(&host, &settings)? } else { Probes::default() };
    let report = tune::check(&host, &settings);
    let text = match options.json {
        true => tune::render_json(&report, &probes, options.all),
        false => tune::render_text(&report, &probes, options.all, width()),
    };
    output().write_all(text.as_bytes())?;
    match report.findings().count() {
        0 => Ok(()),
        _ => Err(ExitError { code: exit::NEGATIVE, text: "some settings are not as wanted".into() }.into()),
    }
}

/// This host, or a copy of the files of another one.
pub(crate) fn host(root: Option<&Path>) -> anyhow::Result<Host> {
    let Some(root) = root else { return Ok(Host::live()) };
    std::fs::read_dir(root).with_context(|| format!("reading {}", root.display()))?;
    Ok(Host::below(root))
}

fn measure(host: &Host, settings: &ServerSettings) -> anyhow::Result<Probes> {
    let time = |lane: &PathBuf| SyncTimes::measure(lane).with_context(|| format!("timing syncs in {}", lane.display()));
    let syncs: anyhow::Result<Vec<SyncTimes>> = settings.lanes.iter().map(time).collect();
    let resolver = ResolverTimes::measure(host, settings).context("asking the name server")?;
    Ok(Probes { syncs: syncs?, resolver })
}

fn width() -> u16 {
    tcgetwinsize(io::stdout()).map_or(WIDTH, |size| size.ws_col.max(WIDTH_MIN))
}
