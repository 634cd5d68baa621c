"""The dashboard in Chromium, as an operator uses it: a next hop is dead, its mail is held, the error is read, the mail is
released; by pointer and by keyboard, and with what a screen reader gets. Who may only look sees no button that acts. And
what it looks like: narrow and wide, light and dark, nothing is cut off.

With MAILRACE_SCREENSHOTS=DIR, the pictures are kept there.
"""

import os
import pathlib
import shutil
import time
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
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 && !node.closest(".scroll, .skip, nav, pre, thead, dialog:not([open])"))
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

# What has the focus: whether it comes after what had it before, its name, and the style of its outline.
FOCUSED = """
const node = document.activeElement, before = window.focusedBefore;
window.focusedBefore = node;
const named = document.getElementById(node.getAttribute("aria-labelledby"));
const name = node.getAttribute("aria-label") || (named || node.labels?.[0] || node).textContent;
const follows = !before?.isConnected || Boolean(before.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING);
return [node === document.body, follows, name.trim().slice(0, 40), getComputedStyle(node).outlineStyle];
"""
# Counts the texts that a screen reader would read out.
COUNT_ANNOUNCEMENTS = """
window.announced = [];
new MutationObserver((changes) => changes.forEach(({target}) => {
  const region = (target.nodeType === 3 ? target.parentElement : target)?.closest("[aria-live=polite], [aria-live=assertive], [role=status], [role=alert]");
  if (region) window.announced.push(region.id + ": " + region.textContent);
})).observe(document.body, {subtree: true, childList: true, characterData: true});
"""
ACTING = """
return [...document.querySelectorAll("#content button, dialog button")].filter((node) => node.offsetParent)
  .map((node) => node.textContent).filter((text) => /^(Hold|Release|Retry|Remove|Bounce|Pause|Resume|Redirect|End)/.test(text));
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

    def confirm(self, *texts, word=None):
        """Reads the question of the dialog, types what it wants, and agrees."""
        self.see("#confirm", *texts)
        if word is not None:
            self.browser.type("//input[@id='confirm-input']", word)
        self.browser.click("//button[@id='confirm-yes']")

    def act(self, place, row, verb):
        """Clicks a button in a row of a list."""
        self.browser.click(f"//div[@id='{place}']//tr[contains(., '{row}')]//button[.='{verb}']")

    def kill_next_hop(self, count=13):
        """Mail for a next hop that cannot be reached; returns its port and the first queue ID."""
        dead = free_port()
        self.add_routes(dead=dead)
        # A next hop counts as dead after a few failures.
        kept = [self.send(self.server, f"bob{number}@dead.test") for number in range(count)]
        return dead, kept[0]

    def test_mail_for_a_dead_next_hop_is_held_explained_and_released(self):
        dead, kept = self.kill_next_hop()
        self.sign_in(self.operator)
        self.see("#state", "Takes mail")
        self.see("#next-hop-list", str(dead), "unreachable", "refused", "13")
        self.see("#alerts", "cannot be reached", "13 recipients wait, the oldest for", "next attempt in", "Redirect")
        self.see("#destination-list", "dead.test", "unreachable", "refused")
        self.act("destination-list", "dead.test", "Hold")
        self.confirm("13 recipients", "until somebody releases")
        self.see("#notice", "Hold: 13 recipients")
        await_that(lambda: mail_events(self.server, "held"), "held mail", self.server)
        self.see("#destination-list", "Release")
        self.browser.click("//div[@id='destination-list']//button[.='dead.test']")
        self.see("#results", kept, "bob0@dead.test", "held")
        self.browser.click(f"//div[@id='results']//button[.='{kept}']")
        self.see("#message", "alice@bench.test", "refused", "What it waits for")
        self.see("#message", "let the server write its log to a file")
        self.browser.click("//dialog[@id='message']//button[.='Release']")
        self.confirm("1 recipient.")
        self.see("#notice", "Release: 1 recipient")
        await_that(lambda: mail_events(self.server, "released"), "released mail", self.server)

    def test_the_log_is_read_while_it_is_on_the_screen(self):
        self.sign_in(self.operator)
        self.see("#state", "Takes mail")
        self.browser.run("document.getElementById('log').scrollIntoView()")
        def seen():
            self.send(self.server, "bob@one.test")
            return "received" in self.browser.text("#log-lines")
        self.browser.await_that(seen, "a line of the log")

    def test_a_next_hop_is_paused_for_some_time_and_its_mail_redirected(self):
        other = self.host()
        self.defer_two()
        self.sign_in(self.operator)
        hop = str(self.hop.port)
        self.see("#next-hop-list", hop)
        self.see("#lanes", "well")
        self.see("#disks", "free space")
        self.act("next-hop-list", hop, "Pause")
        self.confirm("2 recipients wait there", word="2h")
        self.see("#next-hop-list", "paused until", "UTC", "Resume")
        self.see("#alerts", "paused until")
        self.act("next-hop-list", hop, "Resume")
        self.confirm("2 recipients")
        self.browser.await_that(lambda: "paused" not in self.browser.text("#next-hop-list"), "the end of the pause")
        self.act("next-hop-list", hop, "Redirect")
        self.confirm("2 recipients", word=f"[127.0.0.1]:{other.port}")
        self.await_messages(other, 2, self.server)
        self.see("#next-hop-list", "Redirected mail", str(other.port))
        self.act("next-hop-list", str(other.port), "End")
        self.confirm("goes there again")
        self.browser.await_that(lambda: "Redirected mail" not in self.browser.text("#next-hop-list"), "the end of the redirect")

    def test_removing_all_mail_needs_a_word(self):
        self.defer_two()
        self.sign_in(self.operator)
        self.see("#results", "bob@one.test")
        self.browser.click("//span[@id='search-acts']//button[.='Remove all']")
        self.confirm("whole queue", "2 recipients", "cannot be undone", word="remove")
        self.assertTrue(self.browser.run("return document.getElementById('confirm').open"))
        self.assertEqual(self.server.queued(), 2)
        self.browser.type("//input[@id='confirm-input']", " all")
        self.browser.click("//button[@id='confirm-yes']")
        self.see("#notice", "Remove: 2 recipients")
        await_that(lambda: self.server.queued() == 0, "an empty queue", self.server)

    def test_all_filters_find_and_addresses_are_explained(self):
        first = self.defer_two()
        self.sign_in(self.operator)
        self.see("#results", "bob@one.test", "carol@two.test")
        names = "return [...document.getElementById('search').elements].map((each) => each.name).filter(Boolean)"
        filters = {"id", "destination", "recipient", "sender", "state", "error", "queue", "older_than", "younger_than",
                   "larger_than", "smaller_than"}  # fmt: skip
        self.assertEqual(set(self.browser.run(names)), filters)
        self.browser.type("//input[@name='id']", first + "\ue007")
        self.browser.await_that(lambda: "carol@two.test" not in self.browser.text("#results"), "only one message")
        self.see("#results", "bob@one.test")
        self.browser.click("//button[.='Clear']")
        self.post("/api/v1/recipients/remove", {"filter": {"id": [first]}})
        await_that(lambda: self.server.queued() == 1, "a message less", self.server)
        self.browser.type("//input[@name='id']", first + "\ue007")
        self.see("#results", f"Show what happened to {first}")
        self.browser.click(f"//div[@id='results']//button[contains(., 'happened to {first}')]")
        self.see("#message", "not in the queue", "What happened")
        self.browser.click("//dialog[@id='message']//button[.='Close']")
        self.browser.type("//input[@name='address']", "bob@one.test\ue007")
        self.see("#explanation", "one.test", str(self.hop.port))

    def test_a_reader_sees_everything_and_no_button_that_acts(self):
        self.defer_two()
        self.sign_in("mailrace_000000000000_" + "x" * 43)
        self.see("#sign-in-error", "wrong")
        for token, may_act in ((self.reader, False), (self.operator, True), (self.reader, False)):
            self.sign_in(token)
            self.see("#destination-list", "one.test", "two.test")
            self.see("#results", "bob@one.test")
            self.browser.await_that(lambda: self.browser.text("#role"), "the role")
            self.assertEqual(bool(self.browser.run(ACTING)), may_act, self.browser.run(ACTING))
            self.browser.click("//button[@id='sign-out']")
            self.assertIn("mailrace token create", self.browser.text("#sign-in"))
            self.assertEqual(self.browser.run("return document.getElementById('results').textContent"), "")
        self.assertEqual(self.server.queued(), 2)

    def test_the_keyboard_alone_signs_in_pauses_and_cancels(self):
        self.defer_two()
        self.assertEqual(self.browser.run("return document.activeElement.id"), "token")
        self.browser.press(*self.operator, "Enter")
        self.see("#next-hop-list", str(self.hop.port))
        button = "document.querySelector('#next-hop-list button[aria-label^=Pause]')"
        self.browser.run(f"{button}.focus()")
        self.browser.press("Enter")
        self.see("#confirm", "2 recipients wait there")
        self.browser.press("Escape")
        self.browser.await_that(lambda: not self.browser.run("return document.getElementById('confirm').open"), "a closed dialog")
        self.browser.await_that(lambda: self.browser.run(f"return document.activeElement === {button}"), "the focus where it was")
        self.browser.press("Enter")
        self.see("#confirm", "2 recipients wait there")
        self.browser.press(*"30m", "Enter")
        self.see("#next-hop-list", "paused until")
        self.assertEqual(self.get("/api/v1/pauses")["pauses"][0]["target"], {"next_hop": f"smtp:127.0.0.1:{self.hop.port}"})

    def test_tab_goes_through_all_in_order_and_everything_has_a_name(self):
        self.defer_two()
        self.sign_in(self.operator)
        self.see("#results", "bob@one.test")
        self.browser.run("document.querySelector('.skip').focus({focusVisible: true})")
        names = []
        for _ in range(150):
            if names:
                self.browser.press("Tab")
            is_body, follows, name, outline = self.browser.run(FOCUSED)
            if is_body or (names and name == names[0]):
                break
            self.assertTrue(follows, (names[-2:], name))
            self.assertTrue(name, names[-2:])
            self.assertNotEqual(outline, "none", name)
            names.append(name)
        self.assertEqual(names[0], "Skip to the content")
        self.assertGreater(len(names), 25, names)
        tree = self.browser.accessible()
        for wanted in (("heading", "Next hops"), ("table", "Next hops"), ("navigation", "Sections"), ("search", "Search"),
                       ("region", "Machine"), ("textbox", "Message ID"), ("status", "")):  # fmt: skip
            self.assertTrue(any(role == wanted[0] and name.startswith(wanted[1]) for role, name in tree), wanted)
        nameless = [node for node in tree if node[0] in ("button", "link", "textbox", "combobox", "table", "dialog") and not node[1]]
        self.assertEqual(nameless, [])

    def test_only_what_begins_and_ends_is_announced(self):
        self.sign_in(self.operator)
        self.see("#state", "Takes mail")
        self.see("#alerts", "Nothing needs attention")
        self.see("#found", "0 recipients found")
        self.browser.run(COUNT_ANNOUNCEMENTS)
        self.kill_next_hop()
        self.see("#alerts", "cannot be reached")
        readings = set()
        def changes():
            readings.add(self.browser.text("#alerts"))
            return len(readings) >= 3
        self.browser.await_that(changes, "numbers that change")
        told = self.browser.run("return window.announced")
        self.assertEqual(len([text for text in told if "cannot be reached" in text]), 1, told)
        self.assertIn("announcer: Problem: smtp:127.0.0.1:", told[0])
        self.assertNotRegex(" ".join(told), r"\d+ recipients|attempt in")

    def test_hostile_names_are_text(self):
        self.send(self.server, "bob@one.test", sender='"<img/src=x>"@bench.test')
        self.sign_in(self.operator)
        self.see("#results", "<img/src=x>")
        self.assertEqual(self.browser.run("return document.images.length"), 0)

    def test_charts_show_values_by_pointer_and_keys(self):
        self.sign_in(self.operator)
        self.browser.await_that(lambda: self.samples() >= 2, "two samples")
        self.browser.run("document.querySelector('svg.chart').focus()")
        self.see("figcaption .when", "a point every")
        def reads_a_time():
            self.browser.press("Left")
            return "UTC" in self.browser.text("figcaption .when")
        self.browser.await_that(reads_a_time, "the time of a point")
        self.browser.press("Escape")
        self.see("figcaption .when", "a point every")
        dashes = "return ['s1', 's2', 's3', 's4'].map((each) => getComputedStyle(document.querySelector(`path.${each}`)).strokeDasharray)"
        self.assertEqual(len(set(self.browser.run(dashes))), 4)

    def samples(self):
        """How many samples the charts show."""
        return int(self.browser.run("return document.getElementById('charts').dataset.samples") or 0)

    def test_a_hidden_page_asks_nothing(self):
        self.sign_in(self.operator)
        self.see("#state", "Takes mail")
        self.browser.run("""
            Object.defineProperty(document, "hidden", {value: true, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
            performance.clearResourceTimings();
        """)
        self.send(self.server, "bob@one.test")
        self.browser.await_that(lambda: self.get("/api/v1/overview")["server"]["mail"]["destinations"], "mail")
        time.sleep(6)  # longer than a cycle
        asked = "return performance.getEntriesByType('resource').map((each) => each.name).filter((name) => name.includes('overview'))"
        self.assertEqual(self.browser.run(asked), [])
        self.browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        self.see("#destination-list", "one.test")

    def test_nothing_is_cut_off_in_any_width_and_theme(self):
        self.defer_two()
        self.kill_next_hop(30)
        self.add_routes(well=self.host().port, other=self.host().port)
        self.sign_in(self.operator)
        while self.samples() < 4:
            for domain in ("well", "well", "other", "dead"):
                self.send(self.server, f"bob@{domain}.test", sender="news@lists.example")
        self.see("#destination-list", "one.test", "dead.test")
        self.see("#next-hop-list", "unreachable")
        self.assertEqual(self.browser.run("return document.querySelectorAll('svg.chart').length"), 3)
        for width, height, theme in LOOKS:
            self.browser.look(width, height, theme)
            self.assertEqual(self.browser.run(OVERFLOW), [], (width, theme))
            ratio, text = self.browser.run(CONTRAST)
            self.assertGreaterEqual(ratio, 4.5, (theme, text))
            self.browser.run("document.activeElement.blur(); scrollTo(0, 0)")
            self.keep(f"dashboard-{width}-{theme}.png")
        self.browser.look(1400, 1100, "light")
        self.browser.click("//div[@id='destination-list']//button[.='dead.test']")
        self.see("#results", "dead.test")
        self.browser.click("//div[@id='results']//tbody//tr[1]//button")
        self.see("#message", "What it waits for")
        self.keep("dashboard-message-light.png")

    def keep(self, name):
        """Keeps a picture, if pictures are wanted."""
        if folder := os.environ.get("MAILRACE_SCREENSHOTS"):
            (pathlib.Path(folder) / name).write_bytes(self.browser.screenshot())


if __name__ == "__main__":
    unittest.main()
