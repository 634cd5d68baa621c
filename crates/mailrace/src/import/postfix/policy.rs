//! Parameters that are not needed because of how the server works, and parameters that it does not
//! support.

use super::Conversion;
use super::restrictions;
use super::words::list;

/// Parameters that are not needed, and why.
const SAME: [(&str, &str); 45] = [
    ("alias_database", "tables are read as text; nothing has to be built"),
    ("allow_percent_hack", "a % in an address means nothing"),
    ("append_at_myorigin", "addresses are taken as they are"),
    ("append_dot_mydomain", "addresses are taken as they are"),
    ("biff", "nobody is told of new mail on a terminal"),
    ("command_directory", "a folder of Postfix's own"),
    ("compatibility_level", "a matter of Postfix's own versions"),
    ("config_directory", "a folder of Postfix's own"),
    ("daemon_directory", "a folder of Postfix's own"),
    ("data_directory", "a folder of Postfix's own; ours is data_dir"),
    ("debug_peer_level", "see [log]"),
    ("debugger_command", "there are no processes to be debugged"),
    ("default_database_type", "used to read the tables above"),
    ("default_process_limit", "sessions are no processes; limits.sessions bounds them"),
    ("disable_vrfy_command", "VRFY tells nothing of who exists"),
    ("enable_long_queue_ids", "queue ids are never used twice"),
    ("html_directory", "a folder of Postfix's own"),
    ("mail_owner", "`user` says who the server becomes"),
    ("mailq_path", "a file of Postfix's own"),
    ("manpage_directory", "a folder of Postfix's own"),
    ("meta_directory", "a folder of Postfix's own"),
    ("newaliases_path", "a file of Postfix's own"),
    ("queue_directory", "a folder of Postfix's own; ours is data_dir"),
    ("readme_directory", "a folder of Postfix's own"),
    ("sample_directory", "a folder of Postfix's own"),
    ("sendmail_path", "a file of Postfix's own"),
    ("setgid_group", "a group of Postfix's own"),
    ("shlib_directory", "a folder of Postfix's own"),
    ("anvil_rate_time_unit", "rates above are by this time"),
    ("broken_sasl_auth_clients", "the old form of AUTH is not told; LOGIN is spoken"),
    ("mail_name", "the server calls itself Mailrace"),
    ("mail_version", "the server calls itself Mailrace"),
    ("maps_rbl_reject_code", "a rule refuses with 5xx; with 4xx here, it puts off"),
    ("parent_domain_matches_subdomains", "keys of access tables are written as it says; see relay_domains, too"),
    ("smtpd_client_event_limit_exceptions", "`relay.networks` are exempt from these limits"),
    ("smtpd_delay_reject", "all rules that were made of restrictions are asked at RCPT"),
    ("smtpd_null_access_lookup_key", "no sender is <> in tables"),
    ("smtpd_reject_unlisted_recipient", "who does not exist is refused, always"),
    ("smtpd_restriction_classes", "they are filled in where lists name them"),
    ("smtpd_forbid_bare_newline", "a bare CR or LF is refused"),
    ("smtpd_helo_required", "a client introduces itself first"),
    ("smtpd_relay_before_recipient_restrictions", "only `relay.networks` may send elsewhere, always"),
    ("smtputf8_enable", "SMTPUTF8 is always there"),
    ("strict_rfc821_envelopes", "addresses are read strictly"),
    ("unknown_local_recipient_reject_code", "who does not exist is answered 550"),
];

