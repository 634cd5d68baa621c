//! The query of a request, in the encoding of HTML forms: `a=b&c=d%20e+f`. Its members are read like
//! those of a JSON object, so an unknown one is an error: a misspelt filter must not select everything.

use std::net::IpAddr;

use mail::Address;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::history::HistorySpan;
use crate::request::SummaryKey;
use crate::text::SerdeAsText;

/// Members that are lists: each value, and each part of it that commas separate, is an element.
const LISTS: [&str; 2] = ["id", "state"];
/// Members of a query.
const MEMBERS_MAX: usize = 1000;

/// The page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PageQuery {
    /// The most entries of the page. The configuration limits it (`page` in `[api]`).
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_i64)]
    pub(super) limit: Option<SerdeAsText<u32>>,
    /// `next` of the page before.
    pub(super) cursor: Option<String>,
}

/// How much of a list is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitQuery {
    /// The most entries of a list. The configuration limits it (`page` in `[api]`).
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_i64)]
    pub(super) limit: Option<SerdeAsText<u32>>,
}

/// A page of next hops, and their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NextHopQuery {
    /// The most entries of the page. The configuration limits it (`page` in `[api]`).
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_i64)]
    pub(super) limit: Option<SerdeAsText<u32>>,
    /// `next` of the page before. Only by name.
    pub(super) cursor: Option<String>,
    /// By name, or those in trouble first. By name if it is missing.
    #[schema(inline)]
    pub(super) order: NextHopOrder,
}

/// The order of next hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NextHopOrder {
    /// By name, in pages.
    #[default]
    Name,
    /// Those that cannot be reached first, then those that fail, then paused ones, each by recipients: one page.
    Trouble,
}

/// A page of destinations, and their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DestinationQuery {
    /// The most entries of the page. The configuration limits it (`page` in `[api]`).
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_i64)]
    pub(super) limit: Option<SerdeAsText<u32>>,
    /// `next` of the page before. Only by name.
    pub(super) cursor: Option<String>,
    /// By name, or those with the most recipients first. By name if it is missing.
    #[schema(inline)]
    pub(super) order: DestinationOrder,
}

/// The order of destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DestinationOrder {
    /// By name and queue, in pages.
    #[default]
    Name,
    /// Those with the most recipients first: one page.
    Recipients,
}

/// The part of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HistoryQuery {
    /// The last hour if it is missing.
    #[schema(inline)]
    pub(super) span: HistorySpan,
}

/// The events of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventQuery {
    /// Whether operators get the lines of the log. They do if it is missing.
    #[schema(inline)]
    pub(super) log: LogLines,
}

/// Whether a stream has the lines of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LogLines {
    /// Operators get them.
    #[default]
    Yes,
    /// Nobody gets them: a busy server writes many.
    No,
}

/// The mail whose route is explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainQuery {
    /// Its recipient.
    #[schema(value_type = String)]
    pub(super) address: SerdeAsText<Address>,
    /// Its sender, which may use another queue.
    #[schema(value_type = Option<String>)]
    pub(super) sender: Option<SerdeAsText<Address>>,
    /// The IP address of the client, for the access rules.
    #[schema(value_type = Option<String>)]
    pub(super) client: Option<IpAddr>,
    /// The client's HELO name.
    pub(super) helo: Option<String>,
}

/// The address that is verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AddressQuery {
    /// The address.
    #[schema(value_type = String)]
    pub(super) address: SerdeAsText<Address>,
}

/// The nodes of a cluster that a request is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NodeQuery {
    /// The only node, in a cluster; all if it is missing.
    pub(super) node: Option<String>,
}

/// What recipients are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SummaryQuery {
    /// The key.
    #[schema(inline)]
    pub(super) by: SummaryKey,
}

/// The key that is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyQuery {
    /// The key.
    pub(super) key: String,
}

/// The members of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Map<String, Value>);

impl Query {
    /// Parses a query; the error is for the client.
    pub(super) fn parse(query: &[u8]) -> Result<Query, String> {
        let mut members = Map::new();
        for (count, pair) in query.split(|octet| *octet == b'&').filter(|pair| !pair.is_empty()).enumerate() {
            if count >= MEMBERS_MAX {
                return Err(format!("the query has more than {MEMBERS_MAX} parameters"));
            }
            let end = pair.iter().position(|octet| *octet == b'=').unwrap_or(pair.len());
            let name = decode(&pair[..end])?;
            let value = decode(pair.get(end + 1..).unwrap_or_default())?;
            add(&mut members, name, value)?;
        }
        Ok(Query(members))
    }

