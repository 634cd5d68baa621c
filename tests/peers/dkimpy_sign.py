#!/usr/bin/python3
"""Signs a message with dkimpy, which Debian installs for its own Python only: run as a program of its
own by the tests.

    dkimpy_sign.py dkim SELECTOR DOMAIN KEY_FILE ALGORITHM < MESSAGE > SIGNED
    dkimpy_sign.py arc SELECTOR DOMAIN KEY_FILE AUTHSERV_ID < MESSAGE > SEALED
    dkimpy_sign.py verify KEY_RECORD < MESSAGE        prints True or False
"""

import sys

import dkim

_SIGNED = [b"from", b"to", b"subject"]


def main():
    what, *words = (word.encode() for word in sys.argv[1:])
    message = sys.stdin.buffer.read()
    if what == b"verify":
        print(dkim.verify(message, dnsfunc=lambda name, timeout=5: words[0]))
        return
    selector, domain, key_file, last = words
    with open(key_file, "rb") as file:
        key = file.read()
    if what == b"arc":
        added = b"".join(dkim.arc_sign(message, selector, domain, key, last, include_headers=_SIGNED))
    else:
        form = (b"relaxed", b"relaxed")
        added = dkim.sign(
            message, selector, domain, key, canonicalize=form, signature_algorithm=last, include_headers=_SIGNED
        )
    sys.stdout.buffer.write(added + message)


main()
