//! Senders of forwarded mail, from `[srs]`.

use std::sync::Arc;

use anyhow::Context;
use config::{Config, SrsSettings};
use intake::DomainMatcher;
use sender_auth::srs::{Srs, SrsRewriter, load_secret};

/// What rewrites senders; None without `[srs]`. Keeps the counters.
///
/// # Errors
///
/// A secret cannot be read.
pub fn srs_rewriter(config: &Config, before: Option<&SrsRewriter>) -> anyhow::Result<Option<Arc<SrsRewriter>>> {
    let Some(settings) = &config.srs else { return Ok(None) };
    let counters = before.map_or_else(Arc::default, |before| before.counters().clone());
    Ok(Some(Arc::new(SrsRewriter::new(load_srs(settings)?, counters))))
}

/// Reads the secrets of an unchanged configuration again. Returns whether they have changed.
///
/// # Errors
///
/// A secret cannot be read.
pub fn reload_srs_secrets(config: &Config, rewriter: Option<&SrsRewriter>) -> anyhow::Result<bool> {
    match (&config.srs, rewriter) {
        (Some(settings), Some(rewriter)) => Ok(rewriter.replace(load_srs(settings)?)),
        _ => Ok(false),
    }
}

/// The domains of strangers whose senders are rewritten, unless a table says that they are ours.
pub fn rewritten_senders(config: &Config) -> Option<DomainMatcher> {
    let SrsSettings { domain: srs_domain, exempt, .. } = config.srs.clone()?;
    let hostname = config.hostname.clone();
    Some(Arc::new(move |domain: &str| {
        *domain != *srs_domain && *domain != *hostname && !exempt.iter().any(|pattern| pattern.matches(domain))
    }))
}

fn load_srs(settings: &SrsSettings) -> anyhow::Result<Srs> {
    let load = |file: &config::SrsSecretFile| {
        load_secret(&file.path).with_context(|| format!("the secret of [srs], {}", file.path.display()))
    };
    let secrets = settings.secrets.iter().map(load).collect::<anyhow::Result<_>>()?;
    Srs::new(&settings.domain, secrets, settings.days).context("[srs]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_of_our_own_and_of_exempt_domains_stay() {
        let text = "[srs]\nsecret_file = \"x\"\ndomain = \"srs.example.org\"\nexempt = [\"*.partner.example\"]\n";
        let config = Config::parse(text, "text", "mx.example.org").unwrap();
        let is_rewritten = rewritten_senders(&config).unwrap();
        let expected = [
            ("a.example", true),
            ("partner.example", true),
            ("a.partner.example", false),
            ("srs.example.org", false),
            ("mx.example.org", false),
        ];
        assert_eq!(expected.map(|(domain, _)| (domain, is_rewritten(domain))), expected);
        assert!(rewritten_senders(&Config::parse("", "text", "mx.example.org").unwrap()).is_none());
    }
}
