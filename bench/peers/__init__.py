"""The programs that measurements and tests use: Mailrace and its bench commands, other servers,
other loads.

Every peer keeps all of its files in a given folder, listens on a loopback port of its own, and is
ended by the process ids that it started, never by name. Only the Python standard library is needed.
"""