/// Unsupported parameters that affect mail, and what happens instead.
const ALARMS: [(&str, &str); 33] = [
    ("always_bcc", "Nobody gets copies of all mail"),
    ("recipient_bcc_maps", "Nobody gets copies of mail by its recipient"),
    ("sender_bcc_maps", "Nobody gets copies of mail by its sender"),
    ("canonical_maps", "Mail keeps the addresses that it has, and gets 550 where only the rewritten recipient exists"),
    ("recipient_canonical_maps", "Mail to recipients that it rewrites gets 550 unless they exist; write `aliases`"),
    ("sender_canonical_maps", "Mail keeps the senders that it rewrites"),
    ("masquerade_domains", "Mail keeps the names of hosts in its addresses"),
    ("smtp_generic_maps", "Mail leaves with the addresses that it rewrites, such as those of local users"),
    ("relocated_maps", "Mail to those who have moved gets 550 without their new address, or is taken where they exist"),
    ("content_filter", "Mail is delivered without passing the filter; let it stand before this server or behind it"),
    ("smtpd_proxy_filter", "Mail is taken without passing the filter; let it stand before this server"),
    ("smtpd_milters", "Mail is taken without a milter being asked: nothing is refused, signed or marked"),
    ("non_smtpd_milters", "Mail of local programs is taken without a milter being asked: nothing is signed or marked"),
    ("header_checks", "Mail that it refuses, holds, redirects or changes is delivered as it is"),
    ("body_checks", "Mail that it refuses, holds, redirects or changes is delivered as it is"),
    ("mime_header_checks", "Mail that it refuses, holds, redirects or changes is delivered as it is"),
    ("nested_header_checks", "Mail that it refuses, holds, redirects or changes is delivered as it is"),
    ("smtp_header_checks", "Mail leaves with the header that it has"),
    ("milter_header_checks", "Mail that it refuses, holds, redirects or changes is delivered as it is"),
    (
        "fallback_transport",
        "Mail to users whom local_recipient_maps does not name gets 550; `catch_all` names one address for it",
    ),
    ("fallback_transport_maps", "Mail to users whom local_recipient_maps does not name gets 550"),
    ("smtp_fallback_relay", "Mail that no host of its domain takes waits, and is returned after `lifetime`"),
    ("sender_dependent_relayhost_maps", "Mail of these senders leaves as all other mail does"),
    ("sender_dependent_default_transport_maps", "Mail of these senders leaves as all other mail does"),
    ("smtp_sasl_auth_enable", "Mail to next hops that want a password is refused by them and returned: none is given"),
    ("smtp_tls_policy_maps", "Mail to these next hops leaves with TLS as to all others, whatever they were held to"),
    ("soft_bounce", "Mail that is refused gets 5xx and is returned; Postfix put it off with 4xx"),
    ("defer_transports", "Mail of these transports is delivered, and not held"),
    ("authorized_submit_users", "Mail of all local users is taken"),
    (
        "smtpd_command_filter",
        "Commands of clients are taken as they are: mail that depends on the change is refused or let in",
    ),
    ("local_login_sender_maps", "Mail of local users is taken from any sender"),
    ("message_drop_headers", "Mail keeps these header fields"),
    ("undisclosed_recipients_header", "Mail without a To field gets none"),
];

