//! Converts ldap_table(5) files to tables of type ldap. Filters, results and URLs are checked with
//! the server's own parsers, so the result is valid.

use ldap::{FilterTemplate, LdapUrl, ResultTemplate};

use super::config_draft::{TomlSection, quoted, quoted_list};
use super::placeholders::key_part;
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
const READ: [&str; 23] = [
    "server_host",
    "server_port",
    "search_base",
    "query_filter",
    "result_attribute",
    "result_format",
    "result_filter",
    "special_result_attribute",
    "leaf_result_attribute",
    "terminal_result_attribute",
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
/// names without a domain.
pub(super) fn directory(
    names: &[String],
    value: impl Fn(&str) -> Option<String>,
    local: bool,
) -> Result<LdapSettings, String> {
    let or = |name: &str, default: &str| value(name).unwrap_or_else(|| default.to_owned());
    let urls = urls(&or("server_host", "localhost"), &or("server_port", "389"))?;
    let base = or("search_base", "");
    if base.is_empty() || base.contains('%') {
        return Err("search_base: expected the DN of an entry, without %".into());
    }
    let filter = filter(&or("query_filter", "(mailacceptinggeneralid=%s)"), local)?;
    let has_members = value("special_result_attribute").is_some_and(|it| !it.is_empty());
    let results = results(&value, has_members)?;
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
    members(&value, &mut block)?;
    if let Some(seconds) = value("timeout").and_then(|text| text.parse::<u32>().ok()).filter(|n| *n > 0) {
        block.set("timeout", quoted(&format!("{seconds}s")), "timeout");
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
            ('%', Some('%')) => filter.push('%'),
            ('%', letter) => {
                let letter = letter.unwrap_or(' ');
                let unknown = || format!("query_filter: %{letter} is not a known placeholder");
                let part = key_part(letter, local)?.ok_or_else(unknown)?;
                filter.push_str(&format!("{{{part}}}"));
            }
            _ => filter.push(c),
        }
    }
    // Postfix accepts a filter without outer parentheses.
    let filter = if filter.starts_with('(') { filter } else { format!("({filter})") };
    filter.parse::<FilterTemplate>().map(|_| filter).map_err(|error| format!("query_filter: {error}"))
}

/// The result attributes. Without members, leaf attributes are like others.
fn results(value: impl Fn(&str) -> Option<String>, has_members: bool) -> Result<Vec<String>, String> {
    let own = value("result_attribute").unwrap_or_else(|| "maildrop".into());
    let leaves = value("leaf_result_attribute").unwrap_or_default();
    let attributes = if has_members { own } else { format!("{own} {leaves}") };
    match attributes.trim().is_empty() && (!has_members || leaves.is_empty()) {
        true => Err("result_attribute is empty, so nothing is found".into()),
        false => templates("result_attribute", &attributes),
    }
}

/// A list of attributes, each of which is a result.
fn templates(name: &str, attributes: &str) -> Result<Vec<String>, String> {
    let results = list(attributes);
    match results.iter().find_map(|result| result.parse::<ResultTemplate>().err()) {
        Some(error) => Err(format!("{name}: {error}")),
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

/// Groups, and limits.
fn members(value: impl Fn(&str) -> Option<String>, block: &mut TomlSection) -> Result<(), String> {
    let attributes = list(&value("special_result_attribute").unwrap_or_default());
    let number = |name: &str| value(name).and_then(|text| text.parse::<u32>().ok()).filter(|n| *n > 0);
    let terminal = value("terminal_result_attribute").filter(|it| !it.is_empty());
    match attributes.is_empty() {
        true if terminal.is_some() => {
            return Err("terminal_result_attribute: supported only with special_result_attribute".into());
        }
        true => {}
        false => {
            block.set("members", quoted_list(attributes.iter().map(String::as_str)), "special_result_attribute");
            if let Some(depth) = number("recursion_limit").filter(|depth| *depth <= 10) {
                block.set("members_depth", depth.to_string(), "recursion_limit");
            }
            let leaf = value("leaf_result_attribute").filter(|it| !it.is_empty());
            let keys = [("leaf_result", "leaf_result_attribute", leaf)];
            for (key, name, given) in
                keys.into_iter().chain([("terminal_result", "terminal_result_attribute", terminal)])
            {
                if let Some(given) = given {
                    block.set(key, quoted_list(templates(name, &given)?.iter().map(String::as_str)), name);
                }
            }
        }
    }
    if let Some(most) = number("size_limit") {
        block.set("entries_max", most.to_string(), "size_limit");
    }
    if value("chase_referrals").is_some_and(|it| it == "yes" || it == "1") {
        block.set("referrals", "true".into(), "chase_referrals");
    }
    Ok(())
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
        assert_eq!(filter("(&(mail=%S)(dc=%2))", false), Ok("(&(mail={key})(dc={label2}))".to_owned()));
        for bad in ["(mail=%x)", "(mail=x)", "(mail=%s", "(mail=%0)"] {
            assert!(filter(bad, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn leaf_attributes_count_as_others_only_without_members() {
        let results = |own: &str, leaf: &str, has_members| {
            let value = |name: &str| Some(if name == "result_attribute" { own } else { leaf }.to_owned());
            results(value, has_members)
        };
        assert_eq!(results("a, b", "c", false), Ok(["a", "b", "c"].map(str::to_owned).to_vec()));
        assert_eq!(results("a", "c", true), Ok(vec!["a".to_owned()]));
        assert_eq!(results("", "c", true), Ok(Vec::new()));
        assert!(results("", "", true).is_err() && results("", "", false).is_err() && results("{a", "", false).is_err());
    }

    #[test]
    fn several_servers_are_several_urls() {
        let expected = ["ldap://a:390", "ldap://b:1389", "ldapi:///s"].map(str::to_owned);
        assert_eq!(urls("a b:1389, ldapi:///s", "390"), Ok(expected.to_vec()));
    }
}
