"""A private Postfix that checks who sent its mail: OpenDKIM, OpenDMARC, and the policy daemon for SPF in Python.

    SPF      smtpd asks a policy daemon, one process for each session, and adds its Authentication-Results
    DKIM     OpenDKIM verifies the signatures and adds its own
    DMARC    OpenDMARC reads both and adds the last

All of them observe, as Mailrace does by default. For SPF and DMARC a private name server is asked: since these can only
ask port 53 of what /etc/resolv.conf names, they have a file of their own there, in a mount namespace. OpenDKIM has the
keys in a file, so it needs no answer.
"""

import re
import shutil

from . import opendkim, unbound
from .milter import Milter, MilterPostfix

_HOST = "bench.test"  # in whose name the results are
# The mail of the ignored hosts is not checked, and by default this machine is one.
_OPENDMARC = f"""\
Background false
Syslog false
AuthservID {_HOST}
TrustedAuthservIDs {_HOST}
IgnoreHosts {{ignored}}
RejectFailures false
"""
_POLICY_DAEMON = f"""\
debugLevel = -1
HELO_reject = No_Check
Mail_From_reject = False
skip_addresses = 192.0.2.1/32
Header_Type = AR
Authserv_Id = {_HOST}
"""
_POLICY_LINES = (
    "smtpd_recipient_restrictions = check_policy_service unix:private/policyd-spf",
    "policyd-spf_time_limit = 3600",
)


def are_installed():
    """Whether all of them are installed."""
    return all(map(shutil.which, ("opendkim", "opendmarc", "policyd-spf")))


class FilteringPostfix(MilterPostfix):
    """A tuned Postfix that queues all mail after the filters have seen it. The CPU of all counts, but not that of the
    name server, which is started and ended with them.
    """

    def __init__(self, folder, names, keys):
        self._names = names
        files = {name: folder / name for name in ("ignored", "policyd-spf.conf", "resolv.conf")}
        files["ignored"].write_text("192.0.2.1\n")
        files["policyd-spf.conf"].write_text(_POLICY_DAEMON)
        files["resolv.conf"].write_text(f"nameserver {unbound.STANDARD_ADDRESS}\n")
        opendmarc = Milter("opendmarc", ("-f", "-c"), _OPENDMARC.format(ignored=files["ignored"]))
        # 0: as many processes as there are sessions.
        service = f"policyd-spf unix - n n - 0 spawn user=nobody argv=/usr/bin/policyd-spf {files['policyd-spf.conf']}"
        super().__init__(folder, [opendkim.verifier(folder, _HOST, keys), opendmarc], _POLICY_LINES, [service],
                         {"/etc/resolv.conf": files["resolv.conf"]})  # fmt: skip

    def start(self):
        """Starts the name server first."""
        self._names.start()
        super().start()

    def stop(self):
        """Ends all, in any state."""
        super().stop()
        self._names.stop()

    def configuration(self):
        """The configurations of all, for a report."""
        return f"{super().configuration()}# policyd-spf.conf\n{_POLICY_DAEMON}"

    def passed(self, methods):
        """How many messages have passed each of these methods, by the results in their header."""
        passes = [set(re.findall(r"\b(\w+)=pass\b", header)) for header in self.headers()]
        return {method: sum(method in found for found in passes) for method in methods}
