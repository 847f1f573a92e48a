"""ssh's ProxyCommand: connect to HOST PORT and hand the connection to ssh (ProxyUseFdpass). A script of its own."""

from __future__ import annotations

import socket
import sys

_PATIENCE_S = 5


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    try:
        connection = socket.create_connection((host, port), timeout=_PATIENCE_S)
    except OSError as error:
        sys.exit(f"{host} port {port}: {error.strerror or error}")
    connection.setblocking(True)
    with socket.socket(fileno=sys.stdout.fileno()) as ssh:
        socket.send_fds(ssh, [b"\0"], [connection.fileno()])
        ssh.detach()


if __name__ == "__main__":
    main()
