"""Whether Mailrace, with the configuration that `mailrace import` makes, treats mail as the original server does.

A set-up is a folder in `setups` with files of /etc/postfix in the style of a published guide, or in `exim_setups` with files
of /etc/exim4, and these:

    probes        mail that both servers get (probe.py)
    servers       optional: the servers around them, such as a next hop, a milter, or a login server (servers.py)
    differences   optional: differences that are known, and what the import tells about each (comparison.py)
    zone          optional: records of the name server
    accounts      optional, of Exim: the users of the machine, one in each line
    etc           optional, of Exim: files of /etc

Each set-up runs in namespaces of its own (`python3 -m equivalence` inside), so that both servers have the real
ports, clients have any address, and nothing leaves the machine. The original server and Mailrace run one after the other.
"""
