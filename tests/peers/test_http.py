"""`bench http` against nginx: the requested number of pages, complete, over the requested
connections.
"""

import unittest

from laboratory import FolderCase, bench
from peers.nginx import Nginx

PAGES = {"small": 100, "large": 300_000}
REQUESTS = 200


class Http(FolderCase):
    def setUp(self):
        super().setUp()
        self.nginx = Nginx(self.folder, PAGES)
        self.addCleanup(self.nginx.stop)
        self.nginx.start()
        self.targets = [word for page in PAGES for word in ("--target", self.url(page))]

    def url(self, page):
        """The URL of a page."""
        return f"http://127.0.0.1:{self.nginx.port}/{page}"

    def test_pages_are_fetched_in_turn_over_kept_connections(self):
        fetched = bench("http", *self.targets, "--connections", 4, "--requests", REQUESTS)
        self.assertEqual((fetched["done"], fetched["failed"], fetched["connections"]), (REQUESTS, 0, 4))
        self.assertEqual(fetched["octets"], REQUESTS // 2 * sum(PAGES.values()))

    def test_each_step_of_a_sweep_has_its_connections_and_its_errors(self):
        steps = bench("http", *self.targets, "--sweep", "1,5", "--requests", REQUESTS)["steps"]
        for step, connections in zip(steps, (1, 5), strict=True):
            summary = step["summary"]
            self.assertEqual((step["connections"], summary["connections"]), (connections, connections))
            self.assertEqual((step["error_share"], summary["done"]), (0, REQUESTS))

    def test_a_page_that_is_not_there_is_an_error(self):
        fetched = bench("http", "--target", self.url("none"), "--requests", 10, code=1)
        self.assertEqual((fetched["done"], fetched["failed"]), (0, 10))
        self.assertEqual([text for text in fetched["errors"] if "404" in text], list(fetched["errors"]))


if __name__ == "__main__":
    unittest.main()