/// Unsupported parameters that do not affect mail delivery, and what to use instead. A `*` is a
/// wildcard at the start or end.
const NOTES: [(&str, &str); 64] = [
    ("bounce_queue_lifetime", "bounces are tried as long as other mail: `lifetime` of `retry`"),
    ("proxy_interfaces", "an MX host behind such an address is known to be this one by the name in `hostname` alone"),
    ("receive_override_options", "there is no content filter whose mail would be treated otherwise"),
    ("home_mailbox", "see `path` and `places` of [transport.maildir]"),
    ("mail_spool_directory", "there are no mbox files; see `path` of [transport.maildir]"),
    ("forward_path", "files in home folders are not read; write an alias"),
    ("virtual_uid_maps", "all Maildirs belong to the user that the server runs as"),
    ("virtual_gid_maps", "all Maildirs belong to the user that the server runs as"),
    ("smtp_sasl_*", "no password is given to next hops"),
    ("smtpd_sasl_*", "see [auth]"),
    ("smtpd_tls_*", "see [tls], [[certificate]] and `tls` of [[listener]]"),
    ("smtp_tls_*", "TLS to next hops is `tls` of [transport.smtp]"),
    ("tls_*", "TLS is made as [tls] says, and has no such setting"),
    ("milter_*", "milters are not asked"),
    ("postscreen_*", "clients are not tested before they are let in; [limits] bounds what one may do"),
    ("smtpd_banner", "the greeting is the host name"),
    ("smtpd_proxy_*", "there is no filter in front of the queue"),
    ("smtpd_client_recipient_rate_limit", "messages of a client are counted, and not its recipients"),
    ("smtpd_client_auth_rate_limit", "logins that fail are counted: [auth.throttle]"),
    ("smtpd_client_new_tls_session_rate_limit", "connections of a client are counted, and not those with TLS"),
    ("smtpd_authorized_xforward_hosts", "what a proxy says of a client counts, and is not only logged: `xclient_from`"),
    ("smtpd_authorized_verp_clients", "`verp` of [bounce] is by sender"),
    ("rbl_reply_maps", "a client is told which list it is on"),
    ("default_rbl_reply", "a client is told which list it is on"),
    ("address_verify_*", "other servers are not asked whether an address exists"),
    ("unverified_*", "other servers are not asked whether an address exists"),
    ("*_reject_code", "the codes of refusals are those of docs/access.md"),
    ("*_defer_code", "the codes of refusals are those of docs/access.md"),
    ("*_destination_recipient_limit", "see `recipients_per_message` of the transport"),
    ("*_destination_concurrency_*", "see `connections` of the transport"),
    ("*_destination_rate_delay", "see `rate` of the transport"),
    ("*_canonical_classes", "addresses are not rewritten"),
    ("masquerade_*", "addresses are not rewritten"),
    ("canonical_*", "addresses are not rewritten"),
    ("local_header_rewrite_clients", "headers are not rewritten"),
    ("remote_header_rewrite_domain", "headers are not rewritten"),
    ("always_add_missing_headers", "mail of local programs and of users gets a Date and a Message-ID"),
    ("bounce_*", "notices to senders are in Mailrace's words"),
    ("delay_*", "notices to senders are in Mailrace's words"),
    ("error_notice_recipient", "the log tells"),
    ("double_bounce_sender", "notices have no sender"),
    ("2bounce_notice_recipient", "`double_bounces_to` of [bounce]"),
    ("propagate_unmatched_extensions", "tags are cut off for mailboxes, and stay where mail is passed on"),
    ("owner_request_special", "owner- and -request addresses are like all others; write aliases"),
    ("expand_owner_alias", "the sender of mail to a list stays"),
    ("allow_*", "there is no such choice; addresses are read strictly, and mail goes to no programs and files"),
    ("permit_mx_backup_networks", "mail is passed on for domains that have a [[domain]] section alone"),
    ("maillog_*", "see [log]"),
    ("syslog_*", "see [log]"),
    ("process_*", "a matter of Postfix's own processes"),
    ("import_environment", "a matter of Postfix's own processes"),
    ("export_environment", "a matter of Postfix's own processes"),
    ("max_*", "a matter of Postfix's own processes"),
    ("ipc_*", "a matter of Postfix's own processes"),
    ("in_flow_delay", "see [load]"),
    ("qmgr_*", "see [[queue]] and [queues]"),
    ("default_*", "see [queues], [limits] and the transports"),
    ("*_time_limit", "a matter of Postfix's own processes"),
    ("*_expansion_limit", "`expanded_recipients` of [limits] bounds it"),
    ("*_limit", "[limits] has bounds of its own"),
    ("lmtp_*", "see the transports of type lmtp"),
    ("smtpd_*", "sessions have no such setting"),
    ("smtp_*", "[transport.smtp] has no such setting"),
    ("virtual_*", "Maildirs have no such setting"),
];

