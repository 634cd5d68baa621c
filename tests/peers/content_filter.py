"""A small content filter, as amavis is one: takes mail by SMTP, marks it, and sends it back."""

import re
import smtplib

from hosts import EXTENSIONS, Host

MARK = b"X-Filtered: yes\r\n"


class ContentFilter:
    """Sends mail back to the port in `back_to`. A message with "DROP" is dropped, and one with "REFUSE" is
    refused.
    """

    def __init__(self):
        self.back_to = None
        self.host = Host(script={"message": self._judge}, extensions=[*EXTENSIONS, "XFORWARD NAME ADDR HELO IDENT SOURCE"])

    @property
    def target(self):
        """The next hop."""
        return f"[127.0.0.1]:{self.host.port}"

    @property
    def messages(self):
        """What it was sent."""
        return self.host.messages

    def stop(self):
        """Stops listening."""
        self.host.stop()

    def _judge(self, session, _argument):
        message = session.host.messages[-1]
        if b"REFUSE" in message.content:
            return "554 5.7.1 virus found"
        if b"DROP" not in message.content:
            sender = re.match(r"FROM:<([^>]*)>", message.sender)[1]
            recipients = [re.match(r"TO:<([^>]*)>", one)[1] for one in message.recipients]
            with smtplib.SMTP("127.0.0.1", self.back_to, timeout=30) as back:
                back.sendmail(sender, recipients, MARK + message.content)
        return None
