"""Archives as no honest program writes them."""

from __future__ import annotations

import tarfile


def sparse_tar(name: str, size: int) -> bytes:
    """GNU's old format: one block of content, and `size` bytes that it stands for."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = 512, tarfile.GNUTYPE_SPARSE
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (size - 512, 512)
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + b"x" * 512 + bytes(1024)
