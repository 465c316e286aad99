"""What went wrong with a connection, in words."""

from __future__ import annotations

import errno
import ssl

from twofold.bench.client.response import ProtocolError
from twofold.bench.client.target import ServerTarget
from twofold.core.errors import NetworkError

REASONS = {
    errno.ECONNREFUSED: "refused the connection",
    errno.ECONNRESET: "reset the connection",
    errno.EPIPE: "closed the connection while the request was sent",
    errno.ETIMEDOUT: "did not answer in time",
    errno.EHOSTUNREACH: "cannot be reached",
    errno.ENETUNREACH: "cannot be reached: there is no network to it",
    errno.EADDRNOTAVAIL: "could not be asked: all local ports are in use",
    errno.EMFILE: "could not be asked: this process may not open more files",
    errno.ENFILE: "could not be asked: this machine has no more files to open",
}

HINTS = {
    errno.ECONNREFUSED: "Is it running, and on this port?",
    errno.EADDRNOTAVAIL: "Let connections be used again, or lower the rate.",
    errno.EMFILE: "Raise the limit with `ulimit -n`, or lower --concurrency.",
}

NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
"""What OpenSSL calls bytes that are no TLS."""


def sentence(error: Exception, target: ServerTarget) -> str:
    """One sentence about why a connection to ``target`` failed."""
    if isinstance(error, ProtocolError):
        return str(error)
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return f"The answer is not what its dialect says: {error}"
    return f"The server at {target} {_reason(error)}."


def network_error(error: Exception, target: ServerTarget) -> NetworkError:
    """The error of a probe that failed so, with the way out."""
    return NetworkError(sentence(error, target), hint=_hint(error))


def _reason(error: Exception) -> str:
    match error:
        case ssl.SSLError():
            return _tls_reason(error)
        case TimeoutError():
            return REASONS[errno.ETIMEDOUT]
        case EOFError():
            return "closed the connection before it answered"
        case OSError() if error.errno in REASONS:
            return REASONS[error.errno]
        case _:
            return f"cannot be asked ({error})"


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not accepted: {error.verify_message.rstrip('.')}"
    if error.reason in NO_TLS:
        return "does not speak TLS on this port"
    return f"and this client found no way to speak TLS ({(error.reason or 'no reason given').lower()})"


def _hint(error: Exception) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "Name the certificate to trust with --ca-file; --insecure goes on without a check."
    if isinstance(error, ssl.SSLError):
        return "If it has no certificate, its URL begins with http://."
    if isinstance(error, ProtocolError):
        return "Is this the port of an HTTP server? One that speaks TLS has a URL that begins with https://."
    if isinstance(error, OSError) and error.errno in HINTS:
        return HINTS[error.errno]
    return "Check the URL, and that the server is running."
