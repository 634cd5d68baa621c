"""What filters cost while mail is accepted.

    content-rules   fifty rules with regular expressions on the header, compared with none
    milter          a milter that takes everything: with replies at the end alone, and at each step; and Postfix with it
    policy          a policy service that says DUNNO; and Postfix with it
    milter-stalled  1,000 sessions wait for a milter that never answers; others, on another listener, go on

The milter and the policy service are stand-ins, whose CPU does not count. The servers sync before their 250 and deliver
nothing.
"""

import dataclasses
import functools
import statistics

import comparison
import pairs
from comparison import Comparison, Side
from peers import machine, stand_in
from peers.laboratory import Source
from peers.mailrace import Mailrace, listener
from peers.postfix import HOLD, Postfix
from peers.smtp import Load, free_port
from peers.stand_in import FilteredServer, StandIn
from peers.waiting_sessions import WaitingSessions

from .accept import MESSAGE_DISK_OCTETS, NOTES, mailrace

_STAND_IN_NOTE = (
    "The CPU of the stand-in, a small program in Rust (crates/filter/examples), counts neither for Mailrace nor for Postfix. A "
    "table shows it."
)

# Content rules

_CORPUS, _CORPUS_MESSAGES, _CORPUS_OCTETS = "corpus", 100, 6000
_PHRASES = (
    "act now", "cheap (meds|pills)", "double your (income|salary)", "earn \\$[0-9,]+", "final notice", "free (gift|trial)",
    "incredible deal", "limited time", "lottery", "lowest price", "make money", "miracle", "no obligation", "online casino",
    "re+plica watch", "risk[- ]free", "unclaimed", "viagra|cialis|levitra", "winner", "work from home",
)  # fmt: skip
_MAILERS = ("bulk ?mail", "dark mailer", "massmail", "power ?sender", "send-?safe", "the bat! \\(v1", "turbo", "unity", "xpert", "zmail")
_SENDERS = (
    "bad\\.example", "click\\.example", "deals?[0-9]*\\.example", "[0-9]{6,}\\.example", "lucky\\.example", "pills\\.example",
    "promo-[a-z]+\\.example", "spam\\.example", "win\\.example", "xn--[a-z0-9-]+\\.example",
)  # fmt: skip
_OTHERS = (
    "^Content-(Type|Disposition):.*name *= *\"?[^\"]*\\.(bat|com|exe|pif|scr|vbs)", "^Content-Type:.*charset=\"?(koi8-r|windows-1251)",
    "^Date: .* (19[0-9]{2}|20[01][0-9]) ", "^List-Id: .*offers", "^Message-ID: <[0-9]+@localhost>", "^Received: from .*\\bunknown\\b.*\\[10\\.",
    "^Reply-To: .*@(free|cheap)mail\\.example", "^To: .*undisclosed", "^X-Originating-IP: \\[?192\\.0\\.2\\.", "^X-Priority: 1 \\(highest",
)  # fmt: skip
_PATTERNS = (
    *(f"^Subject: .*\\b({phrase})\\b" for phrase in _PHRASES),
    *(f"^(X-Mailer|User-Agent): .*{mailer}" for mailer in _MAILERS),
    *(f"^(From|Sender|Return-Path): .*@([a-z0-9-]+\\.)*{sender}\\b" for sender in _SENDERS),
    *_OTHERS,
)
_RULES = "".join(f"\n[[content]]\nmatches = '{pattern}'\naction = \"refuse\"\n" for pattern in _PATTERNS)
# As a mailbox has it: fields of two hops, a signature, and those of a list.
_MESSAGE = """\
Received: from mail.sender.example (mail.sender.example [198.51.100.{number}])
 by mx.relay.example (Postfix) with ESMTPS id 4Xw{number:05}Hz
 for <user@bench.test>; Tue, 24 Nov 2026 03:{minute:02}:07 +0000 (UTC)
Received: by mail.sender.example (Postfix, from userid 1000) id 9B{number:06}D0; Tue, 24 Nov 2026 03:{minute:02}:05 +0000
DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d=sender.example; s=2026;
 h=from:to:subject:date:message-id:list-id; t=1795490{number:03};
 bh=frcCV1k9oG9oKj3dpUqdJg1PxRT2RSN/XKdLCPjaYaY=;
 b=dzdVyOfAKCdLXdJOc9G2q8LoXSlEniSbav+yuU4zGeeruD00lszZVoG4ZHRNiYzRlsK4nBvQh1r
 9u5uGmPk3yQCt5eWyRBfpwTQBL3uvd6iDq5c6iNSeQSUPIBLbTlbxAJ6fSPxPHcLPaNQMl5Sg6xBM=
Date: Tue, 24 Nov 2026 03:{minute:02}:05 +0000
From: "Anna Example" <anna.example@sender.example>
To: user@bench.test
Cc: "The Others" <others@lists.sender.example>
Subject: Re: [others] Minutes of the meeting on November {day}, and what is left to do
Message-ID: <20261124-{number:06}.anna@sender.example>
In-Reply-To: <20261123-{number:06}.bob@example.org>
References: <20261122-{number:06}.carol@example.net>
 <20261123-{number:06}.bob@example.org>
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 8bit
User-Agent: Mutt/2.2.12 (2023-09-09)
List-Id: The others <others.lists.sender.example>
List-Unsubscribe: <https://lists.sender.example/others/leave>
Precedence: list

"""
_LINE = "The quick brown fox jumps over the lazy dog, and the dog does not mind.\n"


