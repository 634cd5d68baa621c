//! What the access rules do with a client: at each stage the rules that apply, in order, what each
//! found, and the result; and whether the client may relay. Nothing is counted.

use std::fmt::Write as _;
use std::net::IpAddr;

use intake::access::{Access, Stage, Told, Visit};

/// The whole text, one line each.
pub(in super::super) async fn told(access: Option<&Access>, visit: &Visit<'_>) -> String {
    let mut out = String::new();
    let Some(access) = access else { return "access: no rules\n".into() };
    for stage in Stage::ALL {
        // Writing to a String cannot fail.
        if stage == Stage::Helo && visit.helo.is_none() && access.asks_at(stage) {
            let _ = writeln!(out, "{}: not checked: give --helo", stage.word());
            continue;
        }
        let rules = access.explain(stage, visit).await;
        for rule in &rules {
            let _ = writeln!(out, "{}", line(stage, rule));
        }
        match rules.last() {
            None => drop(writeln!(out, "{}: no rules", stage.word())),
            Some(last) if last.accepts => {
                let _ = writeln!(out, "{}: accepted; later stages are skipped", stage.word());
                break;
            }
            Some(last) if last.decides => {
                let _ = writeln!(out, "{}: decided here", stage.word());
                break;
            }
            Some(_) => drop(writeln!(out, "{}: continues", stage.word())),
        }
    }
    out
}

/// Whether a client without login may send to other domains, by `networks` and `others` of
/// `[relay]`.
pub(in super::super) fn relaying(client: IpAddr, is_in_networks: bool, is_deferred: bool) -> String {
    match (is_in_networks, is_deferred) {
        (true, _) => format!("relay: a client at {client} may relay, by relay.networks\n"),
        (false, false) => {
            format!("relay: a client at {client} may not relay without login: 550 5.7.1 at RCPT\n")
        }
        (false, true) => {
            format!("relay: a client at {client} may not relay without login: 454 4.7.1 at RCPT\n")
        }
    }
}

fn line(stage: Stage, rule: &Told) -> String {
    let conditions = if rule.conditions.is_empty() { "always".into() } else { rule.conditions.join("; ") };
    let says = rule.says.as_deref().unwrap_or("does not match");
    format!("{}: {:?} ({conditions}): {says}", stage.word(), rule.rule)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::config::Config;
    use crate::plan;
    use crate::tables::Tables;

    use super::*;

    #[test]
    fn who_may_not_relay_is_told_the_reply() {
        for (is_in_networks, is_deferred, told) in [
            (true, false, "192.0.2.1 may relay, by relay.networks"),
            (false, false, "192.0.2.1 may not relay without login: 550 5.7.1 at RCPT"),
            (false, true, "192.0.2.1 may not relay without login: 454 4.7.1 at RCPT"),
        ] {
            let line = relaying("192.0.2.1".parse().unwrap(), is_in_networks, is_deferred);
            assert!(line.contains(told) && line.ends_with('\n'), "{line}");
        }
    }

    #[test]
    fn each_stage_is_told_until_a_rule_ends_it() {
        let text = r#"
            [[access]]
            name = "ours"
            clients = ["10.0.0.0/8"]
            action = "accept"
            [[access]]
            helos = ["*.dynamic.example"]
            senders = ["<>"]
            action = "hold"
            [[access]]
            recipients = ["@old.example"]
            action = "refuse"
            reply = "550 5.1.6 moved"
        "#;
        let config = Config::parse(text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"));
        let tables = Tables::open(&config, Arc::new(|_| {})).unwrap();
        let events: lookup::Events = Arc::new(|_| {});
        let lists = plan::Lists::open(&config, &events).unwrap();
        let access = plan::access(&config, &tables, &lists);
        let recipient = "bob@old.example".parse().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let told = |client: &str, helo| {
            let client = client.parse().ok();
            let visit = Visit { client, helo, sender: Some(None), recipient: Some(&recipient), ..Visit::default() };
            runtime.block_on(told(access.as_ref(), &visit))
        };
        let accounts = [told("10.1.2.3", None), told("192.0.2.1", Some("a.dynamic.example")), told("192.0.2.1", None)];
        insta::assert_snapshot!("access", accounts.join("---\n"));
        let nothing = runtime.block_on(super::told(None, &Visit::default()));
        assert_eq!(nothing, "access: no rules\n");
    }
}
