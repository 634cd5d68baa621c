"""Chromium, driven by chromedriver as a person would drive it (W3C WebDriver)."""

import base64
import http.client
import json
import subprocess
import time

from peers.smtp import free_port

SECONDS_MAX = 60
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
# W3C WebDriver, section 17.4.2.
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Shift": "\ue008", "Escape": "\ue00c", "End": "\ue010", "Home": "\ue011",
        "Left": "\ue012", "Right": "\ue014"}  # fmt: skip


class Browser:
    """A window with a profile of its own below `folder`."""

    def __init__(self, folder):
        self.port = free_port()
        self.process = subprocess.Popen(
            ["chromedriver", f"--port={self.port}"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.session = None
        # As root it has no sandbox; the page is ours.
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
                     f"--user-data-dir={folder}/profile"]  # fmt: skip
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}}
        self.await_that(self._is_ready, "chromedriver")
        self.session = self._ask("POST", "/session", {"capabilities": wanted})["sessionId"]

    def _is_ready(self):
        try:
            return self._ask("GET", "/status")["ready"]
        except ConnectionError:
            return False

    def close(self):
        """Closes the window and the driver."""
        try:
            if self.session:
                self._ask("DELETE", f"/session/{self.session}")
        finally:
            self.process.terminate()
            self.process.wait(SECONDS_MAX)

    def _ask(self, method, path, content=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS_MAX)
        try:
            body = None if content is None else json.dumps(content)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{method} {path}: {answer['error']}: {answer['message'][:400]}")
        return answer

    def _order(self, order, content=None):
        return self._ask("POST", f"/session/{self.session}/{order}", content or {})

    def open(self, url):
        """Goes to a page."""
        self._order("url", {"url": url})

    def run(self, script, *arguments):
        """What a script returns."""
        return self._order("execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        """The visible text of an element; empty if there is none."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def _element(self, xpath):
        return self._order("element", {"using": "xpath", "value": xpath})[ELEMENT]

    def click(self, xpath):
        """Clicks what a person could click, as soon as it is shown."""
        self.await_that(lambda: self._is_clicked(xpath), xpath)

    def _is_clicked(self, xpath):
        try:
            reference = self._element(xpath)
            # A person scrolls it out from under the header.
            self.run("arguments[0].scrollIntoView({block: 'center'})", {ELEMENT: reference})
            if not self._ask("GET", f"/session/{self.session}/element/{reference}/displayed"):
                return False
            self._order(f"element/{reference}/click")
        except AssertionError as error:
            if "stale element" in str(error) or "no such element" in str(error):
                return False  # the page is drawing it anew
            raise
        return True

    def type(self, xpath, text):
        """Types into a field."""
        self._order(f"element/{self._element(xpath)}/value", {"text": text})

    def press(self, *keys):
        """Presses keys one after the other, wherever the focus is. `Shift+KEY` holds the shift key."""
        for key in keys:
            held, _, name = key.rpartition("+")
            value = KEYS.get(name, name)
            actions = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
            if held:
                shift = KEYS[held]
                actions = [{"type": "keyDown", "value": shift}, *actions, {"type": "keyUp", "value": shift}]
            self._order("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def accessible(self):
        """The accessibility tree: role and name of each node that a screen reader sees."""
        nodes = self._command("Accessibility.getFullAXTree")["nodes"]
        seen = [node for node in nodes if not node["ignored"]]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in seen if "role" in node]

    def look(self, width, height, theme, media=""):
        """The size of the window, whether its owner prefers light or dark pages, and maybe another medium than a screen."""
        self._command("Emulation.setDeviceMetricsOverride",
                      width=width, height=height, deviceScaleFactor=1, mobile=False)  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._command("Emulation.setEmulatedMedia", media=media, features=features)

    def print(self):
        """The page as PDF, as a person would print it."""
        return base64.b64decode(self._command("Page.printToPDF", printBackground=True)["data"])

    def _command(self, name, **parameters):
        return self._order("goog/cdp/execute", {"cmd": name, "params": parameters})

    def screenshot(self):
        """The window as PNG."""
        return base64.b64decode(self._ask("GET", f"/session/{self.session}/screenshot"))

    def await_that(self, condition, what):
        """Waits until something can be seen."""
        end = time.monotonic() + SECONDS_MAX
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not seen: {what}")
            time.sleep(0.05)
