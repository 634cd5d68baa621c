"""Chromium shows pages that this server sends: with their script and style, in clear text, over TLS and
after a login.
"""

import pathlib
import shutil
import subprocess
import unittest

from harness import Mailrace, folder
from peers.certificate import certificate
from peers.dovecot import PASSWORD
from peers.mailrace import LOGINS, listener

SECONDS_MAX = 120
PAGE = """\
<!DOCTYPE html>
<link rel="stylesheet" href="style.css">
<script src="sub/script.js" defer></script>
<img src="image.svg">
<p id="told">nothing</p>
"""
# It says what arrived: a style or a script with another type would be ignored (nosniff).
SCRIPT = """\
window.onload = async () => {
  const told = document.getElementById("told"), image = document.querySelector("img");
  const data = await (await fetch("data.json")).json();
  const part = await fetch("text.txt", {headers: {Range: "bytes=2-4"}});
  const style = getComputedStyle(told).color;
  told.textContent = [style, image.naturalWidth, data.answer, part.status, await part.text()].join("|");
};
"""
FILES = {
    "index.html": PAGE,
    "style.css": "#told { color: rgb(1, 2, 3) }\n",
    "sub/script.js": SCRIPT,
    "image.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="17" height="5"></svg>\n',
    "data.json": '{"answer": 42}\n',
    "text.txt": "0123456789",
}
TOLD = "rgb(1, 2, 3)|17|42|206|234"


@unittest.skipUnless(shutil.which("chromium"), "chromium is not installed")
class Browsers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = folder()
        cls.addClassCleanup(made.cleanup)
        cls.place = pathlib.Path(made.name)
        files = cls.place / "www"
        (files / "sub").mkdir(parents=True)
        for name, text in FILES.items():
            (files / name).write_text(text)
        chain, key = certificate(cls.place)
        ways = ('tls = "none"', 'tls = "implicit"', "auth = true")
        listeners = "".join(listener("http", f'files = "{files}"', way) for way in ways)
        extra = listeners + LOGINS + f'\n[[certificate]]\nchain = "{chain}"\nkey = "{key}"\n'
        cls.server = Mailrace(cls.place, users=["alice"], extra=extra)
        cls.addClassCleanup(cls.server.stop)
        cls.server.start()
        cls.clear, cls.secure, cls.private = cls.server.all_ports["http"]

    def dump(self, url):
        """The page as Chromium has it when its script has run."""
        # As root it has no sandbox; the page is ours.
        argv = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
            "--ignore-certificate-errors", f"--user-data-dir={self.place}/profile", "--virtual-time-budget=10000",
            "--dump-dom", url,
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=self.place)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_page_is_shown_with_all_that_belongs_to_it(self):
        for url in (f"http://127.0.0.1:{self.clear}/", f"https://127.0.0.1:{self.secure}/index.html"):
            self.assertIn(f">{TOLD}<", self.dump(url))

    def test_a_user_logs_in(self):
        page = self.dump(f"http://alice:{PASSWORD}@127.0.0.1:{self.private}/style.css")
        self.assertIn("color: rgb(1, 2, 3)", page)
        self.assertNotIn("rgb", self.dump(f"http://alice:wrong@127.0.0.1:{self.private}/style.css"))


if __name__ == "__main__":
    unittest.main()
