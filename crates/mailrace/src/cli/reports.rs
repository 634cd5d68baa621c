//! Options of `reports`.

use clap::Subcommand;

/// Commands for reports to the owners of other domains.
#[derive(Debug, Subcommand)]
pub enum ReportsCommand {
    /// Show what has been counted and is not reported yet
    Show {
        /// Print a JSON object for each report
        #[arg(long)]
        json: bool,
    },
    /// Send the reports about a domain now, with what has been counted so far
    ///
    /// They are sent as at the end of the day: to the destinations that the domain names and that have
    /// agreed. What is counted afterwards is in another report.
    Send {
        /// The domain
        domain: String,
        /// Print a JSON object for each report and destination
        #[arg(long)]
        json: bool,
    },
}
