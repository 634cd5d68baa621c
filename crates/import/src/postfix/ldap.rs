//! Converts ldap_table(5) files to tables of type ldap. Filters, results and URLs are checked with
//! the server's own parsers, so the result is valid.

use ldap::{FilterTemplate, LdapUrl, ResultTemplate};

use super::config_draft::{TomlSection, quoted, quoted_list};
use super::words::list;

/// A table, what is not supported, and its password.
pub(super) struct LdapSettings {
    pub(super) block: TomlSection,
    /// What happens to mail.
    pub(super) alarms: Vec<String>,
    pub(super) losses: Vec<(String, String)>,
    pub(super) password: Option<String>,
}

/// Settings that are not needed.
const NOT_NEEDED: [&str; 5] = ["version", "debuglevel", "cache", "cache_expiry", "cache_size"];
/// Settings that are converted below.
const READ: [&str; 22] = [
    "server_host",
    "server_port",
    "search_base",
    "query_filter",
    "result_attribute",
    "result_format",
    "result_filter",
    "special_result_attribute",
    "leaf_result_attribute",
    "scope",
    "bind",
    "bind_dn",
    "bind_pw",
    "start_tls",
    "tls_ca_cert_file",
    "timeout",
    "expansion_limit",
    "recursion_limit",
    "chase_referrals",
    "domain",
    "tls_require_cert",
    "size_limit",
];

/// Converts the settings in `names`, with their values from `value`. `local`: Postfix looks up
/// names without a domain. `asks_values`: the values matter, not only the existence of an entry.
pub(super) fn directory(
    names: &[String],
    value: impl Fn(&str) -> Option<String>,
    local: bool,
    asks_values: bool,
) -> Result<LdapSettings, String> {
    let or = |name: &str, default: &str| value(name).unwrap_or_else(|| default.to_owned());
    let urls = urls(&or("server_host", "localhost"), &or("server_port", "389"))?;
    let base = or("search_base", "");
    if base.is_empty() || base.contains('%') {
        return Err("search_base: expected the DN of an entry, without %".into());
    }
    let filter = filter(&or("query_filter", "(mailacceptinggeneralid=%s)"), local)?;
    let format = value("result_format").or_else(|| value("result_filter")).unwrap_or_else(|| "%s".into());
    let attributes = attributes(&value)?;
    let results = results(&attributes, if asks_values { &format } else { "%s" })?;
    let mut block = TomlSection::new("[[table]]")
        .key("type", quoted("ldap"), "")
        .key("url", quoted_list(urls.iter().map(String::as_str)), "server_host")
        .key("base", quoted(&base), "search_base")
        .key("filter", quoted(&filter), "query_filter")
        .key("result", quoted_list(results.iter().map(String::as_str)), "result_attribute");
    let mut losses = Vec::new();
    match or("scope", "sub").as_str() {
        scope @ ("base" | "one" | "sub") => block.set("scope", quoted(scope), "scope"),
        scope => losses.push((format!("scope = {scope}"), "expected base, one or sub".to_owned())),
    }
    let password = bind(or, &mut block)?;
    let alarms = tls(&value, &urls, &mut block).into_iter().collect();
    members(&value, &mut block);
    if let Some(seconds) = value("timeout").and_then(|text| text.parse::<u32>().ok()).filter(|n| *n > 0) {
        block.set("timeout", quoted(&format!("{seconds}s")), "timeout");
    }
    if let Some(domains) = value("domain") {
        losses.push((format!("domain = {domains}"), "keys of other domains are looked up in the directory too".into()));
    }
    let known = |name: &&String| !NOT_NEEDED.contains(&name.as_str()) && !READ.contains(&name.as_str());
    for name in names.iter().filter(known) {
        losses.push((name.clone(), "tables of type ldap have no such key; lookups ignore it".into()));
    }
    Ok(LdapSettings { block, alarms, losses, password })
}

fn urls(hosts: &str, port: &str) -> Result<Vec<String>, String> {
    let url = |host: String| {
        let host = host.trim_end_matches('/').to_owned();
        match host.contains("://") {
            true => host,
            false if host.contains(':') || port == "389" => format!("ldap://{host}"),
            false => format!("ldap://{host}:{port}"),
        }
    };
    let urls: Vec<String> = list(hosts).into_iter().map(url).collect();
    match urls.iter().find_map(|url| url.parse::<LdapUrl>().err()) {
        _ if urls.is_empty() => Err("server_host names no server".into()),
        Some(error) => Err(format!("server_host: {error}")),
        None => Ok(urls),
    }
}

fn filter(text: &str, local: bool) -> Result<String, String> {
    let mut filter = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '%' { chars.next() } else { None }) {
            ('%', Some('s')) => filter.push_str(if local { "{local}" } else { "{key}" }),
            ('%', Some('u')) => filter.push_str("{local}"),
            ('%', Some('d')) => filter.push_str("{domain}"),
            ('%', Some('%')) => filter.push('%'),
            ('%', other) => return Err(format!("query_filter: %{} is not a known placeholder", other.unwrap_or(' '))),
            _ => filter.push(c),
        }
    }
    // Postfix accepts a filter without outer parentheses.
    let filter = if filter.starts_with('(') { filter } else { format!("({filter})") };
    filter.parse::<FilterTemplate>().map(|_| filter).map_err(|error| format!("query_filter: {error}"))
}

