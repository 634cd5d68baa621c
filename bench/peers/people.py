"""The users that all compared servers have: user1 to userN in one domain.

An entry of the directory is an inetOrgPerson below `PEOPLE`; its `mail` is the address, its
`description` the path of the mailbox as for Postfix's virtual(8). Files are written line by line,
so that half a million users are never in memory.
"""

import random

DOMAIN = "bench.test"
BASE = "dc=bench,dc=test"
PEOPLE = f"ou=people,{BASE}"


def address(number, domain=DOMAIN):
    """The address of a user."""
    return f"user{number}@{domain}"


def dn(number):
    """The DN of a user."""
    return f"uid=user{number},{PEOPLE}"


def attributes(number):
    """The attributes of a user."""
    return {
        "objectClass": ["inetOrgPerson"], "uid": [f"user{number}"], "cn": [f"User {number}"], "sn": [f"User{number}"],
        "mail": [address(number)], "description": [f"{DOMAIN}/user{number}/"],
    }  # fmt: skip


def ldif(count):
    """The directory as LDIF, in pieces: its two parent entries, then the users."""
    yield f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\no: bench\ndc: bench\n\n"
    yield f"dn: {PEOPLE}\nobjectClass: organizationalUnit\nou: people\n\n"
    for number in range(1, count + 1):
        lines = (f"{name}: {value}\n" for name, values in attributes(number).items() for value in values)
        yield f"dn: {dn(number)}\n{''.join(lines)}\n"


def write_text_table(path, count):
    """Writes a text table of Mailrace with all users."""
    _write(path, (f"{address(number)}\n" for number in range(1, count + 1)))


def write_shuffled(path, count):
    """Writes all addresses in random order."""
    numbers = list(range(1, count + 1))
    random.Random(count).shuffle(numbers)
    _write(path, (f"{address(number)}\n" for number in numbers))


def write_postmap(path, count):
    """Writes a source of postmap(1) with all users and their mailboxes."""
    _write(path, (f"{address(number)} {DOMAIN}/user{number}/\n" for number in range(1, count + 1)))


def _write(path, lines):
    with open(path, "w", encoding="ascii") as file:
        file.writelines(lines)