/// Postfix's non-empty defaults for the parameters above. A parameter with its default value is not
/// reported.
const DEFAULTS: [(&str, &str); 32] = [
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
    ("message_drop_headers", "bcc, content-length, resent-bcc, return-path"),
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
pub(super) fn alarm_of(name: &str, value: &str) -> Option<String> {
    let (_, what) = ALARMS.iter().find(|(known, _)| *known == name)?;
    (!["", "no"].contains(&value)).then(|| format!("{what} ({name} = {})", one_line(value)))
}

/// Lists that are checked after RCPT, or for other commands.
const LATE: [&str; 3] = ["smtpd_data_restrictions", "smtpd_end_of_data_restrictions", "smtpd_etrn_restrictions"];

/// Restrictions in lists that are checked after DATA, and what the server always does.
const RESTRICTIONS: [(&str, &str); 4] = [
    ("permit", "nothing comes behind it"),
    ("reject_unauth_pipelining", "commands beyond what PIPELINING allows are answered in their order"),
    ("permit_mynetworks", "no rule is asked then"),
    ("permit_sasl_authenticated", "no rule is asked then"),
];

impl Conversion<'_> {
    /// Records an outcome for every parameter that has none.
    pub(super) fn policy(&mut self) {
        let names: Vec<String> = self.main.settings().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            if name.ends_with("_restrictions") && LATE.contains(&name.as_str()) {
                self.late_restrictions(&name);
            }
            if !self.draft.fates.contains_key(&name) {
                self.fate(&name);
            }
        }
        self.notices();
    }

    /// Lists that are checked after RCPT.
    fn late_restrictions(&mut self, name: &str) {
        let elements = restrictions::elements(&self.values, name);
        match elements.is_empty() {
            true => self.draft.same(name, "it has no restrictions"),
            false => {
                self.draft
                    .lost(name, "rules are asked at RCPT and before; what becomes of each restriction stands below");
            }
        }
        for element in elements {
            let known = RESTRICTIONS.iter().find(|(known, _)| *known == element.rule).map(|(_, does)| *does);
            let does = known.unwrap_or("no rule is asked then");
            self.draft.rules.push((format!("{name}: {}", element.text()), does.to_owned()));
            if known.is_none() {
                let what = element.text();
                self.draft.alarm(format!("Mail that {name} refused is let in ({what}): no rule is asked after DATA."));
            }
        }
    }

    fn fate(&mut self, name: &str) {
        if let Some((_, why)) = SAME.iter().find(|(same, _)| *same == name) {
            return self.draft.same(name, why);
        }
        if OF_CLASSES.contains(&name) {
            return self.draft.same(name, "no domain asks it");
        }
        if self.is_default(name) {
            return self.draft.same(name, "as Postfix has it by default");
        }
        if let Some((_, what)) = ALARMS.iter().find(|(known, _)| *known == name) {
            let value = one_line(self.main.value(name).unwrap_or_default());
            self.draft.alarm(format!("{what} ({name} = {value})."));
            return self.draft.lost(name, "the head of this file says what happens to mail");
        }
        if name.starts_with("postscreen_") && !self.doors.iter().any(|door| door.is_screened) {
            return self.draft.same(name, "no service is postscreen");
        }
        if name.starts_with("postscreen_") && ["enforce", "drop"].contains(&&*self.values.value(name)) {
            self.draft
                .alarm("Mail from clients that tests of postscreen refuse is let in: clients are not tested here.");
        }
        let used = format!("${name}");
        let other = [format!("${{{name}"), format!("$({name}")];
        let uses = |value: &str| value.contains(&used) || other.iter().any(|it| value.contains(it.as_str()));
        let mut of_services = self.master.services.iter().flat_map(|service| &service.overrides);
        if self.main.settings().any(|(_, value)| uses(value)) || of_services.any(|(_, value)| uses(value)) {
            return self.draft.same(name, "filled in where other parameters name it");
        }
        match NOTES.iter().find(|(known, _)| stands(known, name)) {
            Some((_, why)) => self.draft.lost(name, *why),
            None => {
                self.draft.alarm(format!(
                    "What {name} does to mail is not known here, and does not happen: see postconf(5)."
                ));
                self.draft.lost(name, "no setting is known that stands for it");
            }
        }
    }

    /// Whether a parameter has Postfix's default value. For most unknown parameters, the default is
    /// empty.
    fn is_default(&self, name: &str) -> bool {
        let value = one_line(self.main.value(name).unwrap_or_default());
        match DEFAULTS.iter().find(|(known, _)| *known == name) {
            Some((_, default)) => value == *default,
            None => value.is_empty() || ALARMS.iter().any(|(known, _)| *known == name) && value == "no",
        }
    }

    /// Converts the recipients of notices.
    fn notices(&mut self) {
        let Some(classes) = self.values.given("notify_classes") else { return };
        self.draft
            .lost("notify_classes", "the log tells of these; `double_bounces_to` of mail that cannot even be returned");
        if list(&classes).iter().any(|class| class == "2bounce") {
            let given = self.values.given("2bounce_notice_recipient").unwrap_or_else(|| "postmaster".into());
            if let Ok(address) = super::text::target(&given, &self.site) {
                self.draft.set(
                    "[bounce]",
                    "double_bounces_to",
                    super::draft::quoted(&address),
                    "2bounce_notice_recipient",
                );
            }
        }
    }
}

/// Whether a name matches a pattern with `*` at the start, the end, or both.
fn stands(known: &str, name: &str) -> bool {
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
