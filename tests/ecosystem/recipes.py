"""The configurations of programs beside the server, as the documents show them: tests run what operators read.

A recipe is a section. Its blocks in TOML belong to the server's configuration; each other block is a file, whose
name is in its first line.
"""

import dataclasses

from peers.mailrace import ROOT


@dataclasses.dataclass
class Recipe:
    """toml: for mailrace.toml; files: others, by name."""

    toml: str = ""
    files: dict = dataclasses.field(default_factory=dict)

    def with_texts(self, texts):
        """With other texts in place of some, by what they replace; each must be in one of the blocks."""
        everything = "".join([self.toml, *self.files.values()])
        assert not (missing := [text for text in texts if text not in everything]), missing
        files = {name: _replaced(content, texts) for name, content in self.files.items()}
        return Recipe(_replaced(self.toml, texts), files)


def recipe(heading, page="filters.md"):
    """The recipe in this section of a page."""
    found = Recipe()
    for language, block in _blocks(heading, (ROOT / "docs" / page).read_text()):
        if language == "toml":
            found.toml += f"\n{block}"
        else:
            found.files[block.partition("\n")[0].removeprefix("# ")] = block
    assert found.toml, f"{page} has no section {heading}"
    return found


def _blocks(heading, page):
    """The blocks of a section, with their languages."""
    inside, language, lines = False, None, []
    for line in page.splitlines():
        if line.startswith("```") and language is None:
            language, lines = line[3:], []
        elif line == "```":
            if inside:
                yield language, "".join(f"{one}\n" for one in lines)
            language = None
        elif language is not None:
            lines.append(line)
        elif line.startswith("#"):
            inside = line == f"## {heading}"


def _replaced(content, texts):
    for old, new in texts.items():
        content = content.replace(old, new)
    return content
