"""Opens connections to servers, encrypted ones too, and leaves nothing open when that fails."""

from __future__ import annotations

import socket
import ssl


def connect(
    address: tuple[str, int],
    hostname: str,
    timeout: float,
    *,
    use_ssl: bool = False,
    ca: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    keyfile_password: str | None = None,
    verify_certs: bool = True,
    check_hostname: bool = True,
) -> socket.socket:
    """Return a connection, as kazoo's handlers do; OSError if there is none in ``timeout`` seconds.

    ``ca`` takes the place of the system's authorities.
    """
    connection = socket.create_connection(address, timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not use_ssl:
            return connection
        context = ssl.create_default_context(cafile=ca)
        context.check_hostname = check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if verify_certs else ssl.CERT_NONE
        if certfile is not None:
            context.load_cert_chain(certfile, keyfile, keyfile_password)
        return context.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise
