//! `mailrace dkim`: makes keys for DKIM signatures, prints the records that publish them, and asks
//! the DNS whether these are published. The running server is not asked.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use config::Config;
use dns::{DnsAnswer, QueryType, Resolver};
use sender_auth::signing::{
    KeyAlgorithm, PrivateKey, RsaBits, Signer, SigningDomain, SigningThreadsConfig, key_record,
};
use tokio::runtime::Runtime;

use crate::cli::{DkimAlgorithm, DkimGenerateArgs};
use crate::exit::{self, ExitError};
use crate::output::output;
use crate::signing;
use crate::stderr::print_stderr;
use crate::tables::{TableOpener, TablePurpose};

/// Makes a key, writes it to a new file, and prints its record.
///
/// # Errors
///
/// The name is no domain, or the file exists or cannot be written.
pub fn generate(options: &DkimGenerateArgs) -> anyhow::Result<()> {
    let domain = to_domain(&options.domain)?;
    let key = match options.algorithm {
        DkimAlgorithm::Rsa => PrivateKey::generate_rsa(options.bits.map_or(RsaBits::B2048, Into::into))?,
        DkimAlgorithm::Ed25519 => PrivateKey::generate_ed25519()?,
    };
    let selector = options.selector.as_deref().unwrap_or(match key.algorithm() {
        KeyAlgorithm::Rsa => "mail",
        KeyAlgorithm::Ed25519 => "mail-ed25519",
    });
    let folder = options.dir.as_deref().unwrap_or(Path::new("."));
    let file = std::path::absolute(folder.join(format!("{selector}.{domain}.pem")))?;
    write_new(&file, &key.to_pem()?).with_context(|| format!("writing {}", file.display()))?;
    print_record(selector, &domain, &key)?;
    print_stderr(format_args!(
        "mailrace: the private key is in {}; the user of the server must be able to read it.\n\
         Publish the record above, and add to the configuration:\n\n\
         [[signing.key]]\ndomain = {domain:?}\nselector = {selector:?}\nfile = {:?}\n",
        file.display(),
        file.display().to_string()
    ));
    Ok(())
}

/// Prints the records of all keys in the configuration, or of those that sign for a domain.
///
/// # Errors
///
/// A key cannot be read, or there is none.
pub fn show(config: &Config, domain: Option<&str>) -> anyhow::Result<()> {
    let Some(domain) = domain else { return show_configured(config) };
    let (domain, keys) = keys_of(config, domain, &runtime()?)?;
    keys.keys.iter().try_for_each(|key| print_record(&key.selector, &keys.domain, &key.key))?;
    note_parent(&domain, &keys);
    Ok(())
}

fn show_configured(config: &Config) -> anyhow::Result<()> {
    let keys = &config.signing.keys;
    if keys.is_empty() {
        let text = match config.signing.table {
            Some(_) => "no [[signing.key]] in the configuration; name a domain to look it up in the table",
            None => "no keys: add [[signing.key]] to the configuration, or a table of keys to [signing]",
        };
        return Err(ExitError { code: exit::NEGATIVE, text: text.into() }.into());
    }
    for key in keys {
        let read = PrivateKey::load(&key.file).with_context(|| key.file.display().to_string())?;
        print_record(&key.selector, &key.domain, &read)?;
    }
    Ok(())
}

/// Asks the DNS whether the records of the keys that sign for a domain are published.
///
/// # Errors
///
/// A record is missing or does not fit its key, the DNS does not answer, or there is no key.
pub fn check(config: &Config, domain: &str) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let (domain, keys) = keys_of(config, domain, &runtime)?;
    note_parent(&domain, &keys);
    let resolver = Resolver::new(&config.dns).context("[dns]")?;
    let (mut unanswered, mut faulty) = (0, 0);
    for key in &keys.keys {
        let name = key_record::record_name(&key.selector, &keys.domain);
        let faults = match runtime.block_on(resolver.lookup(&name, QueryType::Txt)).answer {
            DnsAnswer::Texts(records) => key_record::record_faults(&records, &key.key)?,
            DnsAnswer::Unanswered(why) => {
                writeln!(output(), "{name}: the DNS does not answer: {why}")?;
                unanswered += 1;
                continue;
            }
            _ => key_record::record_faults(&[], &key.key)?,
        };
        if faults.is_empty() {
            writeln!(output(), "{name}: fits the private key ({})", key.key.algorithm().key_type())?;
        } else {
            faulty += 1;
            faults.iter().try_for_each(|fault| writeln!(output(), "{name}: {fault}"))?;
            writeln!(output(), "expected: {}", zone_line(&key.selector, &keys.domain, &key.key)?)?;
        }
    }
    match (faulty, unanswered) {
        (0, 0) => Ok(()),
        (0, _) => Err(ExitError { code: exit::UNAVAILABLE, text: "the DNS does not answer".into() }.into()),
        _ => Err(ExitError { code: exit::NEGATIVE, text: "a published record does not fit its key".into() }.into()),
    }
}

/// The domain in the form of the DNS, and the keys that sign for it, its parents' included.
fn keys_of(config: &Config, domain: &str, runtime: &Runtime) -> anyhow::Result<(Box<str>, SigningDomain)> {
    let domain = to_domain(domain)?;
    let missing = || ExitError { code: exit::NEGATIVE, text: format!("no key signs for {domain}") };
    let found = signing_domain(config, &domain, runtime)?.ok_or_else(missing)?;
    Ok((domain, found))
}

/// The keys that sign for a domain, its parents' included; None: there are none. The domain is in lower case
/// and has A-labels.
///
/// # Errors
///
/// A key cannot be read, or the table of keys does not answer.
pub(crate) fn signing_domain(
    config: &Config,
    domain: &str,
    runtime: &Runtime,
) -> anyhow::Result<Option<SigningDomain>> {
    if !config.signing.has_keys() {
        return Ok(None);
    }
    let mut opener = TableOpener::new(config, TablePurpose::Query, Arc::new(|_| {}));
    let table = config.signing.table.as_ref().map(|name| opener.get_or_open(name)).transpose()?;
    let keys = signing::load_keys(config, table)?;
    let signer = Signer::start(keys, &SigningThreadsConfig::default(), None, Arc::default())?;
    let found = runtime.block_on(signer.keys_of(domain));
    Ok(found.map_err(|error| ExitError { code: exit::UNAVAILABLE, text: error.to_string() })?)
}

fn note_parent(domain: &str, keys: &SigningDomain) {
    if *keys.domain != *domain {
        print_stderr(format_args!("mailrace: mail of {domain} is signed by {}", keys.domain));
    }
}

fn to_domain(name: &str) -> Result<Box<str>, ExitError> {
    let is_name = |name: &str| mail::Address::new("postmaster", name).is_ok() && !name.starts_with('[');
    let domain = dns::to_ascii(name).filter(|domain| is_name(domain));
    domain.ok_or_else(|| ExitError { code: exit::USAGE, text: format!("{name:?} is not a domain") })
}

fn print_record(selector: &str, domain: &str, key: &PrivateKey) -> anyhow::Result<()> {
    Ok(writeln!(output(), "{}", zone_line(selector, domain, key)?)?)
}

fn zone_line(selector: &str, domain: &str, key: &PrivateKey) -> anyhow::Result<String> {
    Ok(key_record::zone_line(&key_record::record_name(selector, domain), &key_record::record_value(key)?))
}

/// Never replaces a file: it could be a key whose record is published.
fn write_new(file: &PathBuf, text: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()
}

fn runtime() -> anyhow::Result<Runtime> {
    net::session_runtime().context("starting")
}
