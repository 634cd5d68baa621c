//! One question to one name server, as the router and the lists in the DNS ask it: with EDNS (RFC 6891), and once more without
//! where the server does not know that.
//!
//! | the server says, asked with EDNS | then |
//! |---|---|
//! | FORMERR, NOTIMP (section 7), BADVERS (section 6.1.3) | it is asked without EDNS, and that is its answer |
//! | anything else, or nothing in time | that is its answer |
//!
//! A server may also drop what has EDNS, or refuse it by a header without the question, which hickory takes for a forgery.
//! Both look like silence. So whoever asks a silent server again does it without EDNS.

use futures_util::StreamExt;
use hickory_resolver::NameServerPool;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, DnsHandle, NetError};
use hickory_resolver::proto::op::{DnsRequestOptions, DnsResponse, Query, ResponseCode};

/// One name server, by all the ways to it.
pub type Server = NameServerPool<TokioRuntimeProvider>;

/// What the server says; None where it says nothing.
pub async fn ask(server: &Server, query: Query, with_edns: bool) -> Option<Result<DnsResponse, NetError>> {
    let answer = ask_once(server, query.clone(), with_edns).await;
    match answer {
        Some(Err(NetError::Dns(DnsError::ResponseCode(code)))) if with_edns && knows_no_edns(code) => {
            ask_once(server, query, false).await
        }
        answer => answer,
    }
}

async fn ask_once(server: &Server, query: Query, use_edns: bool) -> Option<Result<DnsResponse, NetError>> {
    let mut options = DnsRequestOptions::default();
    options.use_edns = use_edns;
    server.lookup(query, options).next().await
}

fn knows_no_edns(code: ResponseCode) -> bool {
    // 16 is BADVERS in an answer with EDNS; hickory reads it by the name that it has in TSIG.
    matches!(code, ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS | ResponseCode::BADSIG)
}
