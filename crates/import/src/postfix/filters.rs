//! Converts milters, policy services and the content filter after the queue.
//!
//! | Postfix | here |
//! |---|---|
//! | `smtpd_milters`, `non_smtpd_milters` | `[[milter]]`, with the `listeners` of the services that have it |
//! | `check_policy_service` | `[[policy_service]]`, at RCPT as with `smtpd_delay_reject = yes`, or after DATA |
//! | `content_filter` | `[content_filter]`; a service with `-o content_filter=` gets the mail back |
//!
//! A policy service that master(8) starts has nobody to start it here: its mail is deferred, except for
//! daemons that check SPF, which the server does itself.

use std::net::{Ipv6Addr, SocketAddr};

use super::Conversion;
use super::access::ConvertedRestriction;
use super::config_draft::{TomlSection, quoted, quoted_list};
use super::delivery_methods::DeliveryMethod;
use super::inbound_services::InboundService;
use super::restrictions::{ClientKind, Restriction, RestrictionLists};
use super::transport_target::TransportTarget;
use super::words::{definition_list, duration_seconds, list};
use crate::ip_net::quoted_networks;

/// Times of milters: the parameter, its word in a list of milters, and the key.
const MILTER_TIMES: [(&str, &str, &str); 3] = [
    ("milter_connect_timeout", "connect_timeout", "connect_time"),
    ("milter_command_timeout", "command_timeout", "command_time"),
    ("milter_content_timeout", "content_timeout", "message_time"),
];
/// Parameters of milters that are not needed, since the same is done for all.
const MILTER_NOT_NEEDED: [&str; 12] = [
    "milter_protocol",
    "milter_connect_macros",
    "milter_helo_macros",
    "milter_mail_macros",
    "milter_rcpt_macros",
    "milter_data_macros",
    "milter_end_of_header_macros",
    "milter_end_of_data_macros",
    "milter_unknown_command_macros",
    "milter_macro_v",
    "milter_macro_defaults",
    "internal_mail_filter_classes",
];
/// A network without a client, for milters that are only asked about mail of local programs.
const NO_CLIENT: &str = "0.0.0.0/32";
/// In place of an address that cannot be translated: nothing listens there.
const NO_ADDRESS: &str = "unix:/nonexistent/milter";
const NOT_AN_ADDRESS: &str = "its address cannot be translated: add a [[policy_service]]";
pub(super) const ASKED: &str = "see [[policy_service]]";

/// The milters of some services: as main.cf lists them, and the macro {daemon_name}.
type MilterList = (Vec<String>, String);

