//! Options of `dkim`: keys that are made, shown and compared with the DNS.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sender_auth::signing::{RsaBits, is_selector};

/// Commands for DKIM keys.
#[derive(Debug, Subcommand)]
pub enum DkimCommand {
    /// Make a key in a new file, and print the TXT record that publishes it
    ///
    /// The file is SELECTOR.DOMAIN.pem, with a private key in PEM that only its owner can read. The
    /// record is printed as a line of a zone file, in strings of at most 255 characters.
    Generate(DkimGenerateArgs),
    /// Print the TXT records of the keys in the configuration
    Show {
        /// Only the keys that sign for this domain, also those of a table
        domain: Option<String>,
    },
    /// Check whether the DNS has the records of the keys that sign for a domain
    ///
    /// It names what is wrong with each record. The exit code is 1 if a record is missing or does
    /// not fit its private key, and 69 if the DNS does not answer.
    Check {
        /// The domain
        domain: String,
    },
}

/// Options of `dkim generate`.
#[derive(Args, Debug)]
pub struct DkimGenerateArgs {
    /// The domain that signs
    pub domain: String,
    /// The selector; by default mail, or mail-ed25519
    #[arg(long, value_name = "NAME", value_parser = parse_selector)]
    pub selector: Option<String>,
    /// The algorithm: all receivers know rsa; ed25519 signs faster, beside it
    #[arg(long, default_value = "rsa")]
    pub algorithm: DkimAlgorithm,
    /// The size of an RSA key; by default 2048
    #[arg(long, value_name = "N")]
    pub bits: Option<DkimKeyBits>,
    /// The folder for the file; by default the current one
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Algorithms of DKIM keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is the algorithm of its name, and a doc comment would be its help")]
pub enum DkimAlgorithm {
    Rsa,
    Ed25519,
}

/// Sizes of RSA keys, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is the number in its name, and a doc comment would be its help")]
pub enum DkimKeyBits {
    #[value(name = "2048")]
    B2048,
    #[value(name = "3072")]
    B3072,
    #[value(name = "4096")]
    B4096,
}

impl From<DkimKeyBits> for RsaBits {
    fn from(bits: DkimKeyBits) -> RsaBits {
        match bits {
            DkimKeyBits::B2048 => RsaBits::B2048,
            DkimKeyBits::B3072 => RsaBits::B3072,
            DkimKeyBits::B4096 => RsaBits::B4096,
        }
    }
}

fn parse_selector(text: &str) -> Result<String, &'static str> {
    match is_selector(text) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits and hyphens, at most 63"),
    }
}
