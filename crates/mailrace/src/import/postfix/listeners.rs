//! Converts services to `[[listener]]` sections and `relay.networks`. A listener is written only if
//! it accepts no more than Postfix did: not if it requires TLS without a certificate, nor if it was
//! only for clients that rules for all listeners cannot distinguish.

use std::net::{Ipv4Addr, SocketAddr};

use super::Conversion;
use super::doors::{self, Door, Level};
use super::draft::{Block, quoted, quoted_list};
use super::master_cf::Service;
use super::networks::Net;
use super::restrictions::Who;

/// A key, its value and its source.
type Key = (&'static str, String, &'static str);

/// Parameters that determine the listeners and their settings.
const DECIDING: [&str; 5] = [
    "smtpd_enforce_tls",
    "smtpd_tls_wrappermode",
    "smtpd_upstream_proxy_protocol",
    "smtpd_use_tls",
    "postscreen_upstream_proxy_protocol",
];
const NO_CERTIFICATE: &str = "it needs a certificate: see smtpd_tls_chain_files in postconf(5), or [[certificate]]";

impl Conversion<'_> {
    pub(super) fn listeners(&mut self) {
        DECIDING.iter().for_each(|name| self.draft.mapped(name));
        let mut is_written = false;
        for door in self.doors.clone() {
            match self.listening(&door) {
                Ok(keys) => {
                    door.addresses.iter().for_each(|address| self.add_listener(*address, &door.what, &keys));
                    is_written |= !door.addresses.is_empty();
                }
                Err(why) => {
                    self.no_door(door.what.clone(), why);
                }
            }
        }
        if !is_written {
            self.draft.alarm(
                "Mail is accepted only on 127.0.0.1:2525, a placeholder: no service in master.cf became a listener.",
            );
            self.add_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 2525)), "", &[]);
        }
    }

    fn add_listener(&mut self, address: SocketAddr, from: &str, keys: &[Key]) {
        let is_ours = |(key, ..): &&Key| *key == "protocol";
        let protocol = keys.iter().find(is_ours).map_or_else(|| quoted("smtp"), |(_, value, _)| value.clone());
        let mut block = Block::new("[[listener]]").key("protocol", protocol, from);
        block.set("address", quoted(&address.to_string()), "inet_interfaces");
        keys.iter().filter(|it| !is_ours(it)).for_each(|(key, value, from)| block.set(key, value.clone(), from));
        self.draft.add(block);
    }

    /// The keys of a service's listener besides its address, or why there is none.
    fn listening(&mut self, door: &Door) -> Result<Vec<Key>, &'static str> {
        let mut keys = Vec::new();
        let with = self.has_certificates;
        if (door.is_wrapped || door.level == Level::Demanded) && !with {
            return Err(NO_CERTIFICATE);
        }
        if door.is_for_users() {
            self.users_alone(door, &mut keys)?;
        } else {
            self.everybody(door, &mut keys)?;
        }
        match door.level {
            _ if door.is_wrapped => keys.push(("tls", quoted("implicit"), "smtpd_tls_wrappermode")),
            Level::Demanded => keys.push(("tls", quoted("required"), "smtpd_tls_security_level")),
            Level::Never if with && !door.has_logins => keys.push(("tls", quoted("none"), "smtpd_tls_security_level")),
            Level::Never | Level::Offered => {}
        }
        if door.is_balanced {
            let mut balancers = doors::relays(&self.doors);
            if balancers.is_empty() {
                balancers = Net::loopback();
            }
            keys.push(("proxy_from", networks(&balancers), "smtpd_upstream_proxy_protocol"));
            self.draft.look_at(format!(
                "{}: list only the load balancers in `proxy_from`. For now it contains all clients that may relay by \
                 their address, so that no balancer is mistaken for a client; PROXY headers from others are not \
                 accepted",
                door.what
            ));
        }
        Ok(keys)
    }

    /// A listener for users.
    fn users_alone(&mut self, door: &Door, keys: &mut Vec<Key>) -> Result<(), &'static str> {
        if !self.has_certificates {
            return Err(NO_CERTIFICATE);
        }
        if !door.lists.relay(Who::User) {
            return Err("users who log in may relay here, and could not with Postfix");
        }
        keys.push(("protocol", quoted("submission"), "smtpd_sasl_auth_enable"));
        self.has_users = true;
        let is_same = |front: &Door| front.lists == door.lists && front.networks == door.networks;
        let same_rules = self.front_door().is_some_and(is_same);
        let is_open = |who| !door.lists.are_shut(who);
        if is_open(Who::Stranger) && same_rules {
            keys.push(("require_auth", "false".into(), "smtpd_recipient_restrictions"));
        } else if is_open(Who::Network) {
            self.draft.alarm(format!(
                "Mail from mynetworks without a login gets 530 at {}: it must use another listener.",
                door.what
            ));
        }
        Ok(())
    }

    /// A listener for other servers, and possibly users.
    fn everybody(&mut self, door: &Door, keys: &mut Vec<Key>) -> Result<(), &'static str> {
        let has_rules = self.front_door().is_some_and(|front| front.lists == door.lists);
        let gets_further = |who| door.lists.are_shut(who) && !has_rules;
        if gets_further(Who::Network) || gets_further(Who::Stranger) && !door.is_local() {
            return Err("it is not for all clients that [[access]] rules accept, and rules apply to all listeners");
        }
        if !door.has_logins || door.lists.are_shut(Who::User) {
            return Ok(());
        }
        if !self.has_certificates || !door.lists.relay(Who::User) {
            let why = match self.has_certificates {
                false => "logins require TLS, and there is no certificate",
                true => "users who log in may relay here, and could not with Postfix",
            };
            self.draft.alarm(format!("Users cannot log in at {}, and cannot send to other domains: {why}.", door.what));
            return Ok(());
        }
        keys.push(("auth", "true".into(), "smtpd_sasl_auth_enable"));
        self.has_users = true;
        Ok(())
    }

    /// The networks that may send to other domains.
    pub(super) fn networks(&mut self) {
        let relays = doors::relays(&self.doors);
        let others = || self.doors.iter().filter(|door| !door.is_for_users());
        let lets = |door: &Door| door.lists.relay(Who::Network);
        if others().any(lets) && !others().all(lets) {
            self.draft.alarm(
                "Mail from some networks in mynetworks to other domains gets 550: not all services let them send it, \
                 and relay.networks applies to all listeners.",
            );
        }
        if self.values.given("mynetworks").is_some() || relays != Net::loopback() {
            self.draft.set("[relay]", "networks", networks(&relays), "mynetworks");
        }
        if self.main.value("mynetworks_style").is_some() && self.main.value("mynetworks").is_some() {
            self.draft.same("mynetworks_style", "mynetworks is set");
        } else if self.main.value("mynetworks").is_none() {
            self.networks_by_style();
        }
    }

    /// Postfix's default for mynetworks. With compatibility_level below 2, it is all of this
    /// machine's networks.
    fn networks_by_style(&mut self) {
        let given = self.values.given("mynetworks_style");
        let level = self.values.given("compatibility_level").unwrap_or_default();
        let level: u32 = level.split('.').next().and_then(|level| level.trim().parse().ok()).unwrap_or(0);
        let (style, source) = match &given {
            Some(style) => (style.as_str(), ""),
            None if level < 2 => ("subnet", " by default, with a compatibility_level below 2"),
            None => ("host", ""),
        };
        let is_heard = |door: &Door| !door.is_local() && door.lists.relay(Who::Network);
        match style {
            "host" if given.is_some() => {
                self.draft.same("mynetworks_style", "only this machine may relay, from its loopback addresses");
            }
            "host" => self.draft.look_at(
                "mynetworks is not set: only this machine's loopback addresses may relay; Postfix also accepted its \
                 other addresses",
            ),
            _ if !self.doors.iter().any(is_heard) => {
                self.draft.same("mynetworks_style", "no service lets hosts in this machine's networks relay");
            }
            style => {
                if given.is_some() {
                    self.draft
                        .lost("mynetworks_style", "list the networks in `relay.networks`: they are not detected here");
                }
                self.has_lost_networks = true;
                self.defer_relaying();
                self.draft.alarm(format!(
                    "Mail from this machine's networks to other domains gets 454: mynetworks is not set, and the \
                     networks of mynetworks_style = {style}{source} are not detected here. Add them to `networks` of \
                     [relay]."
                ));
            }
        }
    }

    pub(super) fn other_service(&mut self, service: &Service) {
        let own = [
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
            "smtpd",
            "dnsblog",
            "tlsproxy",
            "oqmgr",
        ];
        let what = format!("{} {} {} (master.cf)", service.name, service.kind, service.command);
        for (name, value) in &service.overrides {
            self.draft.loss(
                format!("{what}: -o {name}={value}"),
                "this service does not exist here, so its settings have no effect",
            );
            if let Some(alarm) = super::policy::alarm_of(name, value) {
                self.draft.alarm(format!("{alarm}, for {what}."));
            }
        }
        if !own.contains(&service.command.as_str()) {
            let why = "there is no equivalent. Mail of transports that use it waits; see the top of this file";
            self.draft.loss(format!("{what} {}", service.arguments.join(" ")), why);
        }
    }
}

/// Networks in TOML.
pub(super) fn networks(networks: &[Net]) -> String {
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    quoted_list(texts.iter().map(String::as_str))
}
