//! Options of `acme`.

use clap::Subcommand;

/// Commands for certificates that the server obtains.
#[derive(Debug, Subcommand)]
pub enum AcmeCommand {
    /// Show each certificate: its issuer and its end, the next attempt, and the last error
    Status {
        /// Print a JSON object for each certificate
        #[arg(long)]
        json: bool,
    },
    /// Obtain a certificate now, whether it is due or not
    ///
    /// Authorities limit how many certificates they issue for a name. `acme status` and the log show
    /// what came of it.
    Renew {
        /// One of its names. Default: all certificates
        name: Option<String>,
    },
}
