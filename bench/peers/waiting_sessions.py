"""Sessions that have sent a message and wait for its reply. All of them are sockets of this process."""

import select
import smtplib

from .smtp import RECIPIENT, SENDER

_REPLY_SECONDS_MAX = 30.0
_LINE = b"x" * 78 + b"\r\n"


class WaitingSessions:
    """A context in which `count` sessions wait, each with a message of about `octets`."""

    def __init__(self, port, count, octets):
        self._port, self._count = port, count
        self._message = b"Subject: waiting\r\n\r\n" + _LINE * (octets // len(_LINE)) + b".\r\n"
        self._clients = []

    def __enter__(self):
        try:
            for _ in range(self._count):
                self._clients.append(self._send())
        except (OSError, smtplib.SMTPException):
            self._close()
            raise
        return self

    def __exit__(self, *_):
        self._close()

    def check(self):
        """Fails if one of them has got a reply, or was disconnected."""
        poll = select.poll()
        for client in self._clients:
            poll.register(client.sock, select.POLLIN)
        if ready := poll.poll(0):
            raise RuntimeError(f"{len(ready)} of {self._count} sessions wait no more")

    def _send(self):
        client = smtplib.SMTP("127.0.0.1", self._port, "client.test", timeout=_REPLY_SECONDS_MAX)
        client.ehlo()
        replies = [client.mail(SENDER), client.rcpt(RECIPIENT), client.docmd("DATA")]
        if [code for code, _ in replies] != [250, 250, 354]:
            raise RuntimeError(f"a session that is to wait got {replies}")
        client.send(self._message)
        return client

    def _close(self):
        for client in self._clients:
            client.close()
