//! Generic addresses: a table that rewrites addresses on the way out, as Postfix's generic(5), so that mail of hosts
//! with made-up addresses leaves with valid ones. Which mail that is, its transport says.
//!
//! All addresses of the envelope and of the header's fields for senders and recipients are looked up. An
//! address in the header that is not in the table stays as it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lookup::Table;
use lookup::directory::RecipientDirectory;
use mail::Address;

use super::address_table::{AddressTable, TableKind};
use super::header_addresses::header_addresses;

/// Addresses that are looked up at once. A header can have more.
const ADDRESSES_AT_ONCE_MAX: usize = 1000;

/// A table of generic addresses.
pub struct GenericTable {
    table: Arc<dyn Table>,
    /// Recognises own domains and address tags.
    directory: Arc<RecipientDirectory>,
    /// The domain of addresses without one.
    origin: Box<str>,
}

/// The addresses of a message on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenericMessage {
    /// What the addresses of the envelope become, in their order.
    pub envelope: Vec<Address>,
    /// The header with rewritten addresses; None: nothing changes.
    pub header: Option<Vec<u8>>,
    /// An address that was put into the header is not ASCII.
    pub needs_smtputf8: bool,
}

impl GenericTable {
    /// Asks this table.
    pub fn new(table: Arc<dyn Table>, directory: Arc<RecipientDirectory>, origin: Box<str>) -> GenericTable {
        GenericTable { table, directory, origin }
    }

    /// Rewrites these addresses of an envelope and those in a header, which ends before its empty line.
    ///
    /// # Errors
    ///
    /// The reason why a table is unavailable, or which value is not valid.
    pub async fn rewrite(&self, envelope: &[Address], header: &[u8]) -> Result<GenericMessage, String> {
        let in_header = header_addresses(header, &self.origin);
        let all = envelope.iter().chain(in_header.iter().map(|(found, _)| &found.address));
        let found = self.look_up(all.collect()).await?;
        let (mut rewritten, mut copied, mut needs_smtputf8) = (Vec::with_capacity(header.len()), 0, false);
        for (address, _) in &in_header {
            let Some(new) = found.get(&address.address) else { continue };
            rewritten.extend_from_slice(&header[copied..address.place.start as usize]);
            rewritten.extend_from_slice(new.as_str().as_bytes());
            copied = address.place.end as usize;
            needs_smtputf8 |= !new.is_ascii();
        }
        rewritten.extend_from_slice(&header[copied..]);
        let outgoing = |address: &Address| found.get(address).unwrap_or(address).clone();
        Ok(GenericMessage {
            envelope: envelope.iter().map(outgoing).collect(),
            header: (rewritten != header).then_some(rewritten),
            needs_smtputf8,
        })
    }

