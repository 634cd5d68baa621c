"""The dashboard in Chromium, as an operator uses it: a next hop is dead, its mail is held, the error is read, the mail is
released. And what it looks like: narrow and wide, light and dark, nothing is cut off.

With MAILRACE_SCREENSHOTS=DIR, the pictures are kept there.
"""

import os
import pathlib
import shutil
import unittest

from harness import await_that
from outbound import mail_events
from peers.mailrace import route
from peers.smtp import free_port
from test_api import ApiCase, run
from webdriver import Browser

LOOKS = [(400, 1100, "light"), (400, 1100, "dark"), (1400, 1100, "light"), (1400, 1100, "dark")]
# Everything that reaches beyond the window, but for what can be scrolled to.
OVERFLOW = """
return [...document.querySelectorAll("main *, header *")]
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 && !node.closest(".scroll, .skip, pre, thead, dialog:not([open])"))
  .map((node) => node.tagName + "#" + node.id + "." + node.className).slice(0, 5);
"""
# The lowest contrast of any text with what is behind it (WCAG 2.1, 1.4.3).
CONTRAST = """
const parts = (color) => color.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
  .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
const behind = (node) => {
  for (let each = node; each; each = each.parentElement) {
    const color = parts(getComputedStyle(each).backgroundColor);
    if (color.length < 4 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const texts = [...document.querySelectorAll("main *, header *")].filter((node) => node.offsetParent
  && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
const ratios = texts.map((node) => {
  const [one, other] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
  return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), node.textContent.slice(0, 40)];
});
return ratios.sort((one, other) => one[0] - other[0])[0];
"""


@unittest.skipUnless(shutil.which("chromedriver"), "chromedriver is not installed")
class Dashboard(ApiCase):
    def setUp(self):
        super().setUp()
        self.browser = Browser(self.server.folder)
        self.addCleanup(self.browser.close)
        self.browser.open(f"http://127.0.0.1:{self.port}/")

    def sign_in(self, token):
        self.browser.type("//input[@id='token']", token)
        self.browser.click("//form[@id='sign-in']//button")

    def see(self, selector, *texts):
        """Waits until all these texts are in an element."""
        self.browser.await_that(
            lambda: all(text in self.browser.text(selector) for text in texts), f"{texts} in {selector}"
        )

    def add_routes(self, **ports):
        """Routes `NAME.test` to each port."""
        config = pathlib.Path(self.server.config)
        routes = "".join(route(f"{name}.test", f"[127.0.0.1]:{port}") for name, port in ports.items())
        config.write_text(config.read_text() + routes)
        run(self.server, "reload")

    def test_mail_for_a_dead_next_hop_is_held_explained_and_released(self):
        dead = free_port()
        self.add_routes(dead=dead)
        self.sign_in(self.operator)
        self.see("#state", "Takes mail")
        kept = self.send(self.server, "bob@dead.test")
        # A next hop counts as dead after a few failures.
        for number in range(12):
            self.send(self.server, f"bob{number}@dead.test")
        self.see("#next-hop-list", str(dead), "unreachable", "refused")
        self.see("#alerts", "cannot be reached")
        self.browser.click("//div[@id='destination-list']//tr[contains(., 'dead.test')]//button[.='Hold']")
        self.see("#confirm", "13 recipients", "until somebody releases")
        self.browser.click("//button[@id='confirm-yes']")
        self.see("#alerts", "Hold: 13 recipients")
        await_that(lambda: mail_events(self.server, "held"), "held mail", self.server)
        self.browser.click("//div[@id='destination-list']//button[.='dead.test']")
        self.see("#results", kept, "bob@dead.test", "held")
        self.browser.click(f"//div[@id='results']//button[.='{kept}']")
        self.see("#message", "alice@bench.test", "refused", "What it waits for")
        self.browser.click("//dialog[@id='message']//button[.='Release']")
        self.browser.click("//button[@id='confirm-yes']")
        self.see("#alerts", "Release: 1 recipient")
        await_that(lambda: mail_events(self.server, "released"), "released mail", self.server)
        self.see("#log-lines", "operator action", "token boss")

    def test_a_next_hop_is_paused_for_some_time_and_its_mail_redirected(self):
        other = self.host()
        self.defer_two()
        self.sign_in(self.operator)
        self.see("#next-hop-list", str(self.hop.port))
        self.see("#lanes", "well")
        self.see("#disks", "free space")
        self.browser.click("//div[@id='next-hop-list']//button[.='Pause']")
        self.browser.type("//input[@id='confirm-input']", "2h")
        self.browser.click("//button[@id='confirm-yes']")
        self.see("#next-hop-list", "paused until", "Resume")
        self.browser.click("//div[@id='next-hop-list']//button[.='Resume']")
        self.browser.click("//button[@id='confirm-yes']")
        self.browser.await_that(lambda: "paused" not in self.browser.text("#next-hop-list"), "the end of the pause")
        self.browser.click("//div[@id='next-hop-list']//button[.='Redirect']")
        self.browser.type("//input[@id='confirm-input']", f"[127.0.0.1]:{other.port}")
        self.browser.click("//button[@id='confirm-yes']")
        self.await_messages(other, 2, self.server)
        self.see("#next-hop-list", "Redirected mail", str(other.port))
        self.browser.click("//div[@id='next-hop-list']//button[.='End']")
        self.browser.click("//button[@id='confirm-yes']")
        self.browser.await_that(lambda: "Redirected mail" not in self.browser.text("#next-hop-list"), "the end of the redirect")

    def test_a_reader_sees_everything_and_acts_on_nothing(self):
        self.defer_two()
        self.sign_in("mailrace_000000000000_" + "x" * 43)
        self.see("#sign-in-error", "wrong")
        self.sign_in(self.reader)
        self.see("#destination-list", "one.test", "two.test")
        self.browser.click("//div[@id='destination-list']//tr[contains(., 'one.test')]//button[.='Hold']")
        self.see("#alerts", "may look, and not act")
        self.assertEqual(self.server.queued(), 2)
        self.browser.click("//button[@id='sign-out']")
        self.assertIn("mailrace token create", self.browser.text("#sign-in"))

    def test_hostile_names_are_text(self):
        self.send(self.server, "bob@one.test", sender='"<img/src=x>"@bench.test')
        self.sign_in(self.operator)
        self.see("#results", "<img/src=x>")
        self.assertEqual(self.browser.run("return document.images.length"), 0)

    def test_nothing_is_cut_off_in_any_width_and_theme(self):
        self.add_routes(dead=free_port(), well=self.host().port)
        self.defer_two()
        self.sign_in(self.operator)
        samples = "return samples.length"
        while self.browser.run(samples) < 4:
            for domain in ("well", "well", "well", "dead"):
                self.send(self.server, f"bob@{domain}.test")
        self.see("#destination-list", "one.test", "dead.test")
        self.see("#next-hop-list", "unreachable")
        self.assertEqual(self.browser.run("return document.querySelectorAll('svg').length"), 3)
        for width, height, theme in LOOKS:
            self.browser.look(width, height, theme)
            self.assertEqual(self.browser.run(OVERFLOW), [], (width, theme))
            ratio, text = self.browser.run(CONTRAST)
            self.assertGreaterEqual(ratio, 4.5, (theme, text))
            if folder := os.environ.get("MAILRACE_SCREENSHOTS"):
                self.browser.run("scrollTo(0, 0)")
                (pathlib.Path(folder) / f"dashboard-{width}-{theme}.png").write_bytes(self.browser.screenshot())


if __name__ == "__main__":
    unittest.main()
