//! The ESMTP parameters of MAIL and RCPT as words (RFC 1870, RFC 6152, RFC 6531, RFC 3461).

use mail::{BodyType, DsnNotify, DsnReturn};
use protocol::smtp::server::{MailRequest, RcptRequest};

pub(super) fn mail_parameters(mail: &MailRequest) -> Vec<String> {
    let ret = mail.ret.map(|ret| match ret {
        DsnReturn::Full => "RET=FULL".to_owned(),
        DsnReturn::Headers => "RET=HDRS".to_owned(),
    });
    let words = [
        mail.size.map(|size| format!("SIZE={size}")),
        (mail.body_type == BodyType::EightBitMime).then(|| "BODY=8BITMIME".to_owned()),
        mail.smtputf8.then(|| "SMTPUTF8".to_owned()),
        ret,
        mail.envid.as_ref().map(|envid| format!("ENVID={envid}")),
        mail.auth.as_ref().map(|auth| format!("AUTH={}", to_xtext(auth))),
    ];
    words.into_iter().flatten().collect()
}

/// RFC 3461 section 4.
fn to_xtext(text: &str) -> String {
    let encode = |encoded: &mut String, character: char| match character {
        '+' | '=' | ' ' => encoded.push_str(&format!("+{:02X}", u32::from(character))),
        _ => encoded.push(character),
    };
    text.chars().fold(String::with_capacity(text.len()), |mut encoded, character| {
        encode(&mut encoded, character);
        encoded
    })
}

pub(super) fn rcpt_parameters(rcpt: &RcptRequest) -> Vec<String> {
    let names = [
        (DsnNotify::NEVER, "NEVER"),
        (DsnNotify::SUCCESS, "SUCCESS"),
        (DsnNotify::FAILURE, "FAILURE"),
        (DsnNotify::DELAY, "DELAY"),
    ];
    let named: Vec<&str> =
        names.into_iter().filter(|(notify, _)| rcpt.notify.contains(*notify)).map(|(_, name)| name).collect();
    let notify = (!named.is_empty()).then(|| format!("NOTIFY={}", named.join(",")));
    notify.into_iter().chain(rcpt.orcpt.as_ref().map(|orcpt| format!("ORCPT={orcpt}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_that_the_client_gave() {
        let mail = MailRequest {
            sender: None,
            size: Some(100),
            body_type: BodyType::EightBitMime,
            smtputf8: true,
            ret: Some(DsnReturn::Headers),
            envid: Some("q+2B1".into()),
            auth: Some("a+b@c.test".into()),
        };
        assert_eq!(
            mail_parameters(&mail),
            ["SIZE=100", "BODY=8BITMIME", "SMTPUTF8", "RET=HDRS", "ENVID=q+2B1", "AUTH=a+2Bb@c.test"]
        );
        let notify = DsnNotify::SUCCESS.with(DsnNotify::DELAY);
        let rcpt = RcptRequest { address: "a@b.test".parse().unwrap(), notify, orcpt: Some("rfc822;x@y".into()) };
        assert_eq!(rcpt_parameters(&rcpt), ["NOTIFY=SUCCESS,DELAY", "ORCPT=rfc822;x@y"]);
    }
}
