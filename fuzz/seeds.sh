#!/usr/bin/env bash
# Makes the seeds of the SMTP targets from the transcripts: what the peer sends, followed by a byte
# of choices. FF separates the turns of a client's peer.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p corpus/smtp_server corpus/smtp_client corpus/bdat corpus/addresses
for transcript in ../crates/protocol/tests/transcripts/*.smtp; do
    seed=corpus/smtp_server/$(basename "$transcript" .smtp)
    while IFS= read -r line; do
        case $line in
            "C: "*) printf '%s\r\n' "${line#C: }" ;;
            "C:") printf '\r\n' ;;
            "C| "*) printf '%b' "${line#C| }" ;;
        esac
    done <"$transcript" >"$seed"
    if grep -q '^% flavor lmtp' "$transcript"; then printf '\x1d'; else printf '\x1c'; fi >>"$seed"
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
mkdir -p corpus/sasl_server corpus/maildirsize
printf '\x09\x00AGJvYgBzZWNyZXQ=' >corpus/sasl_server/plain
printf '\x0a\x02Ym9i\nc2VjcmV0' >corpus/sasl_server/login
printf '\x02\x01n,,n=bob,r=fyko\nc=biws,r=fykoAwMDAwMDAwMDAwMDAwMDAwMDAwMD,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=' \
    >corpus/sasl_server/scram
printf '1073741824S,100000C\n52811 40\n1310 1\n-1310 -1\n' >corpus/maildirsize/sound
printf '100S\n          40            4\n7' >corpus/maildirsize/aligned
mkdir -p corpus/proxy_header
printf 'PROXY TCP4 192.0.2.1 198.51.100.2 56324 25\r\nEHLO x\r\n' >corpus/proxy_header/line
printf 'PROXY UNKNOWN ffff::1 a b c\r\n' >corpus/proxy_header/unknown
printf '\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10\xc0\0\x02\x01\xc6\x33\x64\x02\xdc\x04\0\x19\x04\0\x01xEHLO x\r\n' >corpus/proxy_header/block
printf '\r\n\r\n\0\r\nQUIT\n\x20\0\0\0' >corpus/proxy_header/local