impl Conversion<'_> {
    /// `smtpd_milters` of all services, and `non_smtpd_milters`.
    pub(super) fn milters(&mut self) {
        let own = |inbound: &InboundService| {
            let values = self.values.with_main_cf(&inbound.main);
            (list(&values.value("smtpd_milters")), values.value("milter_macro_daemon_name"))
        };
        let services = self.inbound_services.iter().filter(|inbound| !inbound.is_from_filter);
        let served: Vec<(MilterList, Vec<SocketAddr>)> =
            services.map(|inbound| (own(inbound), inbound.addresses.clone())).collect();
        let local = list(&self.values.value("non_smtpd_milters"));
        let mut groups: Vec<(MilterList, Vec<SocketAddr>)> = Vec::new();
        for (milters, addresses) in served {
            match groups.iter_mut().find(|(known, _)| *known == milters) {
                Some((_, members)) => members.extend(addresses),
                None => groups.push((milters, addresses)),
            }
        }
        if groups.iter().all(|((milters, _), _)| milters.is_empty()) && local.is_empty() {
            return;
        }
        self.report_milter_parameters();
        let of_clients: Vec<String> = groups.iter().flat_map(|((milters, _), _)| milters.clone()).collect();
        let is_one = groups.len() == 1;
        let mut has_local = false;
        for ((milters, daemon_name), addresses) in groups {
            let listeners = self.written_listeners(&addresses);
            for milter in &milters {
                let is_for_programs = local.contains(milter) && !has_local;
                let mut block = self.milter(milter, &daemon_name);
                if !is_one {
                    block.set("listeners", quoted_list(listeners.iter().map(String::as_str)), "master.cf");
                }
                if !is_for_programs {
                    block.set("local_programs", "false".into(), "non_smtpd_milters");
                }
                self.draft.add(block);
            }
            has_local |= !milters.is_empty() && milters.iter().any(|milter| local.contains(milter));
        }
        for milter in local.iter().filter(|milter| !of_clients.contains(milter)) {
            let block = self.milter(milter, "");
            self.draft.add(block.key("clients", quoted_list([NO_CLIENT]), "only in non_smtpd_milters"));
        }
    }

    fn report_milter_parameters(&mut self) {
        let names = ["smtpd_milters", "non_smtpd_milters", "milter_default_action", "milter_macro_daemon_name"];
        names.iter().for_each(|name| self.draft.mapped(name));
        MILTER_TIMES.iter().for_each(|(name, ..)| self.draft.mapped(name));
        let why = "the server negotiates with each milter, and sends the macros that Postfix sends";
        MILTER_NOT_NEEDED.iter().for_each(|name| self.draft.not_needed(name, why));
    }

    /// The section of a milter. If its address is unknown, which is reported, it defers mail.
    fn milter(&mut self, element: &str, daemon_name: &str) -> TomlSection {
        let (address, settings) = definition_list(element);
        let Some(address) = self.service_address(&address) else {
            self.draft.add_behavior_change(format!(
                "All mail for the milter {element} gets 451 until its [[milter]] has an address: this one cannot be \
                 translated."
            ));
            let name = self.filter_name(&address);
            let block = TomlSection::new("[[milter]]").comment("Replace the address.").key("name", quoted(&name), "");
            return block.key("address", quoted(NO_ADDRESS), "smtpd_milters").key("on_failure", quoted("defer"), "");
        };
        let setting = |name: &str| settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let mut block = TomlSection::new("[[milter]]").key("name", quoted(&self.filter_name(&address)), "");
        block.set("address", quoted(&address), "smtpd_milters");
        let action = setting("default_action").unwrap_or_else(|| self.values.value("milter_default_action"));
        let on_failure = match action.as_str() {
            "accept" => "accept",
            "reject" => "refuse",
            "quarantine" => "quarantine",
            _ => "defer",
        };
        block.set("on_failure", quoted(on_failure), "milter_default_action");
        for (parameter, name, key) in MILTER_TIMES {
            let given = setting(name).or_else(|| self.values.explicit_value(parameter));
            if let Some(seconds) = given.and_then(|text| duration_seconds(&text, 's')).filter(|seconds| *seconds > 0) {
                block.set(key, quoted(&format!("{seconds}s")), parameter);
            }
        }
        if !daemon_name.is_empty() && daemon_name != self.hostname() {
            block.set("daemon_name", quoted(daemon_name), "milter_macro_daemon_name");
        }
        block
    }

    /// A name for a filter: unique, and the address as far as possible.
    fn filter_name(&self, address: &str) -> String {
        let is_taken = |name: &String| {
            let name = quoted(name);
            self.draft
                .sections
                .iter()
                .flat_map(|block| &block.keys)
                .any(|(key, value, _)| key == "name" && *value == name)
        };
        let names = std::iter::once(address.to_owned()).chain((2..).map(|number| format!("{address} {number}")));
        names.into_iter().find(|name| !is_taken(name)).unwrap_or_default()
    }

    /// The address of a filter in our notation.
    fn service_address(&self, text: &str) -> Option<String> {
        if let Some(path) = text.strip_prefix("unix:").or(text.strip_prefix("local:")) {
            return Some(self.socket_path(path))
                .filter(|path| path.starts_with('/'))
                .map(|path| format!("unix:{path}"));
        }
        let (host, port) = text.strip_prefix("inet:")?.rsplit_once(':')?;
        let port = super::delivery_methods::port(port)?;
        let bare = host.trim_matches(['[', ']']);
        let is_name = !bare.is_empty() && bare.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
        match bare.parse::<Ipv6Addr>() {
            Ok(address) => Some(format!("[{address}]:{port}")),
            Err(_) => is_name.then(|| format!("{bare}:{port}")),
        }
    }

    /// The path of a socket: relative to the queue folder, as all paths are that smtpd uses in a chroot.
    pub(super) fn socket_path(&self, path: &str) -> String {
        let folder = self.values.value("queue_directory");
        let receives = |it: &&super::master_cf::Service| it.kind == "inet" && it.command == "smtpd";
        let is_chrooted = self.master.services.iter().find(receives).is_some_and(|service| service.is_chrooted);
        match path.strip_prefix('/') {
            Some(_) if !is_chrooted || path.starts_with(&folder) => path.to_owned(),
            Some(inside) => format!("{folder}/{inside}"),
            None => format!("{folder}/{path}"),
        }
    }

    /// The addresses that have a listener.
    pub(super) fn written_listeners(&self, addresses: &[SocketAddr]) -> Vec<String> {
        let is_written = |address: &String| {
            let address = quoted(address);
            let sections = self.draft.sections.iter().filter(|block| block.header == "[[listener]]");
            sections.flat_map(|block| &block.keys).any(|(key, value, _)| key == "address" && *value == address)
        };
        addresses.iter().map(ToString::to_string).filter(is_written).collect()
    }

    /// A policy service that a list of restrictions asks.
    pub(super) fn policy_service(
        &mut self,
        list: usize,
        element: &Restriction,
        lists: &RestrictionLists,
    ) -> ConvertedRestriction {
        let argument = element.argument.clone().unwrap_or_default();
        let mut block = match self.policy_section(&argument) {
            Ok(block) => block,
            Err(outcome) => return outcome,
        };
        let before = lists.0[list].iter().take_while(|it| *it != element);
        let (networks, others): (Vec<&Restriction>, Vec<&Restriction>) =
            before.filter(|it| it.no_effect.is_none()).partition(|it| it.rule == "permit_mynetworks");
        if !networks.is_empty() {
            let exempt = self.main_inbound_service().map(|front| front.networks.clone()).unwrap_or_default();
            block.set("exempt", quoted_networks(&exempt), "mynetworks");
        }
        if self.excludes_users(list, element) {
            block.set("users", "false".into(), "permit_sasl_authenticated");
        }
        let permits = |it: &&&Restriction| it.rule.starts_with("permit_dns") || it.rule.ends_with("_access");
        if let Some(permit) = others.iter().find(permits) {
            self.draft.add_behavior_change(format!(
                "Mail that {} lets pass is shown to the policy service {argument}, too: it is asked after all rules.",
                permit.text()
            ));
        }
        let all = self.inbound_services.iter().filter(|inbound| !inbound.is_from_filter);
        let asks = |inbound: &InboundService| {
            inbound.lists.reaches(list, element, ClientKind::Untrusted)
                || inbound.lists.reaches(list, element, ClientKind::User)
        };
        let (asking, silent): (Vec<&InboundService>, Vec<&InboundService>) = all.partition(|inbound| asks(inbound));
        if !silent.is_empty() {
            let addresses: Vec<SocketAddr> = asking.iter().flat_map(|inbound| inbound.addresses.clone()).collect();
            let listeners = self.written_listeners(&addresses);
            if !listeners.is_empty() {
                block.set("listeners", quoted_list(listeners.iter().map(String::as_str)), "master.cf");
            }
        }
        self.add_policy_section(block);
        ConvertedRestriction::Same(ASKED)
    }

    pub(super) fn add_policy_section(&mut self, block: TomlSection) {
        let keys =
            |block: &TomlSection| block.keys.iter().filter(|(key, ..)| key != "name").cloned().collect::<Vec<_>>();
        let own = keys(&block);
        if !self.draft.sections.iter().any(|known| known.header == block.header && keys(known) == own) {
            self.draft.add(block);
        }
    }

    /// The section of a policy service, as far as it does not depend on its list.
    pub(super) fn policy_section(&mut self, argument: &str) -> Result<TomlSection, ConvertedRestriction> {
        let (address, settings) = definition_list(argument);
        if let Some(name) = address.strip_prefix("unix:private/")
            && let Some(service) = self.unix_service(name).cloned()
        {
            self.used_services.insert(name.to_owned());
            if service.arguments.iter().any(|argument| argument.contains("spf")) {
                self.draft.set("[sender_auth]", "spf", quoted("enforce"), "check_policy_service");
                return Err(ConvertedRestriction::Same("[sender_auth] checks SPF"));
            }
            self.draft.add_behavior_change(format!(
                "All mail that check_policy_service {argument} was asked about gets 451 until its program is started by \
                 something else than Postfix, and listens at the address in [[policy_service]]."
            ));
        }
        let address = self.service_address(&address).ok_or(ConvertedRestriction::Lost(NOT_AN_ADDRESS))?;
        let setting = |name: &str| settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let given = |word: &str, parameter: &str| setting(word).or_else(|| self.values.explicit_value(parameter));
        let mut block = TomlSection::new("[[policy_service]]").key("name", quoted(&self.filter_name(&address)), "");
        block.set("address", quoted(&address), "check_policy_service");
        let action = given("default_action", "smtpd_policy_service_default_action").unwrap_or_default();
        let on_failure = match action.split(' ').next().unwrap_or_default().to_ascii_uppercase().as_str() {
            "DUNNO" | "OK" | "PERMIT" => "accept",
            action if action.starts_with('5') || action == "REJECT" => "refuse",
            _ => "defer",
        };
        block.set("on_failure", quoted(on_failure), "smtpd_policy_service_default_action");
        let time = given("timeout", "smtpd_policy_service_timeout").and_then(|text| duration_seconds(&text, 's'));
        if let Some(seconds) = time.filter(|seconds| *seconds > 0) {
            block.set("answer_time", quoted(&format!("{seconds}s")), "smtpd_policy_service_timeout");
        }
        if let Some(context) =
            given("policy_context", "smtpd_policy_service_policy_context").filter(|it| !it.is_empty())
        {
            block.set("context", quoted(&context), "smtpd_policy_service_policy_context");
        }
        ["smtpd_policy_service_default_action", "smtpd_policy_service_timeout", "smtpd_policy_service_policy_context"]
            .iter()
            .for_each(|name| self.draft.mapped(name));
        Ok(block)
    }

    /// A content filter that a table names, `transport:next hop`, in our notation. None: it is none.
    pub(super) fn filter_destination(&mut self, destination: &str, from: &'static str) -> Option<String> {
        let transport = self.filter_transport(destination, from)?;
        Some(format!("{transport}:"))
    }

    /// The transport to a content filter. None: the text names no transport.
    fn filter_transport(&mut self, destination: &str, from: &'static str) -> Option<String> {
        if destination.split_once(':').is_none_or(|(channel, _)| channel.is_empty()) {
            return None;
        }
        let target = TransportTarget::read(destination, from);
        let mut method = self.delivery_method(&target, "a content filter");
        if !matches!(
            method,
            DeliveryMethod::Network { next_hop: Some(_), .. } | DeliveryMethod::Program(_) | DeliveryMethod::Reply(_)
        ) {
            method = self.deferring_method("a content filter", "FILTER names no host or program");
        }
        self.report_missing_return(from);
        Some(self.transport("filter", &method, from))
    }

    /// The content filter after the queue. A filter before the queue becomes one, too.
    pub(super) fn content_filter(&mut self) {
        let Some((name, destination)) = self.filter_of_all_mail() else { return };
        let target = TransportTarget::read(&destination, name);
        let mut method = self.delivery_method(&target, "all destinations");
        if !matches!(
            method,
            DeliveryMethod::Network { next_hop: Some(_), .. } | DeliveryMethod::Program(_) | DeliveryMethod::Reply(_)
        ) {
            method = self.deferring_method("all destinations", &format!("{name} names no host or program"));
        }
        let transport = self.transport("filter", &method, name);
        self.draft.set("[content_filter]", "transport", quoted(&transport), name);
        self.report_missing_return(name);
    }

    /// The filter that main.cf or a service sets: the parameter, and `transport:next hop`.
    fn filter_of_all_mail(&mut self) -> Option<(&'static str, String)> {
        for name in ["content_filter", "smtpd_proxy_filter"] {
            let own = self.values.explicit_value(name);
            if own.is_some() {
                self.draft.mapped(name);
            }
            let of_services = self.inbound_services.iter().filter(|inbound| !inbound.is_from_filter);
            let of_service = of_services
                .filter_map(|inbound| Some((inbound.main.value(name)?.trim(), &inbound.description)))
                .find(|(value, _)| !value.is_empty());
            let is_own = own.as_ref().is_some_and(|value| !value.is_empty());
            let (value, service) = match (own.filter(|value| !value.is_empty()), of_service) {
                (Some(value), _) => (value, String::new()),
                (None, Some((value, service))) => (value.to_owned(), service.clone()),
                (None, None) => continue,
            };
            if !is_own {
                self.draft.add_behavior_change(format!(
                    "All mail goes to the content filter {value}, and not only that of {service} ({name})."
                ));
            }
            if name == "content_filter" {
                return Some((name, value));
            }
            self.draft.add_behavior_change(format!(
                "Mail that the filter {value} refuses is returned to its sender, not refused: the filter sees it after \
                 the 250 ({name})."
            ));
            let hop = value.strip_prefix("inet:").unwrap_or(&value);
            let destination = match value.strip_prefix("unix:") {
                Some(path) => format!("smtp:unix:{path}"),
                None => hop.rsplit_once(':').map_or(format!("smtp:[127.0.0.1]:{hop}"), |(host, port)| {
                    let host = if host.is_empty() { "127.0.0.1" } else { host.trim_matches(['[', ']']) };
                    format!("smtp:[{host}]:{port}")
                }),
            };
            return Some((name, destination));
        }
        None
    }

    /// Notes that no service takes mail back from a filter.
    fn report_missing_return(&mut self, from: &str) {
        if !self.inbound_services.iter().any(|inbound| inbound.is_from_filter) {
            self.draft.add_review_note(format!(
                "{from}: no service of master.cf has `-o content_filter=`. A filter that sends mail back by SMTP needs a \
                 [[listener]] with `from_content_filter`; otherwise its mail is filtered again and again"
            ));
        }
    }
}
