//! Where a route leads: its next hop, or that of its transport.

use std::ops::Range;

use protocol::smtp::MailProtocol;

use crate::section::Section;
use crate::value_kind;
use crate::{FixedHop, SmtpTransportSettings, TransportKind, TransportSettings};

/// The next hop of a route: its own, else that of its transport. Reports it as missing if the
/// transport needs one.
pub(super) fn next_hop_of_route(
    section: &Section<'_, '_>,
    transport: &TransportSettings,
    own: Option<FixedHop>,
    has_table: bool,
    place: Range<usize>,
) -> Option<FixedHop> {
    let smtp: &SmtpTransportSettings = match &transport.kind {
        TransportKind::Smtp(smtp) => smtp,
        TransportKind::Maildir(_) => {
            let label = "delivers to Maildirs; expected a transport of another type".to_owned();
            section.report(place, "transport", "cannot deliver to other servers", label);
            return None;
        }
        TransportKind::Pipe(_) | TransportKind::Discard | TransportKind::Error { .. } => {
            if own.is_some() {
                let label = format!("{:?} delivers to no other server", transport.name);
                section.report(place, "next_hop", "is not allowed here", label);
            }
            return transport.next_hop().cloned();
        }
    };
    let next_hop = own.or_else(|| smtp.next_hop.clone());
    if next_hop.is_none() && smtp.client.flavor == MailProtocol::Lmtp {
        let label = format!(
            "{:?} speaks LMTP, which does not use MX; expected {}",
            transport.name,
            value_kind::NEXT_HOP.expected
        );
        section.report(place, "next_hop", "is missing", label);
    } else if next_hop.is_none() && !has_table && smtp.auth.is_some() {
        section.report(place, "next_hop", "is missing", login_needs_next_hop(transport));
    }
    next_hop
}

/// A certificate proves no more than a name, which whoever gives the address of a recipient chooses.
pub(super) fn login_needs_next_hop(transport: &TransportSettings) -> String {
    format!(
        "{:?} has `auth`, and the login must not go to the MX hosts of recipients; expected {}",
        transport.name,
        value_kind::NEXT_HOP.expected
    )
}
