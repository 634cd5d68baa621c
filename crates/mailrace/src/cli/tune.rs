//! Options of `tune`: what is checked, changed and put back. Those that start servers and measure are in
//! [`super::tune_runs`].

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::tune_runs::{TuneMeasureArgs, TuneSearchArgs};

/// Commands for the settings of the host and of the server.
#[derive(Debug, Subcommand)]
pub enum TuneCommand {
    /// Compare the settings of this host and the configuration with what a mail server needs
    ///
    /// It changes nothing. The table names each setting that is not as wanted, why, how sure that
    /// is, and how to change it: the surest findings first. What cannot be read counts as unknown;
    /// root can read more. The exit code is 1 if there are findings.
    Check(TuneCheckArgs),
    /// Measure whether other values of a knob are better than its present one
    ///
    /// Each run starts a server of its own on this machine, with this configuration's limits,
    /// queues and storage settings and an empty spool on the same disk, and puts it under load for
    /// a few seconds. Runs with the present value and with others take turns until it is clear
    /// whether they differ. The present value also runs against itself: if that shows an effect,
    /// nothing is to be trusted. The running server is not touched, but both compete for the
    /// machine. The exit code is 1 if nothing was decided.
    Measure(Box<TuneMeasureArgs>),
    /// Search the smallest value of a parameter that gives nearly the best rate
    ///
    /// Runs servers as `tune measure` does, with ever larger values until nothing is gained, and
    /// then with values near the smallest one that is good enough. It draws the curve. The exit
    /// code is 1 if the search ended early, or if the rate still rises at the highest value.
    Search(Box<TuneSearchArgs>),
    /// Change settings to what a mail server needs
    ///
    /// It shows what it would change, as a diff, and stops there without --yes. Values that can be
    /// changed while the host runs change at once. They are kept by files of its own:
    /// 60-mailrace.conf in /etc/sysctl.d, /etc/tmpfiles.d and the drop-ins of mailrace.service, and
    /// 60-mailrace.rules in /etc/udev/rules.d. Settings of the server are changed in the
    /// configuration file, whose comments stay, and a running server reloads it if that is enough. What
    /// it changes is in a journal in /var/lib/mailrace-tune, by which `tune revert` puts everything
    /// back, also after a kill.
    Apply(TuneApplyArgs),
    /// Put back everything that `tune apply` changed
    ///
    /// Each file becomes what it was before the first `tune apply`, byte by byte, with its mode and
    /// owner, and each value too, and a running server reloads its configuration. It refuses if one of
    /// them was changed since, before it changes anything.
    Revert(TuneRevertArgs),
}

/// Options of `tune apply`.
#[derive(Args, Debug)]
pub struct TuneApplyArgs {
    /// The knobs to change, by their names in `tune check`; without any, all its findings
    #[arg(value_name = "KNOB[=VALUE]")]
    pub knobs: Vec<tune::apply::KnobRequest>,
    /// Change all findings that are sure
    #[arg(long)]
    pub all_sure: bool,
    /// Change it, after showing it
    #[arg(long)]
    pub yes: bool,
    /// Read and change /proc, /sys, /etc and /var below this folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// Options of `tune revert`.
#[derive(Args, Debug)]
pub struct TuneRevertArgs {
    /// Put it back, after showing it
    #[arg(long)]
    pub yes: bool,
    /// Put back what was changed below this folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// Options of `tune check`.
#[derive(Args, Debug)]
pub struct TuneCheckArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Also show what is well, unknown or absent
    #[arg(long)]
    pub all: bool,
    /// Also time 50 syncs in the folder of each lane of the spool, and the name server
    #[arg(long, conflicts_with = "root")]
    pub probe: bool,
    /// Read /proc, /sys and /etc below this folder: a copy from another host
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}
