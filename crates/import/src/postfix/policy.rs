//! Parameters that are not needed because of how the server works, and parameters that it does not
//! support.

use super::Conversion;
use super::words::list;

/// Parameters that are not needed, and why.
const NOT_NEEDED: [(&str, &str); 48] = [
    ("alias_database", "tables are read as text and need no database"),
    ("allow_percent_hack", "a % in an address has no special meaning"),
    ("append_at_myorigin", "addresses are not changed"),
    ("append_dot_mydomain", "addresses are not changed"),
    ("biff", "biff notifications are not supported"),
    ("command_directory", "a Postfix folder"),
    ("compatibility_level", "only concerns Postfix versions"),
    ("config_directory", "a Postfix folder"),
    ("daemon_directory", "a Postfix folder"),
    ("data_directory", "a folder of Postfix; Mailrace uses data_dir"),
    ("debug_peer_level", "see [log]"),
    ("debugger_command", "there are no such processes"),
    ("default_database_type", "used to read the tables above"),
    ("default_process_limit", "sessions are not processes; limits.sessions limits them"),
    ("disable_vrfy_command", "VRFY does not reveal which addresses exist"),
    ("enable_long_queue_ids", "queue IDs are never reused"),
    ("html_directory", "a Postfix folder"),
    ("mail_owner", "see `user`"),
    ("mailq_path", "a Postfix file"),
    ("manpage_directory", "a Postfix folder"),
    ("meta_directory", "a Postfix folder"),
    ("newaliases_path", "a Postfix file"),
    ("queue_directory", "a folder of Postfix; Mailrace uses data_dir"),
    ("readme_directory", "a Postfix folder"),
    ("sample_directory", "a Postfix folder"),
    ("sendmail_path", "a Postfix file"),
    ("setgid_group", "a Postfix group"),
    ("shlib_directory", "a Postfix folder"),
    ("anvil_rate_time_unit", "the rates above use this unit"),
    ("broken_sasl_auth_clients", "the old form of AUTH is not advertised; LOGIN is supported"),
    ("mail_name", "the server's name is always Mailrace"),
    ("mail_version", "the server's name is always Mailrace"),
    ("unknown_client_reject_code", "rules refuse with 5xx; with a 4xx code here, they defer"),
    ("invalid_hostname_reject_code", "rules refuse with 5xx; with a 4xx code here, they defer"),
    ("non_fqdn_reject_code", "rules refuse with 5xx; with a 4xx code here, they defer"),
    ("unknown_hostname_reject_code", "rules refuse with 5xx; with a 4xx code here, they defer"),
    ("maps_rbl_reject_code", "rules refuse with 5xx; with a 4xx code here, they defer"),
    ("parent_domain_matches_subdomains", "applied to the keys of access tables; see also relay_domains"),
    ("smtpd_client_event_limit_exceptions", "`relay.networks` are exempt from these limits"),
    ("smtpd_delay_reject", "all rules made from restrictions are checked at RCPT"),
    ("smtpd_null_access_lookup_key", "the null sender is <> in the new tables of senders"),
    ("smtpd_reject_unlisted_recipient", "unknown recipients are always refused"),
    ("smtpd_restriction_classes", "expanded in the lists and tables that use them"),
    ("smtpd_forbid_bare_newline", "messages with a bare CR or LF are refused"),
    ("smtpd_helo_required", "HELO or EHLO is always required"),
    ("smtpd_relay_before_recipient_restrictions", "only `relay.networks` and users may relay"),
    ("smtputf8_enable", "SMTPUTF8 is always enabled"),
    ("unknown_local_recipient_reject_code", "unknown recipients get 550"),
];

