"""A certificate for a test or a measurement: ECDSA on P-256, signed by itself."""

from . import machine


def certificate(folder):
    """A certificate chain and its key, for one run."""
    chain, key = folder / "chain.pem", folder / "key.pem"
    machine.run(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=bench.test", "-addext", "subjectAltName=DNS:bench.test", "-out", str(chain), "-keyout", str(key),
    )  # fmt: skip
    key.chmod(0o644)  # the server reads it after it has given up root; it is not a secret
    return chain, key
