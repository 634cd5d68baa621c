//! Any bytes as an MTA-STS policy and as its TXT record: no panic, and a policy that is written is
//! read alike.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mta_sts::{MAX_AGE_MAX, Policy, policy_id};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(policy) = Policy::parse(bytes) {
        assert!(policy.max_age <= MAX_AGE_MAX);
        assert_eq!(Policy::parse(policy.to_string().as_bytes()), Ok(policy.clone()));
        let host = String::from_utf8_lossy(bytes);
        let _ = policy.names(host.lines().next().unwrap_or_default());
    }
    let texts: Vec<Box<[u8]>> = bytes.split(|byte| *byte == 0).map(Into::into).collect();
    if let Some(id) = policy_id(&texts) {
        assert!((1..=32).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }
});
