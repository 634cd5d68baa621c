//! Information about a server before following it: whether it offers the Sync Operation, and its
//! schema.

use std::time::Duration;

use super::sync_messages;
use crate::SearchScope;
use crate::ber::{BerWriter, OCTETS};
use crate::connection::{LdapResponse, LdapSession, SearchRequest};
use crate::schema::Schema;
use lookup::backend::BackendFailure;

/// A server's capabilities.
#[derive(Debug)]
pub(super) struct ServerInfo {
    /// Whether the root DSE lists the Sync Operation as a supported control (RFC 4533 section 2).
    pub(super) offers_sync: bool,
    /// The schema of the relevant attributes.
    pub(super) schema: Schema,
}

impl ServerInfo {
    /// Reads the root DSE (RFC 4512 section 5.1) and the subschema entry that it names (section
    /// 4.4).
    pub(super) async fn read(session: &LdapSession, names: &[&str], timeout: Duration) -> Result<Self, BackendFailure> {
        let late = |_| BackendFailure::new(session.url().to_string(), "timed out");
        let root = tokio::time::timeout(timeout, root_dse(session)).await.map_err(late)??;
        let offers_sync =
            root.iter().any(|(name, value)| name == "supportedcontrol" && value == sync_messages::REQUEST);
        let place = root.iter().find(|(name, _)| name == "subschemasubentry").map_or("", |(_, value)| value);
        let types = schema(session, place);
        let types = tokio::time::timeout(timeout, types).await.map_err(late)??;
        Ok(ServerInfo { offers_sync, schema: Schema::read(types.iter().map(|(_, value)| &**value), names) })
    }
}

/// Reads the root DSE, which is cheap for the server.
pub(super) async fn root_dse(session: &LdapSession) -> Result<Vec<(String, String)>, BackendFailure> {
    let mut filter = BerWriter::default();
    filter.octets(0x87, b"objectClass");
    text_attributes(session, "", &filter.into_octets(), &["supportedControl", "subschemaSubentry"]).await
}

async fn schema(session: &LdapSession, place: &str) -> Result<Vec<(String, String)>, BackendFailure> {
    let mut filter = BerWriter::default();
    filter.nested(0xa3, |writer| {
        writer.octets(OCTETS, b"objectClass");
        writer.octets(OCTETS, b"subschema");
    });
    text_attributes(session, place, &filter.into_octets(), &["attributeTypes"]).await
}

/// The attributes of one entry as pairs of lower-case name and value.
async fn text_attributes(
    session: &LdapSession,
    base: &str,
    filter: &[u8],
    attributes: &[&str],
) -> Result<Vec<(String, String)>, BackendFailure> {
    let mut stream =
        session.search(&SearchRequest { base, scope: SearchScope::Base, filter, attributes, controls: &[] })?;
    let mut texts = Vec::new();
    loop {
        match stream.next().await? {
            LdapResponse::Entry(entry) => {
                for (name, values) in entry.attributes() {
                    let name = name.to_ascii_lowercase();
                    let values = values.filter_map(|value| String::from_utf8(value.to_vec()).ok());
                    texts.extend(values.map(|value| (name.clone(), value)));
                }
            }
            LdapResponse::Done(done) if done.code == 0 => return Ok(texts),
            LdapResponse::Done(done) => return Err(BackendFailure::new(session.url().to_string(), done.to_string())),
            LdapResponse::Reference(_) | LdapResponse::Intermediate { .. } => {}
        }
    }
}
