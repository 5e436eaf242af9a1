"""Network addresses of the servers of this package."""

from __future__ import annotations

import ipaddress
import socket

from metastable.errors import BadInput


def bound(host: str, port: int) -> socket.socket:
    """A socket that has bound the port but does not listen yet; 0 is any free port. BadInput if it cannot be bound."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host") from error
    return found


def url(host: str, port: int) -> str:
    """
    >>> url("::1", 8050)
    'http://[::1]:8050/'
    """
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def answers_to(name: str, host: str) -> bool:
    """Whether a server on `host` answers a request with this Host header.

    Another site can let its name point to this machine, but its pages still send that name. The port is not compared,
    because a tunnel may end at another port.

    >>> answers_to("127.0.0.1:8050", "127.0.0.1"), answers_to("evil.example:8050", "127.0.0.1")
    (True, False)
    """
    bare = name.rsplit("]", 1)[0].lstrip("[") if name.startswith("[") else name.rsplit(":", 1)[0]
    if bare == host or is_loopback(bare):
        return True
    return not is_loopback(host) and (_address(bare) is not None or bare in (socket.gethostname(), socket.getfqdn()))


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
