//! Converts services to `[[listener]]` sections and `relay.networks`. A listener is written only if
//! it accepts no more than Postfix did: not if it requires TLS without a certificate, nor if it was
//! only for clients that rules for all listeners cannot distinguish.

use std::net::{Ipv4Addr, SocketAddr};

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::inbound_services::{self, InboundService, TlsLevel};
use super::master_cf::Service;
use super::restrictions::ClientKind;
use super::words::duration_seconds;
use crate::ip_net::{IpNet, quoted_networks};

/// A key, its value and its source.
type ListenerKey = (&'static str, String, &'static str);

/// Parameters that determine the listeners and their settings.
const LISTENER_PARAMETERS: [&str; 5] = [
    "smtpd_enforce_tls",
    "smtpd_tls_wrappermode",
    "smtpd_upstream_proxy_protocol",
    "smtpd_use_tls",
    "postscreen_upstream_proxy_protocol",
];
/// Postfix's default of postscreen_greet_wait.
const GREET_SECONDS: u64 = 6;
/// The longest delay here.
const GREET_SECONDS_MAX: u64 = 60;
/// Programs that receive mail.
const RECEIVING: [&str; 2] = ["smtpd", "postscreen"];
/// Programs of Postfix whose work is done here, or is not needed.
const OWN_PROGRAMS: [&str; 22] = [
    "pickup",
    "cleanup",
    "qmgr",
    "tlsmgr",
    "trivial-rewrite",
    "bounce",
    "verify",
    "flush",
    "proxymap",
    "smtp",
    "showq",
    "error",
    "discard",
    "local",
    "virtual",
    "lmtp",
    "anvil",
    "scache",
    "postlogd",
    "dnsblog",
    "tlsproxy",
    "oqmgr",
];
const NO_CERTIFICATE: &str = "it needs a certificate: see smtpd_tls_chain_files in postconf(5), or [[certificate]]";

