//! One query to one name server: with EDNS (RFC 6891), and
//! again without if the server does not support it.
//!
//! | reply to the query with EDNS | then |
//! |---|---|
//! | FORMERR, NOTIMP (section 7), BADVERS (section 6.1.3) | the query is repeated without EDNS |
//! | anything else, or no reply in time | this is the result |
//!
//! Some servers drop queries with EDNS, or reject them with a header that lacks the question, which
//! hickory discards as forged. Both look like silence, so callers that retry a silent server should
//! retry without EDNS.

use futures_util::StreamExt;
use hickory_resolver::NameServerPool;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, DnsHandle, NetError};
use hickory_resolver::proto::op::{DnsRequest, DnsRequestOptions, DnsResponse, Query, ResponseCode};

/// One name server, over UDP and TCP.
pub(crate) type NameServer = NameServerPool<TokioRuntimeProvider>;

/// How a query is put.
#[derive(Clone, Copy)]
pub(crate) struct QueryFlags {
    /// With EDNS.
    pub(crate) edns: bool,
    /// Asks whether the answer is authenticated. The AD bit of a query does so without the signatures
    /// that the DO bit would bring (RFC 6840 section 5.7).
    pub(crate) authentic_data: bool,
}

/// The server's reply; None if there is none.
pub(crate) async fn query(
    server: &NameServer,
    query: Query,
    flags: QueryFlags,
) -> Option<Result<DnsResponse, NetError>> {
    let answer = query_once(server, query.clone(), flags).await;
    match answer {
        Some(Err(NetError::Dns(DnsError::ResponseCode(code)))) if flags.edns && rejects_edns(code) => {
            query_once(server, query, QueryFlags { edns: false, ..flags }).await
        }
        answer => answer,
    }
}

async fn query_once(server: &NameServer, query: Query, flags: QueryFlags) -> Option<Result<DnsResponse, NetError>> {
    let mut options = DnsRequestOptions::default();
    options.use_edns = flags.edns;
    let mut request = DnsRequest::from_query(query, options);
    request.metadata.authentic_data = flags.authentic_data;
    server.send(request).next().await
}

fn rejects_edns(code: ResponseCode) -> bool {
    // 16 is BADVERS in a reply with EDNS. hickory shows it as BADSIG, its name in TSIG.
    matches!(code, ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS | ResponseCode::BADSIG)
}