/// Unsupported parameters that affect mail, and what happens instead.
const BEHAVIOR_CHANGES: [(&str, &str); 12] = [
    ("smtp_header_checks", "Mail is sent with its header unchanged"),
    (
        "fallback_transport",
        "Mail to users that are not in local_recipient_maps gets 550; `catch_all` can name one address for it",
    ),
    ("fallback_transport_maps", "Mail to users that are not in local_recipient_maps gets 550"),
    ("smtp_fallback_relay", "Mail that no host of its domain accepts waits, and bounces after `lifetime`"),
    (
        "smtp_sasl_auth_enable",
        "Mail to next hops that require a password is rejected by them and bounces, until you set `auth` of their transport",
    ),
    ("smtp_tls_policy_maps", "Mail to these next hops is sent with the same TLS settings as to all others"),
    ("soft_bounce", "Mail that is refused gets 5xx and bounces; Postfix deferred it with 4xx"),
    ("defer_transports", "Mail of these transports is delivered, not held"),
    ("authorized_submit_users", "Mail of all local users is accepted"),
    (
        "smtpd_command_filter",
        "Commands of clients are not changed: mail that depends on the change is refused or accepted",
    ),
    ("local_login_sender_maps", "Mail of local users is accepted with any sender"),
    ("undisclosed_recipients_header", "Mail without a To field does not get one"),
];

/// Unsupported parameters that do not affect mail delivery, and what to use instead. A `*` is a
/// wildcard at the start or end.
const NOTES: [(&str, &str); 63] = [
    ("bounce_queue_lifetime", "bounces have the same `lifetime` as other mail"),
    ("proxy_interfaces", "an MX host with such an address is recognized as this host only by the name in `hostname`"),
    ("receive_override_options", "aliases are expanded before a content filter, and not again after it"),
    ("home_mailbox", "see `path` and `places` of [transport.maildir]"),
    ("mail_spool_directory", "mbox files are not supported; see `path` of [transport.maildir]"),
    ("forward_path", "files in home folders are not read; use an alias"),
    ("virtual_uid_maps", "all Maildirs belong to the user that the server runs as"),
    ("virtual_gid_maps", "all Maildirs belong to the user that the server runs as"),
    ("smtp_sasl_*", "see `auth` of [transport.NAME]"),
    ("smtpd_sasl_*", "see [auth]"),
    ("smtpd_tls_*", "see [tls], [[certificate]] and `tls` of [[listener]]"),
    ("smtp_tls_*", "see `tls` of [transport.smtp]"),
    ("tls_*", "[tls] has no such setting"),
    ("milter_*", "see [[milter]]"),
    ("postscreen_*", "clients are tested only by `greeting_delay` of [[listener]] and DNS lists"),
    ("smtpd_banner", "the greeting contains the host name"),
    ("smtpd_proxy_*", "see [content_filter]; its transport has the time limits"),
    ("smtpd_client_auth_rate_limit", "see [auth.throttle], which limits failed logins"),
    ("smtpd_client_new_tls_session_rate_limit", "the limit is on connections of a client, with or without TLS"),
    ("smtpd_authorized_xforward_hosts", "see `xclient_from`; client data from proxies is used, not only logged"),
    ("smtpd_authorized_verp_clients", "`verp` of [bounce] is a list of senders"),
    ("rbl_reply_maps", "the reply names the list"),
    ("default_rbl_reply", "the reply names the list"),
    ("address_verify_*", "addresses are not verified at other servers"),
    ("unverified_*", "addresses are not verified at other servers"),
    ("*_reject_code", "see docs/access.md for the reply codes"),
    ("*_defer_code", "see docs/access.md for the reply codes"),
    ("*_destination_recipient_limit", "see `recipients_per_message` of the transport"),
    ("*_destination_concurrency_*", "see `connections` of the transport"),
    ("*_destination_rate_delay", "see `rate` of the transport"),
    ("*_canonical_classes", "no table rewrites these addresses"),
    ("masquerade_*", "no domain is masqueraded"),
    ("canonical_*", "no table rewrites these addresses"),
    ("local_header_rewrite_clients", "no table rewrites addresses"),
    ("remote_header_rewrite_domain", "headers are not rewritten"),
    ("always_add_missing_headers", "mail of local programs and of users always gets Date and Message-ID"),
    ("bounce_*", "notices to senders use Mailrace's texts"),
    ("delay_*", "notices to senders use Mailrace's texts"),
    ("error_notice_recipient", "see the log"),
    ("double_bounce_sender", "notices have the null sender"),
    ("2bounce_notice_recipient", "`double_bounces_to` of [bounce]"),
    ("propagate_unmatched_extensions", "tags are removed for mailboxes, and kept in relayed mail"),
    ("owner_request_special", "owner- and -request addresses are not special; use aliases"),
    ("expand_owner_alias", "the sender of mail to a list is not changed"),
    ("allow_*", "there is no such setting; addresses are parsed strictly, and mail cannot go to programs and files"),
    ("permit_mx_backup_networks", "mail is relayed only for domains with a [[domain]] section"),
    ("maillog_*", "see [log]"),
    ("syslog_*", "see [log]"),
    ("process_*", "only concerns Postfix processes"),
    ("import_environment", "only concerns Postfix processes"),
    ("export_environment", "only concerns Postfix processes"),
    ("max_*", "only concerns Postfix processes"),
    ("ipc_*", "only concerns Postfix processes"),
    ("in_flow_delay", "see [load]"),
    ("qmgr_*", "see [[queue]] and [queues]"),
    ("default_*", "see [queues], [limits] and the transports"),
    ("*_time_limit", "only concerns Postfix processes"),
    ("*_expansion_limit", "see `expanded_recipients` of [limits]"),
    ("*_limit", "see [limits]"),
    ("lmtp_*", "see the transports of type lmtp"),
    ("smtpd_*", "sessions have no such setting"),
    ("smtp_*", "[transport.smtp] has no such setting"),
    ("virtual_*", "Maildirs have no such setting"),
];

