//! `mailrace tune check`: what of this host and of the configuration is not as a mail server needs it.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cli::TuneCheckArgs;
use crate::exit::{self, ExitError};
use crate::output::{output, terminal_width};
use config::Config;
use tune::{Host, Probes, ResolverTimes, ServerSettings, SyncTimes};

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
        false => tune::render_text(&report, &probes, options.all, terminal_width()),
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