impl Conversion<'_> {
    pub(super) fn listeners(&mut self) {
        LISTENER_PARAMETERS.iter().for_each(|name| self.draft.mapped(name));
        let mut is_written = false;
        for inbound in self.inbound_services.clone() {
            match self.listener_keys(&inbound) {
                Ok(keys) => {
                    inbound
                        .addresses
                        .iter()
                        .for_each(|address| self.add_listener(*address, &inbound.description, &keys));
                    is_written |= !inbound.addresses.is_empty();
                }
                Err(why) => {
                    self.skip_service(inbound.description.clone(), why);
                }
            }
        }
        if !is_written {
            self.draft.add_behavior_change(
                "Mail is accepted only on 127.0.0.1:2525, a placeholder: no service in master.cf became a listener.",
            );
            self.add_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 2525)), "", &[]);
        }
    }

    fn add_listener(&mut self, address: SocketAddr, from: &str, keys: &[ListenerKey]) {
        let is_ours = |(key, ..): &&ListenerKey| *key == "protocol";
        let protocol = keys.iter().find(is_ours).map_or_else(|| quoted("smtp"), |(_, value, _)| value.clone());
        let mut block = TomlSection::new("[[listener]]").key("protocol", protocol, from);
        block.set("address", quoted(&address.to_string()), "inet_interfaces");
        keys.iter().filter(|it| !is_ours(it)).for_each(|(key, value, from)| block.set(key, value.clone(), from));
        self.draft.add(block);
    }

    /// The keys of a service's listener besides its address, or why there is none.
    fn listener_keys(&mut self, inbound: &InboundService) -> Result<Vec<ListenerKey>, &'static str> {
        let mut keys = Vec::new();
        let with = self.has_certificates;
        if inbound.is_from_filter {
            return Ok(vec![("from_content_filter", "true".into(), "content_filter")]);
        }
        if (inbound.implicit_tls || inbound.tls_level == TlsLevel::Required) && !with {
            return Err(NO_CERTIFICATE);
        }
        if inbound.is_submission() {
            self.submission_keys(inbound, &mut keys)?;
        } else {
            self.smtp_keys(inbound, &mut keys)?;
        }
        match inbound.tls_level {
            _ if inbound.implicit_tls => keys.push(("tls", quoted("implicit"), "smtpd_tls_wrappermode")),
            TlsLevel::Required => keys.push(("tls", quoted("required"), "smtpd_tls_security_level")),
            TlsLevel::Never if with && !inbound.has_logins => {
                keys.push(("tls", quoted("none"), "smtpd_tls_security_level"))
            }
            TlsLevel::Never | TlsLevel::Offered => {}
        }
        if inbound.uses_postscreen && !inbound.implicit_tls {
            keys.extend(self.greeting_delay(inbound));
        }
        if inbound.expects_proxy_protocol {
            let mut balancers = inbound_services::common_relay_networks(&self.inbound_services);
            if balancers.is_empty() {
                balancers = IpNet::loopback();
            }
            keys.push(("proxy_from", quoted_networks(&balancers), "smtpd_upstream_proxy_protocol"));
            self.draft.add_review_note(format!(
                "{}: list only the load balancers in `proxy_from`. For now it contains all clients that may relay by \
                 their address, so that no balancer is mistaken for a client; PROXY headers from others are not \
                 accepted",
                inbound.description
            ));
        }
        Ok(keys)
    }

    /// The delay before the greeting, if postscreen refuses clients that talk earlier.
    fn greeting_delay(&mut self, inbound: &InboundService) -> Option<ListenerKey> {
        let values = self.values.with_main_cf(&inbound.main);
        let action = values.value("postscreen_greet_action");
        if !["enforce", "drop"].contains(&action.as_str()) {
            return None;
        }
        ["postscreen_greet_action", "postscreen_greet_wait"].iter().for_each(|name| self.draft.mapped(name));
        let given = values.explicit_value("postscreen_greet_wait");
        let seconds = given.and_then(|text| duration_seconds(&text, 's')).unwrap_or(GREET_SECONDS);
        let seconds = seconds.clamp(1, GREET_SECONDS_MAX);
        Some(("greeting_delay", quoted(&format!("{seconds}s")), "postscreen_greet_wait"))
    }

    /// A listener for users.
    fn submission_keys(&mut self, inbound: &InboundService, keys: &mut Vec<ListenerKey>) -> Result<(), &'static str> {
        if !self.has_certificates {
            return Err(NO_CERTIFICATE);
        }
        if !inbound.lists.may_relay(ClientKind::User) {
            return Err("users who log in may relay here, and could not with Postfix");
        }
        keys.push(("protocol", quoted("submission"), "smtpd_sasl_auth_enable"));
        self.has_users = true;
        let is_same = |front: &InboundService| front.lists == inbound.lists && front.networks == inbound.networks;
        let same_rules = self.main_inbound_service().is_some_and(is_same);
        let is_open = |who| !inbound.lists.rejects_all_from(who);
        if is_open(ClientKind::Untrusted) && same_rules {
            keys.push(("require_auth", "false".into(), "smtpd_recipient_restrictions"));
        } else if is_open(ClientKind::Network) {
            self.draft.add_behavior_change(format!(
                "Mail from mynetworks without a login gets 530 at {}: it must use another listener.",
                inbound.description
            ));
        }
        Ok(())
    }

    /// A listener for other servers, and possibly users.
    fn smtp_keys(&mut self, inbound: &InboundService, keys: &mut Vec<ListenerKey>) -> Result<(), &'static str> {
        let has_rules = self.main_inbound_service().is_some_and(|front| front.lists == inbound.lists);
        let gets_further = |who| inbound.lists.rejects_all_from(who) && !has_rules;
        if gets_further(ClientKind::Network) || gets_further(ClientKind::Untrusted) && !inbound.is_local() {
            return Err("it is not for all clients that [[access]] rules accept, and rules apply to all listeners");
        }
        if !inbound.has_logins || inbound.lists.rejects_all_from(ClientKind::User) {
            return Ok(());
        }
        if !self.has_certificates || !inbound.lists.may_relay(ClientKind::User) {
            let why = match self.has_certificates {
                false => "logins require TLS, and there is no certificate",
                true => "users who log in may relay here, and could not with Postfix",
            };
            self.draft.add_behavior_change(format!(
                "Users cannot log in at {}, and cannot send to other domains: {why}.",
                inbound.description
            ));
            return Ok(());
        }
        keys.push(("auth", "true".into(), "smtpd_sasl_auth_enable"));
        self.has_users = true;
        Ok(())
    }

    /// The networks that may send to other domains.
    pub(super) fn relay_networks(&mut self) {
        let relays = inbound_services::common_relay_networks(&self.inbound_services);
        let others =
            || self.inbound_services.iter().filter(|inbound| !inbound.is_submission() && !inbound.is_from_filter);
        let lets = |inbound: &InboundService| inbound.lists.may_relay(ClientKind::Network);
        if others().any(lets) && !others().all(lets) {
            self.draft.add_behavior_change(
                "Mail from some networks in mynetworks to other domains gets 550: not all services let them send it, \
                 and relay.networks applies to all listeners.",
            );
        }
        if self.values.explicit_value("mynetworks").is_some() || relays != IpNet::loopback() {
            self.draft.set("[relay]", "networks", quoted_networks(&relays), "mynetworks");
        }
        if self.main_inbound_service().is_some_and(|front| front.lists.defers_relaying()) {
            self.draft.section("[relay]").set("others", quoted("defer"), "defer_unauth_destination");
        }
        if self.main.value("mynetworks_style").is_some() && self.main.value("mynetworks").is_some() {
            self.draft.not_needed("mynetworks_style", "mynetworks is set");
        } else if self.main.value("mynetworks").is_none() {
            self.networks_by_style();
        }
    }

    /// Postfix's default for mynetworks. With compatibility_level below 2, it is all of this
    /// machine's networks.
    fn networks_by_style(&mut self) {
        let given = self.values.explicit_value("mynetworks_style");
        let level = self.values.explicit_value("compatibility_level").unwrap_or_default();
        let level: u32 = level.split('.').next().and_then(|level| level.trim().parse().ok()).unwrap_or(0);
        let (style, source) = match &given {
            Some(style) => (style.as_str(), ""),
            None if level < 2 => ("subnet", " by default, with a compatibility_level below 2"),
            None => ("host", ""),
        };
        let is_heard = |inbound: &InboundService| !inbound.is_local() && inbound.lists.may_relay(ClientKind::Network);
        match style {
            "host" if given.is_some() => {
                self.draft.not_needed("mynetworks_style", "only this machine may relay, from its loopback addresses");
            }
            "host" => self.draft.add_review_note(
                "mynetworks is not set: only this machine's loopback addresses may relay; Postfix also accepted its \
                 other addresses",
            ),
            _ if !self.inbound_services.iter().any(is_heard) => {
                self.draft.not_needed("mynetworks_style", "no service lets hosts in this machine's networks relay");
            }
            style => {
                if given.is_some() {
                    self.draft.unsupported(
                        "mynetworks_style",
                        "list the networks in `relay.networks`: they are not detected here",
                    );
                }
                self.networks_incomplete = true;
                self.defer_relaying();
                self.draft.add_behavior_change(format!(
                    "Mail from this machine's networks to other domains gets 454: mynetworks is not set, and the \
                     networks of mynetworks_style = {style}{source} are not detected here. Add them to `networks` of \
                     [relay]."
                ));
            }
        }
    }

    /// Reports the services that receive no mail: settings that only they have, and those that no mail uses.
    pub(super) fn report_other_services(&mut self) {
        for service in self.master.services.clone() {
            if service.kind == "pass" || service.kind == "inet" && RECEIVING.contains(&service.command.as_str()) {
                continue;
            }
            let is_used = service.kind == "unix" && self.used_services.contains(&service.name);
            let is_own = OWN_PROGRAMS.contains(&service.command.as_str());
            match (is_used, is_own) {
                (true, _) => {}
                (false, true) => self.report_overrides(&service),
                (false, false) if service.kind == "unix" => self.draft.idle_services.push(service.name),
                (false, false) => {
                    let what = format!("{} {} {} (master.cf)", service.name, service.kind, service.command);
                    self.draft.add_unsupported(what, "there is no equivalent");
                }
            }
        }
    }

    fn report_overrides(&mut self, service: &Service) {
        for (name, value) in service.overrides.iter().filter(|(name, _)| name != "syslog_name") {
            self.report_override(service, name, value);
        }
    }

    /// Reports a setting that only a service has, and that is not translated.
    pub(super) fn report_override(&mut self, service: &Service, name: &str, value: &str) {
        let what = format!("{} {} {} (master.cf)", service.name, service.kind, service.command);
        let why = "this setting of one service has no effect here";
        self.draft.add_unsupported(format!("{what}: -o {name}={value}"), why);
        if let Some(alarm) = super::policy::behavior_change_of(name, value) {
            self.draft.add_behavior_change(format!("{alarm}, for {what}."));
        }
    }
}
