"""The programs that a measurement or a test talks to: Mailrace and its laboratory, other servers, and other loads.

Every peer keeps all that it writes in a folder it is given, listens on a loopback port of its own, and is ended by the
process ids it started, never by name. Nothing here needs more than the Python standard library.
"""
