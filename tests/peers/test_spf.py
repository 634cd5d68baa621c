"""SPF: pyspf gives the results that our own table of cases has, for the same records.

The table is that of `crates/sender_auth/tests/checks`, where our results are compared with it. Where pyspf
differs on purpose or by mistake, the difference is written down here, with the reason.
"""

import pathlib
import re
import socket
import sys
import unittest

sys.path.append("/usr/lib/python3/dist-packages")  # of Debian's own Python, if another one runs the tests
try:
    import spf
except ImportError:
    spf = None

CASES = pathlib.Path(__file__).resolve().parents[2] / "crates/sender_auth/tests/checks/spf_cases.txt"
OUR_CASE = "192.0.2.1 helo.example bob@case.example"
# Sections that pyspf cannot read: it takes neither U-labels nor addresses beyond ASCII.
_LEFT_OUT = ("Beyond ASCII",)
# What pyspf says instead, by section and case, and why we differ.
DIFFERENCES = {
    ("Which domain is checked", "? 192.0.2.2 HELO.example. HELO"): ("none", "a final dot is no empty label (4.3)"),
    ("Which domain is checked", "? 192.0.2.1 helo HELO"): ("pass", "a name of one label has no record (4.3)"),
    ("Which domain is checked", "? 192.0.2.1 helo <>"): ("pass", "a name of one label has no record (4.3)"),
    ("Which domain is checked", "? 192.0.2.1 192.0.2.1 HELO"): ("pass", "an address is no domain (4.3)"),
    ("Which text is the record", "? 192.0.2.1 helo.example bob@circle.example"): ("none", "no answer is no denial"),
    ("Terms", "v=spf1 -all foo=%{d"): ("fail", "not a macro-string (6)"),
    ("mx", "v=spf1 mx:late.example -all"): ("temperror", "the host before the one without an answer matches (5.4)"),
    ("ptr", "? 192.0.2.2 helo.example bob@below.example"): ("temperror", "then `ptr` does not match (5.5)"),
    ("ptr", "? 192.0.2.6 helo.example bob@below.example"): ("temperror", "this name is skipped (5.5)"),
    ("redirect", "v=spf1 redirect=pass.example REDIRECT=pass.example"): ("pass", "names have no case (4.6.1)"),
    ("exp", "v=spf1 exp=spaces.example -all"): ("fail:   ", "nobody can read it"),
    ("Macros in domains", "v=spf1 exists:%{d0}.example -all"): ("fail", "no part is none (7.3)"),
    ("Macros in domains", "v=spf1 exists:%{d*}.example -all"): ("pass", "not a delimiter (7.1)"),
    ("Macros in domains", "v=spf1 exists:%{dr1}.example -all"): ("fail", "the digits come first (7.1)"),
    ("Macros in explanations", "? 192.0.2.43 helo.example bob@case.example"): ("fail", "then `%{p}` is unknown (7.3)"),
    ("Macros in explanations", "? 2001:db8::cb01 helo.example bob@twice.example"): (
        "fail: 2001:db8::cb01 is queried as 1.0.B.C.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.B.D.0.1.0.0.2.ip6.arpa, "
        "100%  |%20|",
        "lower case as in the example (7.4)",
    ),
    ("The name of the client in domains", "? 192.0.2.3 helo.example bob@case.example"): (
        "temperror",
        "then `%{p}` is unknown (7.3)",
    ),
    ("Long names", "? 192.0.2.1 helo.example bob@case.example"): ("fail", "it drops one label only (7.3)"),
    ("Two terms without data", "v=spf1 a:gone1.example mx:gone.example ip4:192.0.2.1 -all"): (
        "permerror",
        "terms count, not queries (4.6.4)",
    ),
}


class Pyspf(unittest.TestCase):
    def setUp(self):
        if spf is None:
            self.skipTest("python3-spf is not installed")

    def test_gives_the_same_result_for_each_case(self):
        count, wrong, differing = 0, [], set()
        for title, zone, cases in sections(CASES.read_text()):
            for case, expected in cases:
                count += 1
                found, key = check(zone, case), (title.split(" (")[0], case)
                if found != DIFFERENCES.get(key, (expected,))[0]:
                    wrong.append(f"{title}: {case}\n  expected {expected}\n  pyspf    {found}")
                if found != expected:
                    differing.add(key)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        self.assertEqual(differing, set(DIFFERENCES), "differences that are gone")
        self.assertGreater(count, 200)


def sections(text):
    """The title, the zone's lines and the cases with their results, of each section."""
    for section in text.split("\n== ")[1:]:
        title, *lines = section.split("\n")
        if title.startswith(_LEFT_OUT):
            continue
        lines = [line for line in lines if line and not line.startswith("#")]
        cases = [tuple(line.rsplit(" -> ", 1)) for line in lines if line.startswith(("? ", "v=spf1"))]
        yield title, [line for line in lines if not line.startswith(("? ", "v=spf1"))], cases


def check(zone, case):
    """What pyspf says of a case: the result, and the explanation if there is one."""
    if case.startswith("v=spf1"):
        zone, question = [*zone, f"case.example TXT {case}"], OUR_CASE
    else:
        question = case.removeprefix("? ")
    address, helo, sender = question.split(" ", 2)
    records = {}
    for line in zone:
        name, kind, data = (*line.split(" ", 2), "")[:3]
        records.setdefault(unescape(name).decode().lower(), []).append((kind, unescape(data)))
    spf.DNSLookup = lambda name, kind, strict=True, timeout=None: look_up(records, name, kind)
    sender = "" if sender in ("HELO", "<>") else sender.replace('"', "")
    query = spf.query(i=address, s=sender, h=unescape(helo).decode(), receiver="mx.receiver.example", strict=True)
    query.set_default_explanation("")
    result, _code, explanation = query.check()
    return f"{result}: {explanation}" if result == "fail" and explanation else result


def look_up(records, name, kind):
    """Yields what pyspf expects of the DNS: the name, the type and the data."""
    found = records.get(name.lower().rstrip("."), [])
    if any(of == "!" for of, _ in found):
        raise spf.TempError("DNS failure")
    for of, data in found:
        if of in (kind, "CNAME"):
            yield (name, of), data_of(of, data)


def data_of(kind, data):
    if kind == "TXT":
        return (data,)
    text = data.decode()
    if kind == "MX":
        preference, host = text.split(" ")
        return int(preference), host.rstrip(".")
    return socket.inet_pton(socket.AF_INET6, text) if kind == "AAAA" else text


def unescape(text):
    return re.sub(rb"\\(\d{3})", lambda octet: bytes([int(octet[1])]), text.encode())


if __name__ == "__main__":
    unittest.main()