    /// What becomes of the addresses that the table has.
    async fn look_up<'a>(&self, addresses: BTreeSet<&'a Address>) -> Result<BTreeMap<&'a Address, Address>, String> {
        let table = AddressTable {
            table: &*self.table,
            kind: TableKind::Generic,
            directory: &self.directory,
            origin: &self.origin,
        };
        let addresses: Vec<&Address> = addresses.into_iter().collect();
        let mut rewritten = BTreeMap::new();
        for some in addresses.chunks(ADDRESSES_AT_ONCE_MAX) {
            let found = table.look_up(some).await?;
            rewritten.extend(some.iter().zip(found).filter_map(|(address, found)| Some((*address, found?))));
        }
        Ok(rewritten)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use lookup::directory::{AliasLimits, LocalDomain};
    use lookup::text::TextTable;

    use super::*;

    const TABLE: &str = "alice@inner.test alice@isp.example\nbob bob.b@isp.example\n@hidden.test @isp.example\n\
        carol+x@inner.test carol.x@isp.example\ncarol@inner.test carol\nbad@inner.test @\n\
        ute@inner.test \u{fc}te@isp.example\n";

    /// `inner.test` is stored here, `relayed.test` is not, and the origin is `origin.test`.
    fn generic(table: Arc<dyn Table>) -> GenericTable {
        let domain = |name: &str, is_final| LocalDomain {
            name: name.into(),
            mailboxes: None,
            aliases: None,
            wildcard_mailbox: false,
            catch_all: None,
            hosts: None,
            delimiter: Some('+'),
            transport: "t".into(),
            is_final,
        };
        let domains = vec![domain("inner.test", true), domain("relayed.test", false)];
        let directory = RecipientDirectory::new(domains, AliasLimits::default());
        GenericTable::new(table, Arc::new(directory), "origin.test".into())
    }

    fn text_table() -> Arc<dyn Table> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(TABLE.as_bytes()).unwrap();
        Arc::new(TextTable::load("generic", file.path()).unwrap())
    }

    async fn header(text: &str) -> String {
        let message = generic(text_table()).rewrite(&[], text.as_bytes()).await.unwrap();
        message.header.map_or_else(|| "unchanged".into(), |header| String::from_utf8(header).unwrap())
    }

    #[tokio::test]
    async fn addresses_of_the_envelope_are_found_by_the_keys_of_postfix() {
        for (address, expected) in [
            ("alice@inner.test", "alice@isp.example"),
            // The table has no key for this tag, so the address loses it.
            ("alice+tag@inner.test", "alice@isp.example"),
            ("carol+x@inner.test", "carol.x@isp.example"),
            // A value without a domain is at the origin.
            ("carol+y@inner.test", "carol@origin.test"),
            ("bob@inner.test", "bob.b@isp.example"),
            ("bob+tag@inner.test", "bob.b@isp.example"),
            ("bob@origin.test", "bob.b@isp.example"),
            // A name alone is for addresses of this site.
            ("bob@relayed.test", "bob@relayed.test"),
            ("bob@elsewhere.example", "bob@elsewhere.example"),
            ("anybody@hidden.test", "anybody@isp.example"),
        ] {
            let envelope = [address.parse().unwrap()];
            let message = generic(text_table()).rewrite(&envelope, b"").await.unwrap();
            assert_eq!(message.envelope[0].as_str(), expected, "{address}");
            assert_eq!((message.header, message.needs_smtputf8), (None, false));
        }
    }

    #[tokio::test]
    async fn only_addresses_in_the_header_change_wherever_they_stand() {
        for (text, expected) in [
            (
                "From: \"A, (b)\" <alice@inner.test> (alice@inner.test)\r\n",
                "From: \"A, (b)\" <alice@isp.example> (alice@inner.test)\r\n",
            ),
            (
                "TO : x@y.test,\r\n\tbob, \u{fc} <bob@origin.test>\r\n",
                "TO : x@y.test,\r\n\tbob.b@isp.example, \u{fc} <bob.b@isp.example>\r\n",
            ),
            (
                "Resent-Cc: g: alice@inner.test;\r\nSubject: alice@inner.test\r\n",
                "Resent-Cc: g: alice@isp.example;\r\nSubject: alice@inner.test\r\n",
            ),
            // Without the end of a line, or of the header.
            ("Cc: dave\r\nBcc: alice@inner.test", "Cc: dave\r\nBcc: alice@isp.example"),
            ("Subject: alice@inner.test\r\nTo: dave\r\n", "unchanged"),
            ("", "unchanged"),
        ] {
            assert_eq!(header(text).await, expected, "{text:?}");
        }
    }

    #[tokio::test]
    async fn an_address_beyond_ascii_in_the_header_is_told() {
        let message = generic(text_table()).rewrite(&[], b"From: ute@inner.test\r\n").await.unwrap();
        assert_eq!(message.header.as_deref(), Some("From: \u{fc}te@isp.example\r\n".as_bytes()));
        assert!(message.needs_smtputf8);
    }

    #[tokio::test]
    async fn what_cannot_be_looked_up_is_an_error() {
        let bad = generic(text_table()).rewrite(&["bad@inner.test".parse().unwrap()], b"").await;
        assert_eq!(bad.unwrap_err(), "table 'generic': the value of bad@inner.test is not an address: \"@\"");
        let unavailable = generic(Arc::new(lookup::unavailable::UnavailableTable::new("t", "test", None)));
        assert!(unavailable.rewrite(&[], b"Subject: x\r\n").await.is_ok(), "nothing to look up");
        assert!(unavailable.rewrite(&[], b"From: dave\r\n").await.is_err());
    }

    #[tokio::test]
    async fn a_header_can_have_more_addresses_than_one_lookup() {
        let text = format!("To: {}bob\r\n", "alice@inner.test, x@y.test,\r\n ".repeat(ADDRESSES_AT_ONCE_MAX));
        let many: String = (0..2 * ADDRESSES_AT_ONCE_MAX).map(|number| format!("{number}@hidden.test,")).collect();
        assert_eq!(header(&text).await, text.replace("inner.test", "isp.example").replace("bob", "bob.b@isp.example"));
        assert_eq!(header(&format!("To: {many}")).await, format!("To: {}", many.replace("hidden.test", "isp.example")));
    }
}