/// Postfix's non-empty defaults for the parameters above. A parameter with its default value is not
/// reported.
const DEFAULTS: [(&str, &str); 31] = [
    ("address_verify_negative_cache", "yes"),
    ("bounce_queue_lifetime", "5d"),
    (
        "default_rbl_reply",
        "$rbl_code Service unavailable; $rbl_class [$rbl_what] blocked using $rbl_domain$?{rbl_reason}",
    ),
    ("delay_warning_time", "0h"),
    ("disable_vrfy_command", "no"),
    ("double_bounce_sender", "double-bounce"),
    ("expand_owner_alias", "no"),
    ("forward_path", "$home/.forward${recipient_delimiter}${extension}, $home/.forward"),
    ("in_flow_delay", "1s"),
    ("local_header_rewrite_clients", "permit_inet_interfaces"),
    ("mail_spool_directory", "/var/mail"),
    ("masquerade_classes", "envelope_sender, header_sender, header_recipient"),
    ("max_idle", "100s"),
    ("max_use", "100"),
    ("milter_default_action", "tempfail"),
    ("milter_header_checks", ""),
    ("milter_protocol", "6"),
    ("mime_header_checks", "$header_checks"),
    ("nested_header_checks", "$header_checks"),
    ("non_smtpd_milters", ""),
    ("owner_request_special", "yes"),
    ("propagate_unmatched_extensions", "canonical, virtual"),
    ("recipient_canonical_classes", "envelope_recipient, header_recipient"),
    ("sender_canonical_classes", "envelope_sender, header_sender"),
    ("smtp_sasl_mechanism_filter", ""),
    ("smtp_sasl_security_options", "noplaintext, noanonymous"),
    ("authorized_submit_users", "static:anyone"),
    ("smtpd_banner", "$myhostname ESMTP $mail_name"),
    ("smtpd_sasl_path", "smtpd"),
    ("soft_bounce", "no"),
    ("undisclosed_recipients_header", ""),
];

/// Parameters of address classes, which have no effect without domains of the class.
const OF_CLASSES: [&str; 16] = [
    "alias_maps",
    "local_recipient_maps",
    "local_transport",
    "luser_relay",
    "mailbox_command",
    "mailbox_command_maps",
    "mailbox_size_limit",
    "mailbox_transport",
    "mailbox_transport_maps",
    "relay_recipient_maps",
    "relay_transport",
    "virtual_mailbox_base",
    "virtual_mailbox_limit",
    "virtual_mailbox_maps",
    "virtual_minimum_uid",
    "virtual_transport",
];

/// What happens to mail without this parameter, if it differs.
pub(super) fn behavior_change_of(name: &str, value: &str) -> Option<String> {
    let (_, what) = BEHAVIOR_CHANGES.iter().find(|(known, _)| *known == name)?;
    (!["", "no"].contains(&value)).then(|| format!("{what} ({name} = {})", one_line(value)))
}

