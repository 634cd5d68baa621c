"""Users who all look alike, and the same ones for everybody who is compared: user1 to userN at one domain.

An entry of the directory is an inetOrgPerson below `PEOPLE`, whose `mail` is the address and whose `description` is the
path of its mailbox, as Postfix's virtual(8) has it. Everything is written a line at a time: half a million of them are
never in memory.
"""

import random

DOMAIN = "bench.test"
BASE = "dc=bench,dc=test"
PEOPLE = f"ou=people,{BASE}"


def address(number, domain=DOMAIN):
    """The address of one of them."""
    return f"user{number}@{domain}"


def dn(number):
    """The name of the entry of one of them."""
    return f"uid=user{number},{PEOPLE}"


def attributes(number):
    """What the entry of one of them has."""
    return {
        "objectClass": ["inetOrgPerson"], "uid": [f"user{number}"], "cn": [f"User {number}"], "sn": [f"User{number}"],
        "mail": [address(number)], "description": [f"{DOMAIN}/user{number}/"],
    }  # fmt: skip


def ldif(count):
    """The directory as LDIF, in pieces: the two entries above them, then all of them."""
    yield f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\no: bench\ndc: bench\n\n"
    yield f"dn: {PEOPLE}\nobjectClass: organizationalUnit\nou: people\n\n"
    for number in range(1, count + 1):
        lines = (f"{name}: {value}\n" for name, values in attributes(number).items() for value in values)
        yield f"dn: {dn(number)}\n{''.join(lines)}\n"


def write_text_table(path, count):
    """A text table of Mailrace: who exists."""
    _write(path, (f"{address(number)}\n" for number in range(1, count + 1)))


def write_shuffled(path, count):
    """The addresses of all, in an order that has nothing to do with that in which they were made."""
    numbers = list(range(1, count + 1))
    random.Random(count).shuffle(numbers)
    _write(path, (f"{address(number)}\n" for number in numbers))


def write_postmap(path, count):
    """A source of postmap(1): who exists, and where the mailbox is."""
    _write(path, (f"{address(number)} {DOMAIN}/user{number}/\n" for number in range(1, count + 1)))


def _write(path, lines):
    with open(path, "w", encoding="ascii") as file:
        file.writelines(lines)
