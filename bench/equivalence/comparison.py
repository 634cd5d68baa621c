"""What became of the probes with each server, and how it differs.

A file `differences` in a set-up has one known difference in each line:

    PATTERN | told | TEXT         the import tells it: its report contains TEXT
    PATTERN | because | REASON    it is meant; the reason goes into the result, and docs/from-SERVER.md tells it
    PATTERN | demanded | TEXT     an RFC demands it, and the import tells it
    PATTERN | returned | REASON   the original accepts the mail and returns it, where Mailrace refuses it

PATTERN is compared with the text of the probe, with * and ?. A probe that the original server refused or deferred and
Mailrace accepted, or that went where the original sent nothing, is excused only where an RFC demands it.
"""

import dataclasses
import fnmatch
import pathlib

SAME, ELSEWHERE, TOLD, MEANT, DEMANDED, DIFFERS, LETS_IN = (
    "same", "another command", "told", "meant", "demanded by an RFC", "DIFFERS", "LETS IN",
)  # fmt: skip


_DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def documented(server):
    """The reasons in the table of differences by design, in the document about the import from a server."""
    section = (_DOCS / f"from-{server}.md").read_text().partition("\n## What differs by design\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").rpartition(" | ")[2] for line in section.splitlines() if line.startswith("| ")]
    return set(rows[1:])


@dataclasses.dataclass(frozen=True)
class Known:
    """A line of a file `differences`."""

    pattern: str
    kind: str
    text: str

    @classmethod
    def read(cls, text):
        """All lines."""
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        return [cls(*(part.strip() for part in line.split(" | ", 2))) for line in lines]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The last answer to a probe, and where its mail went."""

    answer: object
    places: tuple = ()

    def __str__(self):
        return "; ".join([str(self.answer), *self.places])


@dataclasses.dataclass(frozen=True)
class Compared:
    """A probe with both outcomes."""

    probe: object
    original: Outcome
    mailrace: Outcome
    kind: str
    reason: str = ""

    def row(self, setup, server):
        """For a table of differences with this server."""
        code = lambda text: f"`{text}`".replace("|", "\\|")  # noqa: E731
        return {"set-up": setup, "probe": code(self.probe), server: str(self.original).replace("|", "\\|"),
                "Mailrace": str(self.mailrace).replace("|", "\\|"), "": f"{self.kind}: {self.reason}".rstrip(": ")}  # fmt: skip


def compare(probe, original, mailrace, known, told, meant):
    """The kind of the difference between two outcomes."""
    verdicts = original.answer.verdict, mailrace.answer.verdict
    if verdicts[0] == verdicts[1] and set(original.places) == set(mailrace.places):
        is_same = original.answer.stage == mailrace.answer.stage or verdicts[0] == "accepted"
        return Compared(probe, original, mailrace, SAME if is_same else ELSEWHERE)
    lets_in = verdicts[0] != "accepted" and (verdicts[1] == "accepted" or mailrace.places)
    for one in known:
        if not fnmatch.fnmatchcase(str(probe), one.pattern.replace("[", "[[]")):
            continue
        if one.kind == "demanded" and one.text in told:
            return Compared(probe, original, mailrace, DEMANDED, one.text)
        if one.kind == "demanded" or lets_in:
            continue
        if one.kind == "returned" and not is_returned(original, mailrace):
            continue
        if one.kind in ("because", "returned") and one.text in meant:
            return Compared(probe, original, mailrace, MEANT, one.text)
        if one.text in told:
            return Compared(probe, original, mailrace, TOLD, one.text)
    return Compared(probe, original, mailrace, LETS_IN if lets_in else DIFFERS)


def is_returned(original, mailrace):
    """Whether all that came of the original's acceptance is a notice to the sender, and Mailrace refused the mail."""
    is_notice = original.places and all("notice" in place for place in original.places)
    return original.answer.verdict == "accepted" and is_notice and mailrace.answer.verdict == "refused"
