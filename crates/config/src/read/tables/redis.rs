//! Tables in Redis.

use std::path::Path;

use lookup::KeyTemplate;
use lookup::redis::{RedisCommand, RedisCommandKind};
use toml::Spanned;

use super::sql::{CONNECT_TIMEOUT, TIMEOUT};
use super::{layers, optional_file, parse_value};
use crate::RedisTableConfig;
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};

/// The value of `command`.
#[derive(Clone, Copy, Default)]
enum CommandWord {
    #[default]
    Get,
    Hget,
    Sismember,
    Smembers,
}

const COMMAND: Keywords<CommandWord> = Keywords {
    supported: &[
        ("get", CommandWord::Get),
        ("hget", CommandWord::Hget),
        ("sismember", CommandWord::Sismember),
        ("smembers", CommandWord::Smembers),
    ],
    planned: &[],
};

const URL: ValueKind<String> = ValueKind {
    expected: "a URL such as \"redis://host:6379/0\", or \"rediss://\" with TLS",
    parse: value_kind::TEXT.parse,
};
const KEY: ValueKind<String> =
    ValueKind { expected: "the name of a key, such as \"mailbox:{key}\"", parse: value_kind::TEXT.parse };
/// The field of a hash, or the member of a set, if none is given.
const FIELD: &str = "{key}";

pub(super) fn redis(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<RedisTableConfig> {
    let url = section.take_required("url", &URL).and_then(|url| parse_value(section, "url", &URL, &url));
    let command = command(section);
    let password_file = optional_file(section, "password_file", data_dir).map(Spanned::into_inner);
    let ca_file = optional_file(section, "ca_file", data_dir).map(Spanned::into_inner);
    let timeout = section.take_or("timeout", &value_kind::DURATION, TIMEOUT);
    let connect_timeout = section.take_or("connect_timeout", &value_kind::DURATION, CONNECT_TIMEOUT);
    let lookup_settings = layers::network_settings(section);
    Some(RedisTableConfig {
        url: url?,
        password_file,
        ca_file,
        command: command?,
        timeout,
        connect_timeout,
        lookup_settings,
    })
}

/// `command`, `key` and `field`. At least one of the latter must depend on the key that is looked
/// up.
fn command(section: &mut Section<'_, '_>) -> Option<RedisCommand> {
    let word = section.choice("command", &COMMAND).unwrap_or_default();
    let key = section.take_required("key", &KEY);
    let place = key.as_ref().map(Spanned::span);
    let key = key.and_then(|key| parse_value::<KeyTemplate>(section, "key", &KEY, &key));
    let field = section.take_spanned("field", &KEY);
    if let (CommandWord::Get | CommandWord::Smembers, Some(field)) = (word, &field) {
        let label = "expected only with command = \"hget\" or \"sismember\"".to_owned();
        section.report(field.span(), "field", "is not allowed here", label);
    }
    let field = match &field {
        Some(field) => parse_value(section, "field", &KEY, field)?,
        None => FIELD.parse::<KeyTemplate>().ok()?,
    };
    let kind = match word {
        CommandWord::Get => RedisCommandKind::Get,
        CommandWord::Hget => RedisCommandKind::Hget(field),
        CommandWord::Sismember => RedisCommandKind::Sismember(field),
        CommandWord::Smembers => RedisCommandKind::Smembers,
    };
    let command = RedisCommand { kind, key: key? };
    if let (true, Some(place)) = (command.is_constant(), place) {
        let label = "expected a part of the key in braces, such as {key}".to_owned();
        section.report(place, "key", "is the same for all lookups", label);
    }
    Some(command)
}
