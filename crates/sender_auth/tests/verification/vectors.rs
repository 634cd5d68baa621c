//! The examples of RFC 6376 appendix A and RFC 8463 appendix A.

use crate::dns_map::DnsMap;
use crate::session::{check, sender_auth};
use sender_auth::VerificationSettings;

/// RFC 6376 appendix A.2; its key is in appendix C.
const RFC_6376: &str = "DKIM-Signature: v=1; a=rsa-sha256; s=brisbane; d=example.com;
      c=simple/simple; q=dns/txt; i=joe@football.example.com;
      h=Received : From : To : Subject : Date : Message-ID;
      bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;
      b=AuUoFEfDxTDkHlLXSZEpZj79LICEps6eda7W3deTVFOk4yAUoqOB
      4nujc7YopdG5dWLSdNg6xNAZpOPr+kHxt1IrE+NahM6L/LbvaHut
      KVdkLLkpVaVVQPzeRDI009SO2Il5Lu7rDNH6mZckBdrIx0orEtZV
      4bmp/YzhwvcubU4=;
Received: from client1.football.example.com  [192.0.2.1]
      by submitserver.example.com with SUBMISSION;
      Fri, 11 Jul 2003 21:01:54 -0700 (PDT)
From: Joe SixPack <joe@football.example.com>
To: Suzie Q <suzie@shopping.example.net>
Subject: Is dinner ready?
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)
Message-ID: <20030712040037.46341.5F8J@football.example.com>

Hi.

We lost the game. Are you hungry yet?

Joe.
";
const RFC_6376_KEY: &str = "v=DKIM1; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDwIRP/UC3SBsEmGqZ9ZJW3/DkM\
    oGeLnQg1fWn7/zYtIxN2SnFCjxOCKG9v3b4jYfcTNh5ijSsq631uBItLa7od+v/RtdC2UzJ1lWT947qR+Rcac2gb\
    to/NMqJ0fzfVjH4OuKhitdY9tf6mcwGjaNBcWToIMmPSPDdQPNUYckcQ2QIDAQAB";

/// RFC 8463 appendix A.3.
const RFC_8463: &str = "DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;
 d=football.example.com; i=@football.example.com;
 q=dns/txt; s=brisbane; t=1528637909; h=from : to :
 subject : date : message-id : from : subject : date;
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;
 b=/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11Bus
 Fa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw==
DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed;
 d=football.example.com; i=@football.example.com;
 q=dns/txt; s=test; t=1528637909; h=from : to : subject :
 date : message-id : from : subject : date;
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;
 b=F45dVWDfMbQDGHJFlXUNB2HKfbCeLRyhDXgFpEL8GwpsRe0IeIixNTe3
 DhCVlUrSjV4BwcVcOF6+FF3Zo9Rpo1tFOeS9mPYQTnGdaSGsgeefOsk2Jz
 dA+L10TeYt9BgDfQNZtKdN1WO//KgIqXP7OdEFE4LjFYNcUxZQ4FADY+8=
From: Joe SixPack <joe@football.example.com>
To: Suzie Q <suzie@shopping.example.net>
Subject: Is dinner ready?
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)
Message-ID: <20030712040037.46341.5F8J@football.example.com>

Hi.

We lost the game.  Are you hungry yet?

Joe.
";
const RFC_8463_ED25519: &str = "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
const RFC_8463_RSA: &str = "v=DKIM1; k=rsa; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3\
    idY6Wk08a5qhdR6wy5bdOKb2jLQiY/J16JYi0Qvx/byYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6l\
    HvqMKrM3rG4hstT5QjvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l/K4w3QIDAQAB";

fn wire(text: &str) -> Vec<u8> {
    text.replace('\n', "\r\n").into_bytes()
}

#[tokio::test]
async fn the_example_of_rfc_6376_is_valid() {
    let dns = DnsMap::default().txt("brisbane._domainkey.example.com", RFC_6376_KEY);
    let auth = sender_auth(dns, VerificationSettings::default());
    let checked = check(&auth, &wire(RFC_6376)).await;
    assert_eq!(checked.result("dkim"), "pass", "{}", checked.results());
    assert!(checked.results().contains("dkim=pass header.d=example.com header.i=joe@football.example.com"));
    let changed = wire(&RFC_6376.replace("hungry", "angry"));
    assert_eq!(check(&auth, &changed).await.result("dkim"), "fail");
    let changed = wire(&RFC_6376.replace("dinner ready", "dinner there"));
    assert_eq!(check(&auth, &changed).await.result("dkim"), "fail");
}

#[tokio::test]
async fn the_examples_of_rfc_8463_are_valid() {
    let dns = DnsMap::default()
        .txt("brisbane._domainkey.football.example.com", RFC_8463_ED25519)
        .txt("test._domainkey.football.example.com", RFC_8463_RSA);
    let auth = sender_auth(dns, VerificationSettings::default());
    let checked = check(&auth, &wire(RFC_8463)).await;
    assert_eq!(checked.results().matches("dkim=pass").count(), 2, "{}", checked.results());
    // The names that are signed twice must not be added.
    let added = wire(&RFC_8463.replace("From: Joe", "Subject: other\nFrom: Joe"));
    assert_eq!(check(&auth, &added).await.results().matches("dkim=fail").count(), 2);
}