/// The result attributes. Leaf attributes apply only to entries without members, which cannot be
/// expressed for entries with members.
fn attributes(value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let own = value("result_attribute").unwrap_or_else(|| "maildrop".into());
    let leaves = value("leaf_result_attribute").unwrap_or_default();
    let has_members = value("special_result_attribute").is_some_and(|it| !it.is_empty());
    match (leaves.is_empty(), own.is_empty()) {
        (true, true) => Err("result_attribute is empty, so nothing is found".into()),
        (false, _) if has_members => {
            Err("leaf_result_attribute: results of a group and of its members cannot be distinguished".into())
        }
        _ => Ok(format!("{own} {leaves}")),
    }
}

fn results(attributes: &str, format: &str) -> Result<Vec<String>, String> {
    if format.replace("%s", "").contains(['%', '{', '}']) {
        return Err(format!("result_format = {format}: only %s is supported here"));
    }
    let result = |attribute: String| match format {
        "%s" => attribute,
        format => format.replace("%s", &format!("{{{attribute}}}")),
    };
    let results: Vec<String> = list(attributes).into_iter().map(result).collect();
    match results.iter().find_map(|result| result.parse::<ResultTemplate>().err()) {
        Some(error) => Err(format!("result_attribute: {error}")),
        None => Ok(results),
    }
}

/// The bind; returns the password. With another identity the directory would show less, and users
/// would get 550.
fn bind(or: impl Fn(&str, &str) -> String, block: &mut TomlSection) -> Result<Option<String>, String> {
    let (how, dn, password) = (or("bind", "yes"), or("bind_dn", ""), or("bind_pw", ""));
    match how.as_str() {
        "no" | "none" => Ok(None),
        "sasl" => Err("bind = sasl; use `bind_dn`, or `sasl = \"external\"` with ldapi".into()),
        _ if dn.is_empty() => Ok(None),
        _ => {
            block.set("bind_dn", quoted(&dn), "bind_dn");
            Ok(Some(password))
        }
    }
}

/// Returns what happens to mail if the server's certificate is invalid and Postfix did not check
/// it.
fn tls(value: impl Fn(&str) -> Option<String>, urls: &[String], block: &mut TomlSection) -> Option<String> {
    let is_plain = |url: &String| url.starts_with("ldap://");
    let starttls = value("start_tls").is_some_and(|it| it == "yes") && urls.iter().all(is_plain);
    if starttls {
        block.set("starttls", "true".into(), "start_tls");
    }
    let has_tls = starttls || urls.iter().any(|url| url.starts_with("ldaps://"));
    if let Some(file) = value("tls_ca_cert_file").filter(|_| has_tls) {
        block.set("ca_file", quoted(&file), "tls_ca_cert_file");
    }
    let is_checked = value("tls_require_cert").is_some_and(|it| it == "yes");
    (has_tls && !is_checked && value("tls_ca_cert_file").is_none()).then(|| {
        "mail that depends on it gets 451 if the server's certificate is invalid: it is always checked here, and \
         tls_require_cert was not yes; see `ca_file`"
            .to_owned()
    })
}

fn members(value: impl Fn(&str) -> Option<String>, block: &mut TomlSection) {
    let attributes = list(&value("special_result_attribute").unwrap_or_default());
    let number = |name: &str| value(name).and_then(|text| text.parse::<u32>().ok()).filter(|n| *n > 0);
    if let Some(first) = attributes.first() {
        block.set("members", quoted(first), "special_result_attribute");
        if let Some(depth) = number("recursion_limit").filter(|depth| *depth <= 10) {
            block.set("members_depth", depth.to_string(), "recursion_limit");
        }
    }
    if let Some(most) = number("expansion_limit") {
        block.set("values_max", most.to_string(), "expansion_limit");
    }
    if value("chase_referrals").is_some_and(|it| it == "yes" || it == "1") {
        block.set("referrals", "true".into(), "chase_referrals");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_take_our_placeholders() {
        for (text, local, expected) in [
            ("(mail=%s)", false, "(mail={key})"),
            ("mail=%s", false, "(mail={key})"),
            ("(uid=%s)", true, "(uid={local})"),
            ("(&(uid=%u)(dc=%d))", false, "(&(uid={local})(dc={domain}))"),
        ] {
            assert_eq!(filter(text, local), Ok(expected.to_owned()), "{text}");
        }
        for bad in ["(mail=%1)", "(mail=x)", "(mail=%s", "(mail=%S)"] {
            assert!(filter(bad, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn results_are_attributes_or_templates() {
        assert_eq!(results("a, b", "%s"), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(results("a", "%s/Maildir/"), Ok(vec!["{a}/Maildir/".to_owned()]));
        assert!(results("a", "%u@x").is_err());
    }

    #[test]
    fn several_servers_are_several_urls() {
        let expected = ["ldap://a:390", "ldap://b:1389", "ldapi:///s"].map(str::to_owned);
        assert_eq!(urls("a b:1389, ldapi:///s", "390"), Ok(expected.to_vec()));
    }
}
