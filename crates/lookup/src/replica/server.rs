//! Information about a server before following it: whether it offers the Sync Operation, and its
//! schema.

use std::time::Duration;

use super::sync;
use crate::backend::Failure;
use crate::ldap::Scope;
use crate::ldap::ber::{OCTETS, Writer};
use crate::ldap::connection::{Response, Search, Session};
use crate::ldap::schema::Schema;

/// A server's capabilities.
#[derive(Debug)]
pub(super) struct Server {
    /// Whether the root DSE lists the Sync Operation as a supported control (RFC 4533 section 2).
    pub(super) offers_sync: bool,
    /// The schema of the relevant attributes.
    pub(super) schema: Schema,
}

impl Server {
    /// Reads the root DSE (RFC 4512 section 5.1) and the subschema entry that it names (section
    /// 4.4).
    pub(super) async fn learn(session: &Session, names: &[&str], timeout: Duration) -> Result<Self, Failure> {
        let late = |_| Failure::new(session.url().to_string(), "timed out");
        let root = tokio::time::timeout(timeout, root(session)).await.map_err(late)??;
        let offers_sync = root.iter().any(|(name, value)| name == "supportedcontrol" && value == sync::REQUEST);
        let place = root.iter().find(|(name, _)| name == "subschemasubentry").map_or("", |(_, value)| value);
        let types = schema(session, place);
        let types = tokio::time::timeout(timeout, types).await.map_err(late)??;
        Ok(Server { offers_sync, schema: Schema::read(types.iter().map(|(_, value)| &**value), names) })
    }
}

/// Reads the root DSE, which is cheap for the server.
pub(super) async fn root(session: &Session) -> Result<Vec<(String, String)>, Failure> {
    let mut filter = Writer::default();
    filter.octets(0x87, b"objectClass");
    texts(session, "", &filter.into_octets(), &["supportedControl", "subschemaSubentry"]).await
}

async fn schema(session: &Session, place: &str) -> Result<Vec<(String, String)>, Failure> {
    let mut filter = Writer::default();
    filter.within(0xa3, |writer| {
        writer.octets(OCTETS, b"objectClass");
        writer.octets(OCTETS, b"subschema");
    });
    texts(session, place, &filter.into_octets(), &["attributeTypes"]).await
}

/// The attributes of one entry as pairs of lower-case name and value.
async fn texts(
    session: &Session,
    base: &str,
    filter: &[u8],
    attributes: &[&str],
) -> Result<Vec<(String, String)>, Failure> {
    let mut stream = session.search(&Search { base, scope: Scope::Base, filter, attributes, controls: &[] })?;
    let mut texts = Vec::new();
    loop {
        match stream.next().await? {
            Response::Entry(entry) => {
                for (name, values) in entry.attributes() {
                    let name = name.to_ascii_lowercase();
                    let values = values.filter_map(|value| String::from_utf8(value.to_vec()).ok());
                    texts.extend(values.map(|value| (name.clone(), value)));
                }
            }
            Response::Done(done) if done.code == 0 => return Ok(texts),
            Response::Done(done) => return Err(Failure::new(session.url().to_string(), done.to_string())),
            Response::Reference(_) | Response::Intermediate { .. } => {}
        }
    }
}
