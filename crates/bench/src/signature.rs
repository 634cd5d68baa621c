//! `bench sign`: the bare cost of a DKIM signature, which no server can go below: one operation with an
//! RSA key of 2048 bits, and SHA-256 of a message in memory.
//!
//! The key is new, and made before the time begins. All threads use it, and each makes its share of the
//! signatures. A signature that cannot be made is a [`BenchError`].

use std::fmt;
use std::hint::black_box;
use std::io;
use std::thread;
use std::time::Instant;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use clap::builder::RangedI64ValueParser;
use load::ProcessCpuTime;
use serde::Serialize;

use crate::BenchError;
use crate::machine_usage::MachineUsage;
use crate::report::{self, RunVerdict};

const SIGNATURES_MAX: i64 = 1_000_000_000;
/// More than any machine has processors.
const THREADS_MAX: i64 = 1024;
/// The message is in memory.
const MESSAGE_BYTES_MAX: i64 = 64 << 20;

/// Options of `bench sign`.
#[derive(Clone, Debug, clap::Args)]
pub struct SignatureOptions {
    /// Number of signatures; rounded up to a multiple of the threads
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = at_most(SIGNATURES_MAX))]
    signatures: u32,
    /// Octets of the message that is hashed for each signature
    #[arg(long, value_name = "OCTETS", default_value_t = 6000, value_parser = at_most(MESSAGE_BYTES_MAX))]
    size: u32,
    /// Number of threads that sign at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_most(THREADS_MAX))]
    threads: u32,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn at_most(number: i64) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=number)
}

/// Measures and reports.
///
/// # Errors
///
/// Returns [`BenchError::System`] if the cryptographic library fails or the CPU time cannot be read.
pub fn run(options: &SignatureOptions) -> Result<RunVerdict, BenchError> {
    report::print(&measure(options)?, options.json)?;
    Ok(RunVerdict::Good)
}

/// The cost of the signatures.
#[derive(Debug, Serialize)]
struct SignatureReport {
    signatures: u32,
    size: u32,
    threads: u32,
    seconds: f64,
    cpu_seconds: f64,
    cpu_us_per_signature: f64,
    meanwhile: MachineUsage,
}

fn measure(options: &SignatureOptions) -> Result<SignatureReport, BenchError> {
    let key = RsaKeyPair::generate(KeySize::Rsa2048).map_err(library_failed)?;
    let message = vec![b'x'; options.size as usize];
    let share = options.signatures.div_ceil(options.threads);
    let usage_meter = MachineUsage::begin();
    let (begun, cpu_begun) = (Instant::now(), cpu_secs()?);
    thread::scope(|scope| {
        let sign = || (0..share).try_for_each(|_| sign_message(&key, &message));
        let threads: Vec<_> = (0..options.threads).map(|_| scope.spawn(sign)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(Unspecified)))
    })
    .map_err(library_failed)?;
    let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cpu_secs()? - cpu_begun);
    let signatures = share * options.threads;
    Ok(SignatureReport {
        signatures,
        size: options.size,
        threads: options.threads,
        seconds,
        cpu_seconds,
        cpu_us_per_signature: cpu_seconds * 1e6 / f64::from(signatures),
        meanwhile: usage_meter.end(),
    })
}

fn sign_message(key: &RsaKeyPair, message: &[u8]) -> Result<(), Unspecified> {
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign_digest(&RSA_PKCS1_SHA256, &digest(&SHA256, black_box(message)), &mut signature)?;
    black_box(signature);
    Ok(())
}

fn cpu_secs() -> Result<f64, BenchError> {
    Ok(ProcessCpuTime::sample().map_err(BenchError::system("reading the CPU time"))?.total_secs())
}

/// The library gives no reason.
fn library_failed(_: Unspecified) -> BenchError {
    BenchError::system("signing")(io::Error::other("the cryptographic library failed"))
}

impl fmt::Display for SignatureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SignatureReport { signatures, size, threads, seconds, cpu_us_per_signature, .. } = self;
        writeln!(f, "{signatures} signatures with RSA-2048 and SHA-256 of {size} octets on {threads} threads:")?;
        writeln!(f, "  {:<22} {:>8.0}", "signatures a second", f64::from(*signatures) / seconds)?;
        writeln!(f, "  {:<22} {cpu_us_per_signature:>8.1} us", "CPU for a signature")?;
        write!(f, "{}", self.meanwhile)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        options: SignatureOptions,
    }

    fn parse(words: &[&str]) -> Result<SignatureOptions, clap::Error> {
        CommandLine::try_parse_from([&["sign"], words].concat()).map(|line| line.options)
    }

    #[test]
    fn the_command_line_is_read() {
        let usual = parse(&[]).unwrap();
        assert_eq!((usual.signatures, usual.size, usual.threads), (10_000, 6000, 1));
        assert!(parse(&["--threads", "0"]).is_err(), "nothing would be signed");
        assert!(parse(&["--size", "67108865"]).is_err(), "larger than the limit");
    }

    #[test]
    fn each_thread_makes_its_share_and_the_cpu_of_all_counts() {
        let report = measure(&parse(&["--signatures", "3", "--threads", "2"]).unwrap()).unwrap();
        assert_eq!(report.signatures, 4);
        assert!(report.cpu_us_per_signature > 0.0, "{report:?}");
        assert!(report.to_string().starts_with("4 signatures with RSA-2048"), "{report}");
    }
}