def _make_corpus(folder):
    folder.mkdir()
    for number in range(_CORPUS_MESSAGES):
        header = _MESSAGE.format(number=number, minute=number % 60, day=1 + number % 28)
        body = _LINE * ((_CORPUS_OCTETS - len(header)) // len(_LINE))
        (folder / f"{number}.eml").write_text((header + body).replace("\n", "\r\n"))


@dataclasses.dataclass(frozen=True)
class CorpusSource(Source):
    """Sends the messages of the run."""

    corpus: str = f"$DIR/{_CORPUS}"

    def run(self, port, folder=None):
        """Sends all messages; the first load of a run makes them."""
        if not (corpus := folder.parent / _CORPUS).exists():
            _make_corpus(corpus)
        return Source.run(dataclasses.replace(self, corpus=str(corpus)), port)


def _with_rules(place):
    return Mailrace(place, concurrency=0, extra=_RULES)


CONTENT = Comparison(
    f"Accepting with {len(_PATTERNS)} content rules",
    {
        "off": Side(mailrace, CorpusSource(80_000), MESSAGE_DISK_OCTETS),
        "rules": Side(_with_rules, CorpusSource(80_000), MESSAGE_DISK_OCTETS),
    },
    (pairs.Target("rules", "off", "cpu_per_thousand", most=1.15),),
    (
        f"100 sessions; {_CORPUS_MESSAGES} messages of about {_CORPUS_OCTETS:,} bytes, with 18 fields of 1.4 kB together; "
        "afterwards all messages were counted in the queue.",
        "No rule matches, so each field is compared with all of them.",
        comparison.REST_NOTE,
    ),
)

# Milters and policy services


@dataclasses.dataclass
class FilteredFigures(pairs.Figures):
    """The figures of one side in one round."""

    stand_in_cpu_seconds: float = 0.0

    def row(self, number, side):
        """The CPU of the stand-in as a row of a table."""
        return {"round": number, "side": side, "CPU": f"{self.stand_in_cpu_seconds / self.messages * 1000:.4f}"}


@dataclasses.dataclass(frozen=True)
class FilteredSide(Side):
    """A side whose server asks a stand-in."""

    needs: tuple = (("a stand-in (`make stand-ins`)", stand_in.are_built),)

    def measure(self, server, place):
        """Also counts the CPU of the stand-in."""
        cpu = server.stand_in.group.cpu_seconds()
        figures = super().measure(server, place)
        return FilteredFigures(**vars(figures), stand_in_cpu_seconds=server.stand_in.group.cpu_seconds() - cpu)


@dataclasses.dataclass(frozen=True)
class Filtering(Comparison):
    """Also shows the CPU of the stand-ins: one that needs as much as the server would hold it up."""

    def measure(self, name, folder, options):
        """Runs all rounds and adds the table."""
        found = super().measure(name, folder, options)
        found.tables["CPU of the stand-in, seconds per 1,000 messages"] = [
            figures.row(number, side)
            for number, measured in enumerate(found.rounds, 1)
            for side, figures in measured.items()
            if isinstance(figures, FilteredFigures)
        ]
        return found


def _section(kind, asked, *lines):
    return "\n".join(("", f"[[{kind}]]", f'address = "{asked.address}"', *lines, ""))


def _mailrace_with(kind, name, *words, has_path=False):
    def make(place):
        asked = StandIn(place, name, *words, has_path=has_path)
        return FilteredServer(asked, Mailrace(place, concurrency=0, extra=_section(kind, asked)))

    return make


def _postfix_with(lines, name, *words, has_path=False):
    def make(place):
        asked = StandIn(place, name, *words, has_path=has_path)
        address = asked.address if has_path else f"inet:{asked.address}"
        asking = [line.format(address=address) for line in lines]
        return FilteredServer(asked, Postfix(place, "tuned", [HOLD, *asking]))

    return make


_MILTER_LINES = ("smtpd_milters = {address}", "milter_default_action = tempfail")
_POLICY_LINES = ("smtpd_recipient_restrictions = check_policy_service {address}",)


def _with_milter(mode, has_path=True):
    return _mailrace_with("milter", "milter_stub", mode, has_path=has_path)


def _postfix_with_milter(mode, has_path=True):
    return _postfix_with(_MILTER_LINES, "milter_stub", mode, has_path=has_path)


def _filtered(make, count):
    return FilteredSide(make, Load(count), MESSAGE_DISK_OCTETS)


MILTER = Filtering(
    "Accepting with a milter that does nothing",
    {
        "off": Side(mailrace, Load(60_000), MESSAGE_DISK_OCTETS),
        "end": _filtered(_with_milter("end"), 50_000),
        "each": _filtered(_with_milter("each"), 30_000),
        "end-tcp": _filtered(_with_milter("end", has_path=False), 50_000),
        "each-tcp": _filtered(_with_milter("each", has_path=False), 30_000),
        "postfix-end": _filtered(_postfix_with_milter("end"), 6_000),
        "postfix-each": _filtered(_postfix_with_milter("each"), 6_000),
        "postfix-end-tcp": _filtered(_postfix_with_milter("end", has_path=False), 6_000),
        "postfix-each-tcp": _filtered(_postfix_with_milter("each", has_path=False), 6_000),
    },
    (
        pairs.Target("end", "off", "cpu_per_thousand", most=1.5),
        pairs.Target("each", "off", "cpu_per_thousand", most=3.0),
        pairs.Target("end-tcp", "off", "cpu_per_thousand", most=1.5),
        pairs.Target("each-tcp", "off", "cpu_per_thousand", most=3.0),
        pairs.Target("end", "postfix-end", "rate", least=5),
        pairs.Target("each", "postfix-each", "rate", least=5),
        pairs.Target("end-tcp", "postfix-end-tcp", "rate", least=5),
        pairs.Target("each-tcp", "postfix-each-tcp", "rate", least=5),
        pairs.Target("end", "postfix-end", "cpu_per_thousand"),
        pairs.Target("each", "postfix-each", "cpu_per_thousand"),
        pairs.Target("end-tcp", "postfix-end-tcp", "cpu_per_thousand"),
        pairs.Target("each-tcp", "postfix-each-tcp", "cpu_per_thousand"),
    ),
    (
        *NOTES,
        "The milter wants all commands and has no actions. With `end` it has negotiated that it answers only the end of a "
        "message; with `each` it answers MAIL, RCPT, DATA, every field, the end of the header, the body and the end.",
        "It listens at a Unix socket, and for the sides in `-tcp` on a port.",
        _STAND_IN_NOTE,
    ),
)  # fmt: skip

POLICY = Filtering(
    "Accepting with a policy service that says DUNNO",
    {
        "off": Side(mailrace, Load(60_000), MESSAGE_DISK_OCTETS),
        "policy": _filtered(_mailrace_with("policy_service", "policy_stub"), 50_000),
        "postfix-policy": _filtered(_postfix_with(_POLICY_LINES, "policy_stub"), 6_000),
    },
    (
        pairs.Target("policy", "postfix-policy", "rate", least=5),
        pairs.Target("policy", "postfix-policy", "cpu_per_thousand"),
        pairs.Target("policy", "off", "cpu_per_thousand"),
    ),
    (*NOTES, "The service is asked at RCPT.", _STAND_IN_NOTE),
)

# A filter that stalls

WAITING, WAITING_OCTETS = 1000, 6000
WAITING_MEMORY_MAX = 65_536
_OPEN_FILES = 3 * WAITING + 500


@dataclasses.dataclass(frozen=True)
class StalledSide(FilteredSide):
    """A server with a milter that never answers, and sessions that wait for it."""

    waiting: int = 0

    def for_trial(self, divisor):
        """Also with fewer of them."""
        return dataclasses.replace(super().for_trial(divisor), waiting=self.waiting // divisor)

    def measure(self, server, place):
        """Lets the sessions wait, and runs the load on the other listener."""
        with WaitingSessions(server.all_ports["smtp"][1], self.waiting, WAITING_OCTETS) as others:
            figures = super().measure(server, place)
            others.check()
        return figures


@dataclasses.dataclass(frozen=True)
class Stalling(Filtering):
    """Also checks the memory of each session that waits."""

    def measure(self, name, folder, options):
        """Runs all rounds and adds the check."""
        machine.require_open_files(_OPEN_FILES)
        found = super().measure(name, folder, options)
        waiting = WAITING // options.shrink
        if all({"alone", "beside"} <= set(measured) for measured in found.rounds):
            added = [measured["beside"].resident_bytes - measured["alone"].resident_bytes for measured in found.rounds]
            each = statistics.median(added) / waiting
            aim = f"memory of the server for each of {waiting:,} sessions that wait: below {WAITING_MEMORY_MAX:,} bytes"
            found.checks.append((aim, f"{each:,.0f} bytes", each < WAITING_MEMORY_MAX))
        return found


def _stalled(place):
    port, asked = free_port(), StandIn(place, "milter_stub", "never")
    scope = (f'listeners = ["127.0.0.1:{port}"]', f"connections = {WAITING}", 'message_time = "10m"')
    extra = listener("smtp", port=port) + _section("milter", asked, *scope)
    return FilteredServer(asked, Mailrace(place, concurrency=0, extra=extra))


def _stalled_side(waiting):
    return StalledSide(_stalled, Load(100_000), MESSAGE_DISK_OCTETS, waiting=waiting)


STALLED = Stalling(
    f"{WAITING:,} sessions that wait for a milter, beside others",
    {"alone": _stalled_side(0), "beside": _stalled_side(WAITING)},
    (
        pairs.Target("beside", "alone", "rate", least=0.95),
        pairs.Target("beside", "alone", "cpu_per_thousand", most=1.05),
    ),
    (
        *NOTES,
        "Both sides have two listeners, of which one asks a milter that never answers. The load comes to the other one.",
        f"Each session that waits has sent a message of {WAITING_OCTETS:,} bytes. None had a reply when the load had ended.",
        "Memory is VmRSS at the end: that of the side without waiting sessions is subtracted.",
    ),
)

SCENARIOS = comparison.scenarios(
    {"content-rules": CONTENT, "milter": MILTER, "policy": POLICY, "milter-stalled": STALLED}
)