    /// Takes the parameters of a page out of the others.
    pub(super) fn take_page(&mut self) -> Result<PageQuery, String> {
        self.take(&["limit", "cursor"])
    }

    /// Takes these parameters out of the others.
    pub(super) fn take<T: DeserializeOwned>(&mut self, names: &[&str]) -> Result<T, String> {
        let own = names.iter().filter_map(|name| self.0.remove_entry(*name));
        Query(own.collect()).read()
    }

    /// Reads all parameters into a type.
    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T, String> {
        serde_json::from_value(Value::Object(self.0)).map_err(|error| format!("invalid query: {error}"))
    }

    /// The error of a path without parameters.
    pub(super) fn expect_empty(&self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("unknown parameter {name:?}: this path takes none")),
        }
    }
}

/// For fuzzing: reads a query as all types, whatever comes of it.
pub(super) fn read_as_each_type(query: &[u8]) {
    let Ok(query) = Query::parse(query) else { return };
    let _ = query.clone().take_page();
    let _ = query.clone().read::<NextHopQuery>();
    let _ = query.clone().read::<DestinationQuery>();
    let _ = query.clone().read::<HistoryQuery>();
    let _ = query.clone().read::<ExplainQuery>();
    let _ = query.clone().read::<AddressQuery>();
    let _ = query.clone().read::<SummaryQuery>();
    let _ = query.clone().read::<crate::RecipientFilter>();
    let _ = query.read::<NodeQuery>();
}

fn add(members: &mut Map<String, Value>, name: String, value: String) -> Result<(), String> {
    if LISTS.contains(&&*name) {
        let elements = value.split(',').map(Value::from);
        match members.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
            Value::Array(list) => list.extend(elements),
            _ => return Err("a list is expected".to_owned()),
        }
    } else if members.insert(name.clone(), value.into()).is_some() {
        return Err(format!("the parameter {name:?} is given twice"));
    }
    Ok(())
}

/// Decodes a name or a value.
fn decode(text: &[u8]) -> Result<String, String> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    let digit = |octet: Option<u8>| char::from(octet?).to_digit(16).map(|digit| digit as u8);
    while let Some(octet) = rest.next() {
        octets.push(match octet {
            b'+' => b' ',
            b'%' => match (digit(rest.next()), digit(rest.next())) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err("the query has a percent sign without two hexadecimal digits".to_owned()),
            },
            other => other,
        });
    }
    String::from_utf8(octets).map_err(|_| "the query is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecipientFilter, sample};

    fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
        Query::parse(text.as_bytes())?.read()
    }

    #[test]
    fn filters_are_those_of_the_command_line() {
        let filter = |text: &str| read::<RecipientFilter>(text).unwrap();
        assert_eq!(filter(""), RecipientFilter::default());
        assert_eq!(
            filter("sender=a%2Bb%40c.example&state=held,ready&state=waiting&older_than=2h&error=no+way"),
            sample::filter(&[
                "--sender",
                "a+b@c.example",
                "--state",
                "held,ready,waiting",
                "--older-than",
                "2h",
                "--error",
                "no way"
            ])
        );
        assert_eq!(filter("id=7-0-1&id=7-0-2"), sample::filter(&["--id", "7-0-1", "7-0-2"]));
    }

    #[test]
    fn what_is_misspelt_or_repeated_is_an_error() {
        for text in ["sendr=a", "sender=", "sender=a@b&sender=c@d", "state=done", "state=", "id=x", "sender=%", "a=%ff"]
        {
            assert!(read::<RecipientFilter>(text).is_err(), "{text}");
        }
        assert!(Query::parse("id=7-0-1&".repeat(MEMBERS_MAX + 1).as_bytes()).is_err());
        for text in ["", "address=a", "address=a@b&client=x", "address=a@b&x=y"] {
            assert!(read::<ExplainQuery>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_page_is_taken_out_of_a_filter() {
        let mut query = Query::parse(b"limit=10&queue=a&cursor=x").unwrap();
        let page = query.take_page().unwrap();
        assert_eq!((page.limit.map(|limit| limit.0), page.cursor.as_deref()), (Some(10), Some("x")));
        assert_eq!(query.expect_empty(), Err("unknown parameter \"queue\": this path takes none".to_owned()));
        assert!(Query::parse(b"limit=-1").unwrap().take_page().is_err());
    }
}
