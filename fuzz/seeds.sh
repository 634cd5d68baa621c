#!/usr/bin/env bash
# Makes the seeds of the SMTP and POP3 server targets from the transcripts: what the peer sends, followed by a byte
# of choices. FF separates the turns of a client's peer.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p corpus/smtp_server corpus/smtp_client corpus/pop3_server corpus/bdat corpus/addresses
# What the client sends in a transcript of a server.
client_lines() {
    while IFS= read -r line; do
        case $line in
            "C: "*) printf '%s\r\n' "${line#C: }" ;;
            "C:") printf '\r\n' ;;
            "C| "*) printf '%b' "${line#C| }" ;;
        esac
    done <"$1"
}
for transcript in ../crates/protocol/tests/transcripts/*.smtp; do
    seed=corpus/smtp_server/$(basename "$transcript" .smtp)
    client_lines "$transcript" >"$seed"
    if grep -q '^% flavor lmtp' "$transcript"; then printf '\x1d'; else printf '\x1c'; fi >>"$seed"
done
for transcript in ../crates/protocol/tests/pop3_transcripts/*.pop3; do
    seed=corpus/pop3_server/$(basename "$transcript" .pop3)
    client_lines "$transcript" >"$seed"
    if grep -q '^% file' "$transcript"; then printf '\x31'; else printf '\x32'; fi >>"$seed"
done
for transcript in ../crates/protocol/tests/client_transcripts/*.smtp; do
    seed=corpus/smtp_client/$(basename "$transcript" .smtp)
    turn=
    while IFS= read -r line; do
        case $line in
            "S: "* | "S| "*) turn=begun ;;
            *) if [ -n "$turn" ]; then printf '\xff'; turn=; fi ;;
        esac
        case $line in
            "S: "*) printf '%s\r\n' "${line#S: }" ;;
            "S| "*) printf '%b' "${line#S| }" ;;
        esac
    done <"$transcript" >"$seed"
    choice=0x20
    if grep -q '^% flavor lmtp' "$transcript"; then choice=$((choice | 1)); fi
    if grep -q '^% chunking on' "$transcript"; then choice=$((choice | 4)); fi
    if grep -q '^% login' "$transcript"; then choice=$((choice | 8)); fi
    printf "\\x$(printf '%x' "$choice")" >>"$seed"
done
printf '4\r\nab\r\nBDAT 0 LAST\r\nQUIT\r\n\x1c' >corpus/bdat/two_chunks
printf '6 LAST\r\nQUIT\n\nRSET\r\nBDAT 3\r\nabc\x1d' >corpus/bdat/refused
grep -oh '<[^<>]*@[^<>]*>' ../crates/protocol/tests/transcripts/*.smtp | sort -u | tr -d '<>' | while IFS= read -r address; do
    printf '%s' "$address" >"corpus/addresses/$(printf '%s' "$address" | cksum | cut -d' ' -f1)"
done
mkdir -p corpus/pop3_client corpus/http_client
printf '+OK\r\n+OK 2 99\r\n+OK\r\n1 120\r\n.\r\n+OK\r\n1 abc\r\n.\r\n+OK\r\nSubject: x\r\n\r\n..a\r\n.\r\n-ERR no\r\n+OK\r\n\x3a' \
    >corpus/pop3_client/session
printf 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 100 Go\r\n\r\nHTTP/1.0 200 OK\r\n\r\nx\x1e' >corpus/http_client/lengths
printf 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nab\r\n0\r\nY: z\r\n\r\n\x1c' >corpus/http_client/chunks
mkdir -p corpus/http_server
printf 'GET /a%%2Fb/../c?d HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9,-5\r\nIf-Range: "v1"\r\n\r\nHEAD /abc HTTP/1.0\r\n\r\n\x07' \
    >corpus/http_server/range
printf 'POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nab\r\n0\r\nY: z\r\n\r\n\x02' \
    >corpus/http_server/body
printf 'GET http://x/abc HTTP/1.1\r\nHost: x\r\nIf-None-Match: W/"v1", *\r\nAuthorization: Basic Ym9iOng=\r\n\r\n\x10' \
    >corpus/http_server/conditions
printf 'GET / HTTP/1.1\r\nHost: x\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n\x01' >corpus/http_server/smuggling
mkdir -p corpus/sasl_server corpus/maildirsize
printf '\x09\x00AGJvYgBzZWNyZXQ=' >corpus/sasl_server/plain
printf '\x0a\x02Ym9i\nc2VjcmV0' >corpus/sasl_server/login
printf '\x02\x01n,,n=bob,r=fyko\nc=biws,r=fykoAwMDAwMDAwMDAwMDAwMDAwMDAwMD,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=' \
    >corpus/sasl_server/scram
printf '1073741824S,100000C\n52811 40\n1310 1\n-1310 -1\n' >corpus/maildirsize/sound
printf '100S\n          40            4\n7' >corpus/maildirsize/aligned
mkdir -p corpus/uidlist
printf '3 V1700000000 N9 G0123456789abcdef0123456789abcdef\n2 W7 Pold :1.a,W=0\n5 O1 Gaf :2.b,W=0\n' >corpus/uidlist/sound
printf '1 1700000000 9\n2 1.a,W=0\n5 c,W=0:2,S\n' >corpus/uidlist/version_1
printf '3 V1 N1\n4294967294 :1.a,W=0\n1' >corpus/uidlist/last_uid
mkdir -p corpus/proxy_header
printf 'PROXY TCP4 192.0.2.1 198.51.100.2 56324 25\r\nEHLO x\r\n' >corpus/proxy_header/line
printf 'PROXY UNKNOWN ffff::1 a b c\r\n' >corpus/proxy_header/unknown
printf '\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10\xc0\0\x02\x01\xc6\x33\x64\x02\xdc\x04\0\x19\x04\0\x01xEHLO x\r\n' >corpus/proxy_header/block
printf '\r\n\r\n\0\r\nQUIT\n\x20\0\0\0' >corpus/proxy_header/local
mkdir -p corpus/imap_login corpus/backend_login
printf 'a ID ("x" NIL)\r\nb LOGIN {3+}\r\nbob "sec\\"ret"\r\nc SELECT INBOX\r\n\x0c' >corpus/imap_login/login
printf 'a LOGIN {1}\r\nn x\r\nb AUTHENTICATE PLAIN\r\nAGJvYgBzZWNyZXQ=\r\nc STARTTLS\r\n\x09' >corpus/imap_login/exchange
printf '* OK [CAPABILITY SASL-IR] x\r\n* CAPABILITY X\r\nI OK\r\n+ \r\nL OK [CAPABILITY Y] in\r\n* 1 EXISTS\r\n\x08' \
    >corpus/backend_login/imap
printf '+OK x\r\n+OK\r\n-ERR [IN-USE] x\r\n\x03' >corpus/backend_login/pop3
mkdir -p corpus/spf_record corpus/spf_macros corpus/dns_answer
printf 'a mx/24//64 include:b.example exists:%%{ir}.%%{l1r+-}.x.example redirect=b.example\nptr:%%{p} exp=why.%%{d2} -all\nno %%{i} %%{C}' \
    >corpus/spf_record/terms
printf 'ip4:192.0.2.0/24 ip6:2001:db8::/32 ~all\n-all\n' >corpus/spf_record/networks
printf '%%{ir}.%%{v}._spf.%%{d2}\nbob+tag\nhelo.example' >corpus/spf_macros/rfc
printf '%%{L2r+-}%%%%%%_%%-%%{h}.%%{S}.x\na+b-c\n[192.0.2.1]' >corpus/spf_macros/odd
printf '\0\0\x84\0\0\1\0\1\0\0\0\0\1a\7example\0\0\x10\0\1\xc0\x0c\0\x10\0\1\0\0\1\0\0\x06\2ab\2cd' >corpus/dns_answer/text
printf '\0\0\x84\0\0\1\0\1\0\0\0\0\1a\7example\0\0\x34\0\1\xc0\x0c\0\x34\0\1\0\0\1\0\0\x05\3\1\1ab' >corpus/dns_answer/tlsa
mkdir -p corpus/seven_bit
printf 'Content-Type: multipart/mixed; boundary="a b"\r\n\r\nx\r\n--a b\r\nContent-Type: text/x\r\n\r\n\xe4\r\n--a b--\r\n\x04' >corpus/seven_bit/multipart
printf 'Content-Type: message/rfc822\r\nContent-Transfer-Encoding: 8bit\r\n\r\nA: b\r\n\r\n\xe4\r\n\x09' >corpus/seven_bit/message
printf 'Content-Transfer-Encoding: quoted-printable\r\n\r\n=E4\xe4 \r\n\x02' >corpus/seven_bit/quoted
printf 'Content-Type: image/png\r\nContent-Transfer-Encoding: binary\r\n\r\n\x89PNG\r\n\x1a\n\x00\x02' >corpus/seven_bit/image
mkdir -p corpus/mime_parts
cp corpus/seven_bit/* corpus/mime_parts/
mkdir -p corpus/content_rules
cp corpus/seven_bit/* corpus/content_rules/
printf 'Subject: =?utf-8?q?=61?=\r\nContent-Disposition: attachment; filename*0=a;\r\n filename*1=.exe\r\n\r\nx\r\nx\x07' >corpus/content_rules/encoded
mkdir -p corpus/dkim_signature corpus/dkim_key corpus/arc_set corpus/dmarc_record corpus/authentication_results
messages=../crates/sender_auth/tests/verification/messages
cp "$messages"/relaxed-white-lines.eml "$messages"/length.eml corpus/dkim_signature/
cp "$messages"/arc-1.eml "$messages"/arc-3.eml corpus/arc_set/
cp "$messages"/rsa-key.txt corpus/dkim_key/
printf 'v=DKIM1; k=ed25519; h=sha256; t=y:s; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=' >corpus/dkim_key/ed25519
printf 'v=DMARC1; p=reject; sp=none; np=quarantine; adkim=s; aspf=r; psd=n; t=y' >corpus/dmarc_record/policy
printf ' "A, B" (x (y)) <ann@a.example>' >corpus/dmarc_record/mailbox
printf ' list: ann@a.example, "b c"@b.example;' >corpus/dmarc_record/group
printf 'Authentication-Results: (x) 1 mx.example.org;\r\n dkim=pass\r\nFrom: x\r\n' >corpus/authentication_results/forged
printf 'Authentication-Results: other.example; spf=fail\r\n' >corpus/authentication_results/other
printf 'a"; dkim=pass (\\\r\n' >corpus/authentication_results/value
mkdir -p corpus/sts_policy
printf 'version: STSv1\r\nmode: enforce\r\nmx: *.example.org\r\nmax_age: 604800\r\n' >corpus/sts_policy/policy
printf 'v=STSv1; id=20160831085700Z;' >corpus/sts_policy/record
mkdir -p corpus/milter_client
printf '\0\0\0\1c\0\0\0\1p\0\0\0\1s\0\0\0\13y550 5.7.1\0' >corpus/milter_client/answers
printf '\0\0\0\7hX-A\0a\0\0\0\0\13m\0\0\0\1X-B\0\0\0\0\0\5e<>\0\0\0\0\0\3bhi\0\0\0\3qx\0\0\0\0\1c\012' >corpus/milter_client/changes
mkdir -p corpus/dovecot_auth
printf 'VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nSPID\t7\nDONE\nOK\t1\tuser=bob\nFAIL\t2\tuser=bob\ttemp\n\x05' >corpus/dovecot_auth/verdicts
printf 'VERSION\t2\t0\nDONE\nCONT\t1\n\x01' >corpus/dovecot_auth/version
mkdir -p corpus/policy_answer
printf 'action=REJECT 5.1.8 no\n\n\x02' >corpus/policy_answer/refusal
printf 'x=y\naction=450 later\n\naction=\n\n\x01' >corpus/policy_answer/two
mkdir -p corpus/postfix_configuration corpus/exim_configuration
for main in ../bench/equivalence/setups/*/main.cf; do
    seed=corpus/postfix_configuration/$(basename "$(dirname "$main")") master=${main%main.cf}master.cf
    cp "$main" "$seed"
    if [ -e "$master" ]; then { printf '\n\x1c\n'; cat "$master"; } >>"$seed"; fi
done
cp ../crates/mailrace/tests/exim/* corpus/exim_configuration/
mkdir -p corpus/api_request corpus/control_line
printf '/api/v1/recipients/hold\0node=a\0{"filter":{"destination":"example.org"},"dry_run":true}' >corpus/api_request/act
printf '/api/v1/recipients\0state=held,ready&sender=a%%2Bb%%40c.example&limit=2&cursor=7\0' >corpus/api_request/page
printf 'remove {"filter":{"older_than":"2h","state":["held"]}}' >corpus/control_line/action
printf 'explain-address {"address":"a@b.example","client":"192.0.2.1"}' >corpus/control_line/explain
mkdir -p corpus/api_token corpus/acme_challenge
printf '[{"id":"0123456789ab","name":"a","role":"operate","created":1,"expires":9,"sha256":"00"}]\0mailrace_0123456789ab_x' \
    >corpus/api_token/file
printf '[]\0mailrace_0123456789ab_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ' >corpus/api_token/token
printf '/.well-known/acme-challenge/abc\0abc\0abc.def' >corpus/acme_challenge/token