impl Conversion<'_> {
    /// Records an outcome for every parameter that has none.
    pub(super) fn policy(&mut self) {
        let names: Vec<String> = self.main.settings().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            if !self.draft.outcomes.contains_key(&name) {
                self.record_outcome(&name);
            }
        }
        self.notices();
    }

    fn record_outcome(&mut self, name: &str) {
        if let Some((_, why)) = NOT_NEEDED.iter().find(|(same, _)| *same == name) {
            return self.draft.not_needed(name, why);
        }
        if self.is_limit_of_unused_transport(name) {
            return self.draft.not_needed(name, "no mail uses this transport");
        }
        if OF_CLASSES.contains(&name) {
            return self.draft.not_needed(name, "no domain uses it");
        }
        if self.is_default(name) {
            return self.draft.not_needed(name, "Postfix's default");
        }
        if let Some((_, what)) = BEHAVIOR_CHANGES.iter().find(|(known, _)| *known == name) {
            let value = one_line(self.main.value(name).unwrap_or_default());
            self.draft.add_behavior_change(format!("{what} ({name} = {value})."));
            return self.draft.unsupported(name, "see the top of this file");
        }
        if name.starts_with("postscreen_") && !self.inbound_services.iter().any(|inbound| inbound.uses_postscreen) {
            return self.draft.not_needed(name, "no service uses postscreen");
        }
        if name.starts_with("postscreen_") && ["enforce", "drop"].contains(&&*self.values.value(name)) {
            self.draft.add_behavior_change(
                "Mail from clients that fail postscreen's tests is accepted: clients are tested only before the greeting, and by DNS lists.",
            );
        }
        let used = format!("${name}");
        let other = [format!("${{{name}"), format!("$({name}")];
        let uses = |value: &str| value.contains(&used) || other.iter().any(|it| value.contains(it.as_str()));
        let mut of_services = self.master.services.iter().flat_map(|service| &service.overrides);
        if self.main.settings().any(|(_, value)| uses(value)) || of_services.any(|(_, value)| uses(value)) {
            return self.draft.not_needed(name, "expanded in the parameters that use it");
        }
        match NOTES.iter().find(|(known, _)| applies_to(known, name)) {
            Some((_, why)) => self.draft.unsupported(name, *why),
            None => {
                self.draft.add_behavior_change(format!(
                    "The effect of {name} on mail is unknown, and does not happen here: see postconf(5)."
                ));
                self.draft.unsupported(name, "there is no known equivalent");
            }
        }
    }

    /// Whether a parameter limits a transport of master.cf that nothing names.
    fn is_limit_of_unused_transport(&self, name: &str) -> bool {
        let endings = ["_destination_concurrency_limit", "_destination_recipient_limit", "_destination_rate_delay"];
        let transport = endings.iter().find_map(|ending| name.strip_suffix(ending));
        transport.is_some_and(|transport| {
            !["default", "initial", "smtp"].contains(&transport) && !self.used_services.contains(transport)
        })
    }

    /// Whether a parameter has Postfix's default value. For most unknown parameters, the default is
    /// empty.
    fn is_default(&self, name: &str) -> bool {
        let value = one_line(self.main.value(name).unwrap_or_default());
        match DEFAULTS.iter().find(|(known, _)| *known == name) {
            Some((_, default)) => value == *default,
            None => value.is_empty() || BEHAVIOR_CHANGES.iter().any(|(known, _)| *known == name) && value == "no",
        }
    }

    /// Converts the recipients of notices.
    fn notices(&mut self) {
        let Some(classes) = self.values.explicit_value("notify_classes") else { return };
        self.draft
            .unsupported("notify_classes", "see the log; `double_bounces_to` gets bounces that cannot be delivered");
        if list(&classes).iter().any(|class| class == "2bounce") {
            let given = self.values.explicit_value("2bounce_notice_recipient").unwrap_or_else(|| "postmaster".into());
            if let Ok(address) = super::map_text::target(&given, &self.site) {
                self.draft.set(
                    "[bounce]",
                    "double_bounces_to",
                    super::config_draft::quoted(&address),
                    "2bounce_notice_recipient",
                );
            }
        }
    }
}

/// Whether a name matches a pattern with `*` at the start, the end, or both.
fn applies_to(known: &str, name: &str) -> bool {
    match (known.strip_prefix('*'), known.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(known.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(beginning)) => name.starts_with(beginning),
        (None, None) => name == known,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
