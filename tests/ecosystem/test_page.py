"""The page of `mailrace bench report` in Chromium, of made and of measured results: it fits narrow and wide windows in both themes, cuts off no text of
its charts, needs nothing from outside, and shows the ratios of the file of results.
"""

import functools
import html
import http.server
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import threading
import unittest

from harness import folder
from peers.mailrace import BINARY, ROOT
from webdriver import Browser

SECONDS_MAX = 120
SAMPLES = ROOT / "crates/compare/tests/data"
LONG = "a-system-with-a-very-long-name-that-has-no-space-in-which-it-could-be-broken " * 2
WIDTHS, THEMES = (400, 1400), ("light", "dark")
# It shows the page in frames, since the page itself allows no other script.
LOOK = """\
<!DOCTYPE html>
<script>
const look = (width, theme) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 800px; border: 0; color-scheme: ${theme}`;
  frame.onload = () => {
    const {contentWindow: window, contentDocument: page} = frame;
    const isCut = text => {
      const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
      return box.x < -1 || box.x + box.width > view.width + 1 || box.y + box.height > view.height + 1;
    };
    done({
      width, theme, innerWidth: window.innerWidth, scrollWidth: page.scrollingElement.scrollWidth,
      background: window.getComputedStyle(page.body).backgroundColor,
      cut: [...page.querySelectorAll("svg text")].filter(isCut).map(text => text.textContent),
      texts: page.querySelectorAll("svg text").length,
      loaded: window.performance.getEntriesByType("resource").map(entry => entry.name),
      ratios: [...page.querySelectorAll(".ratios tbody tr")].map(
        row => [...row.querySelectorAll("data")].map(data => [data.value, data.textContent])),
    });
  };
  frame.src = "page.html";
  document.body.append(frame);
});
onload = async () => {
  const looks = [];
  for (const width of WIDTHS) for (const theme of THEMES) looks.push(await look(width, theme));
  document.getElementById("told").textContent = JSON.stringify(looks);
};
</script>
<body><p id="told"></p></body>
"""


