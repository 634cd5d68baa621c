//! Where mail goes: from a recipient's domain to the transport, the next hop and the set of its hosts.
