//! `mailrace dns DOMAIN`: the DNS records that a domain should have if this server receives and signs its
//! mail, as lines of a zone file; `--check` holds what is published against them.
//!
//! The exit code of the check is 1 if a record differs or is missing that mail needs, and 69 if the
//! DNS does not answer.

mod expected;
mod mail_server;
mod published;
mod text_kind;

use std::io::Write;

use anyhow::Context;
use config::Config;
use dns::{Resolver, to_ascii};
use mta_sts::{FetchConfig, PolicyFetcher};

use crate::cli::DnsArgs;
use crate::dkim_command::signing_domain;
use crate::exit::{self, ExitError};
use crate::output::output;
use expected::{ExpectedRecord, Importance};
use mail_server::MailServer;
use published::Finding;
use text_kind::TextKind;

/// Prints the records, or the result of the check.
pub fn run(config: &Config, args: &DnsArgs) -> anyhow::Result<()> {
    let domain = to_ascii(&args.domain)
        .ok_or_else(|| ExitError { code: exit::USAGE, text: format!("'{}' is not a domain", args.domain) })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    let signing = signing_domain(config, &domain, &runtime);
    runtime.block_on(async {
        let resolver = Resolver::new(&config.dns)?;
        let server = MailServer::new(config, &resolver, &domain, signing).await;
        let records = expected::records(&domain, &server)?;
        match args.check {
            true => check(&resolver, &domain, &server, &records).await,
            false => print(&domain, &server, &records),
        }
    })
}

fn print(domain: &str, server: &MailServer, records: &[ExpectedRecord]) -> anyhow::Result<()> {
    let mut out = output();
    writeln!(out, "; Mail for {domain}, received and sent by {}", server.hostname)?;
    server.remarks.iter().try_for_each(|remark| writeln!(out, "; {remark}"))?;
    for record in records {
        writeln!(out, "\n; {}", record.purpose)?;
        writeln!(out, "{record}")?;
    }
    writeln!(out, "\n; The policy at https://mta-sts.{domain}/.well-known/mta-sts.txt:")?;
    expected::sts_policy(server).lines().try_for_each(|line| writeln!(out, ";   {line}"))?;
    Ok(())
}

async fn check(
    resolver: &Resolver,
    domain: &str,
    server: &MailServer,
    records: &[ExpectedRecord],
) -> anyhow::Result<()> {
    let mut out = output();
    let (mut differences, mut unanswered) = (0, 0);
    server.remarks.iter().try_for_each(|remark| writeln!(out, "note     {remark}"))?;
    for record in records {
        let answer = resolver.lookup(&record.name, record.query_type()).await.answer;
        let finding = match published::compare(record, &answer) {
            Finding::Same if record.is_text(TextKind::SPF) => {
                published::judge_spf(resolver, domain, server, &answer).await
            }
            finding => finding,
        };
        write_finding(&mut out, record, &finding)?;
        match finding {
            Finding::Different { .. } => differences += 1,
            Finding::Missing => differences += usize::from(record.importance == Importance::Needed),
            Finding::Unanswered(_) => unanswered += 1,
            Finding::Same if record.is_text(TextKind::MtaSts) => {
                differences += usize::from(!check_sts_policy(resolver, domain, server, &mut out).await?);
            }
            Finding::Same => {}
        }
    }
    match (differences, unanswered) {
        (0, 0) => Ok(()),
        (0, _) => Err(ExitError { code: exit::UNAVAILABLE, text: "the DNS did not answer all queries".into() }.into()),
        (count, _) => Err(ExitError { code: exit::NEGATIVE, text: format!("{count} of the records differ") }.into()),
    }
}

fn write_finding(out: &mut impl Write, record: &ExpectedRecord, finding: &Finding) -> std::io::Result<()> {
    let word = match finding {
        Finding::Same => "ok      ",
        Finding::Missing if record.importance == Importance::Optional => "optional",
        Finding::Missing => "missing ",
        Finding::Different { .. } => "differs ",
        Finding::Unanswered(_) => "unknown ",
    };
    writeln!(out, "{word} {record}")?;
    match finding {
        Finding::Different { published, faults } => {
            published.iter().try_for_each(|text| writeln!(out, "         published: {text}"))?;
            faults.iter().try_for_each(|fault| writeln!(out, "         fault: {fault}"))
        }
        Finding::Unanswered(why) => writeln!(out, "         {why}"),
        Finding::Same | Finding::Missing => Ok(()),
    }
}

/// Whether the published MTA-STS policy names this server.
async fn check_sts_policy(
    resolver: &Resolver,
    domain: &str,
    server: &MailServer,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let fetched = PolicyFetcher::new(FetchConfig::default()).fetch(resolver, domain).await;
    let is_right = match fetched {
        Ok(policy) if policy.names(&server.hostname) => return Ok(true),
        Ok(policy) => {
            writeln!(out, "differs  the MTA-STS policy of {domain} does not name {}:", server.hostname)?;
            policy.to_string().lines().try_for_each(|line| writeln!(out, "         published: {line}"))?;
            false
        }
        Err(error) => {
            writeln!(out, "missing  the MTA-STS policy of {domain}: {error}")?;
            false
        }
    };
    Ok(is_right)
}