PAPER_WIDTH = 794  # A4 at 96 pixels an inch
SEEN = """\
const isCut = text => {
  const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
  return box.x < -1 || box.x + box.width > view.width + 1 || box.y + box.height > view.height + 1;
};
const texts = [...document.querySelectorAll("svg text")];
return {
  innerWidth: window.innerWidth, scrollWidth: document.scrollingElement.scrollWidth, texts: texts.length,
  cut: texts.filter(isCut).map(text => text.textContent), words: document.body.textContent,
  folded: document.querySelectorAll("details:not([open])").length,
};
"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_):
        """Prints nothing."""


@unittest.skipUnless(shutil.which("chromium"), "chromium is not installed")
class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = folder()
        cls.addClassCleanup(made.cleanup)
        cls.place = pathlib.Path(made.name)
        handler = functools.partial(QuietHandler, directory=cls.place)
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.server.server_close)
        cls.addClassCleanup(cls.server.shutdown)

    def report(self, *results, argv=()):
        """Writes the page of these results (objects); returns the ended command."""
        paths = [self.place / f"{number}.json" for number, _ in enumerate(results)]
        for path, result in zip(paths, results):
            path.write_text(json.dumps(result))
        command = [BINARY, "bench", "report", *paths, "--output", self.place / "page.html", *argv]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS_MAX)

    def looks(self):
        """What Chromium sees of the page in each width and theme."""
        lists = f"const WIDTHS = {json.dumps(WIDTHS)}, THEMES = {json.dumps(THEMES)};"
        (self.place / "look.html").write_text(LOOK.replace("<script>", f"<script>{lists}", 1))
        # As root it has no sandbox; the page is ours.
        argv = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
            "--window-size=1600,1000", f"--user-data-dir={self.place}/profile", "--virtual-time-budget=20000", "--dump-dom",
            f"http://127.0.0.1:{self.server.server_address[1]}/look.html",
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=self.place)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = re.search(r'<p id="told">(.+?)</p>', done.stdout, re.S)
        self.assertIsNotNone(found, done.stdout)
        looks = json.loads(html.unescape(found[1]))
        self.assertEqual([(look["width"], look["theme"]) for look in looks], [(w, t) for w in WIDTHS for t in THEMES])
        return looks

    def assert_fits(self, looks):
        """Nothing overflows, no text of a chart is cut off, nothing is loaded, and the themes differ."""
        for look in looks:
            with self.subTest(width=look["width"], theme=look["theme"]):
                self.assertEqual(look["innerWidth"], look["width"])
                self.assertLessEqual(look["scrollWidth"], look["innerWidth"])
                self.assertEqual(look["cut"], [])
                self.assertGreater(look["texts"], 10)
                self.assertEqual(look["loaded"], [])
        backgrounds = {look["theme"]: look["background"] for look in looks}
        self.assertEqual(len(set(backgrounds.values())), len(THEMES), backgrounds)

    def test_a_page_fits_and_shows_the_ratios_of_the_file(self):
        full, small = (json.loads((SAMPLES / name).read_text()) for name in ("full.json", "small.json"))
        done = self.report(full, small)
        self.assertEqual(done.returncode, 0, done.stderr)
        looks = self.looks()
        self.assert_fits(looks)
        ratios = [[c["ratio"], *c.get("interval", [])] for c in full["comparisons"] + small["comparisons"]]
        for look in looks:
            shown = look["ratios"]
            self.assertEqual([len(row) for row in shown], [len(row) for row in ratios])
            for (exact, text), ratio in zip(itertools.chain(*shown), itertools.chain(*ratios)):
                self.assertAlmostEqual(float(exact), ratio, delta=ratio * 1e-12)
                self.assertAlmostEqual(float(text), ratio, delta=ratio * 0.006)

    def test_long_names_overflow_nothing(self):
        full = json.loads((SAMPLES / "full.json").read_text().replace("Mailrace", LONG))
        full["cases"] = [dict(case, value=None) for case in full["cases"]]
        done = self.report(full, argv=("--title", LONG.replace(" ", "")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_fits(self.looks())

    def test_a_change_for_the_worse_is_on_the_page_and_in_the_exit_code(self):
        full = json.loads((SAMPLES / "full.json").read_text())
        slower = json.loads(json.dumps(full))
        for each in slower["cases"][0]["rounds"]:
            each["Mailrace"]["seconds"] *= 2
        self.assertEqual(self.report(full, argv=("--against", SAMPLES / "full.json")).returncode, 0)
        done = self.report(slower, argv=("--against", SAMPLES / "full.json"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("1 worse", done.stdout)
        self.assertIn("1 worse", (self.place / "page.html").read_text())
        self.assert_fits(self.looks())


@unittest.skipUnless(shutil.which("chromium") and shutil.which("chromedriver"), "chromium and its driver are not installed")
class MeasuredPage(unittest.TestCase):
    """The page of a small comparison that really ran, with whatever servers are installed."""

    @classmethod
    def setUpClass(cls):
        made = folder()
        cls.addClassCleanup(made.cleanup)
        cls.place = pathlib.Path(made.name)
        file = cls.place / "pages.toml"
        text = (ROOT / "examples/compare/pages.toml").read_text()
        file.write_text(text.replace("[compare]", '[compare]\nrest = "0s"', 1))
        measured = ["bench", "compare", file, "--rounds", 2, "--shrink", 100, "--output", cls.place / "results"]
        cls.command(*measured)
        cls.command("bench", "report", cls.place / "results/pages.json", "--output", cls.place / "page.html")
        cls.result = json.loads((cls.place / "results/pages.json").read_text())
        cls.browser = Browser(cls.place)
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def command(cls, *argv):
        """Runs a command that must succeed."""
        line = [str(BINARY), *map(str, argv)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=cls.place)
        if done.returncode:
            raise AssertionError(f"{line}: {done.stdout}{done.stderr}")

    def seen(self, width, media):
        """What there is in a window of this width."""
        self.browser.look(width, 900, "light", media)
        self.browser.open((self.place / "page.html").as_uri())
        return self.browser.run(SEEN)

    def test_it_fits_on_screens_and_on_paper(self):
        for width, media in ((400, ""), (1400, ""), (PAPER_WIDTH, "print")):
            with self.subTest(width=width, media=media):
                seen = self.seen(width, media)
                self.assertEqual(seen["innerWidth"], width)
                self.assertLessEqual(seen["scrollWidth"], width)
                self.assertEqual(seen["cut"], [])
                self.assertGreater(seen["texts"], 10)
                for system in self.result["systems"]:
                    self.assertIn(system["name"], seen["words"])

    def test_it_names_what_limited_each_system(self):
        words = self.seen(1400, "")["words"]
        limits = {run["limit"] for case in self.result["cases"] for each in case["rounds"] for run in each.values()}
        named = {"processor": "processors", "thread": "one thread"}
        self.assertTrue(limits)
        self.assertTrue(any(named.get(limit, limit) in words for limit in limits), limits)

    def test_everything_is_unfolded_when_it_is_printed(self):
        self.assertGreater(self.seen(1400, "")["folded"], 0)
        printed = self.browser.print()
        self.assertTrue(printed.startswith(b"%PDF"), printed[:20])
        self.assertEqual(self.browser.run("return document.querySelectorAll('details:not([open])').length"), 0)


if __name__ == "__main__":
    unittest.main()
