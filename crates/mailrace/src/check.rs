//! `mailrace check`: the configuration in a few lines, for someone who wants to see what it comes to, and what an
//! operator should know of before it is used. The faults themselves are stated by `config`.

use std::fmt;

use crate::config::{Durability, Loaded, LogTarget, Protocol, Source};

/// The summary of a configuration without faults.
pub struct Summary<'a>(pub &'a Loaded);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.0.config;
        writeln!(f, "{} has no faults", self.0.source)?;
        writeln!(f, "  hostname   {}", config.hostname)?;
        for listener in &config.listeners {
            let protocol = match listener.protocol {
                Protocol::Smtp => "smtp",
                Protocol::Lmtp => "lmtp",
            };
            writeln!(f, "  listener   {protocol} at {}", listener.address)?;
        }
        for domain in &config.domains {
            let who = domain.mailboxes.as_ref().map_or("everyone".into(), |table| format!("those in {table:?}"));
            writeln!(f, "  domain     {}: {who}, by transport {:?}", domain.name, domain.transport)?;
        }
        for lane in &config.spool.lanes {
            writeln!(f, "  spool      {}", lane.display())?;
        }
        match &config.log.to {
            LogTarget::Stderr => writeln!(f, "  log        standard error")?,
            LogTarget::File(path) => writeln!(f, "  log        {}", path.display())?,
        }
        warnings(self.0).iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

/// What is no fault, but what an operator should know.
pub fn warnings(loaded: &Loaded) -> Vec<String> {
    let config = &loaded.config;
    let mut warnings = Vec::new();
    if let Durability::Relaxed { sync_every } = config.spool.durability {
        warnings.push(format!(
            "durability is \"relaxed\": a power loss may lose what was acknowledged in the last {sync_every:?}"
        ));
    }
    for queue in config.queues.iter().filter(|queue| queue.concurrency == 0) {
        warnings
            .push(format!("the queue {:?} is held (concurrency = 0): its mail is kept and not delivered", queue.name));
    }
    if config.user.is_none() && config.allow_root && loaded.source != Source::BuiltIn {
        warnings.push("allow_root is set and no user is named: started as root, it stays root".into());
    }
    warnings
}
