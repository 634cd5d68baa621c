"""Documents: every relative link works, in the repository and in the Debian package; the page about
the log has the fields of the server's own events.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from peers.mailrace import ROOT  # noqa: E402

# Files that build-deb adds.
_OF_PACKAGE = ("NEWS.gz", "copyright")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)
_EVENT_FIELD = re.compile(r'[\[,]\s*\("([a-z_]+)",\s')


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(root, pages):
    """Links of these pages without a file, or without the heading."""
    dead = []
    for page in pages:
        for link in _LINK.findall(_CODE.sub("", page.read_text())):
            path, _, anchor = link.partition("#")
            target = (page.parent / path) if path else page
            if re.match(r"[a-z]+:", link):
                continue
            inside = target.resolve().is_relative_to(root.resolve())
            if not inside or not target.exists() or (anchor and anchor not in anchors(target.read_text())):
                dead.append(f"{page.relative_to(root)}: {link}")
    return dead


class Documents(unittest.TestCase):
    def test_every_link_in_the_repository_works(self):
        pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("bench/results/*.md")]
        self.assertGreater(len(pages), 30)
        self.assertEqual(dead_links(ROOT, pages), [])

    def test_every_link_in_the_package_works(self):
        with tempfile.TemporaryDirectory(prefix="mailrace-test-") as made:
            folder = pathlib.Path(made)
            subprocess.run([ROOT / "packaging/install-docs", folder], check=True, timeout=60)
            for name in _OF_PACKAGE:
                (folder / name).touch()
            pages = sorted(folder.rglob("*.md"))
            self.assertTrue({folder / "README.md", folder / "docs/logs.md", folder / "examples/README.md"} <= set(pages))
            self.assertTrue((folder / "examples/mx-ldap/mailrace.toml").is_file())
            self.assertEqual(dead_links(folder, pages), [])

    def test_a_dead_link_is_found(self):
        with tempfile.TemporaryDirectory(prefix="mailrace-test-") as made:
            page = pathlib.Path(made) / "page.md"
            page.write_text("# A b\n[1](page.md#a-b) [2](#a-b) [3](https://x.example) `[4](no)`\n[5](no) [6](#no) [7](../x)\n")
            self.assertEqual(dead_links(page.parent, [page]), ["page.md: no", "page.md: #no", "page.md: ../x"])

    def test_every_document_is_in_the_index_of_the_readme(self):
        linked = set(_LINK.findall((ROOT / "README.md").read_text()))
        documents = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
        self.assertEqual(documents - linked, set())

    def test_the_log_page_lists_the_fields_of_server_events(self):
        written = set()
        for path in (ROOT / "crates").glob("*/src/**/*.rs"):
            code = path.read_text().split("#[cfg(test)]")[0]
            if re.search(r"\.event\(|\.log\(LogLevel", code) and "LogLevel" in code:
                written |= set(_EVENT_FIELD.findall(code))
        section = (ROOT / "docs/logs.md").read_text().split("\n### info, warning, error\n")[1].split("\n| message |")[0]
        documented = set(re.findall(r"^\| `(\w+)` \|", section, re.M))
        self.assertEqual(documented - {"message"}, written | {"lines"})


if __name__ == "__main__":
    unittest.main()
