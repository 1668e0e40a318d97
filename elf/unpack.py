"""Compressed sections: zlib by Python, zstd by Python 3.14 or the system's libzstd.

gABI, "Section Compression": ELFCOMPRESS_ZLIB 1, ELFCOMPRESS_ZSTD 2. What is unpacked is as long as the header says, or
it is an error; nothing is unpacked beyond that.
"""

import zlib

METHODS = {1: "zlib", 2: "zstd"}


class UnpackError(Exception):
    """One sentence without the place."""


def unpack(method, data, size):
    """`size` bytes that `data` unpacks to."""
    if method not in METHODS:
        raise UnpackError("is compressed with method %d, which is not known" % method)
    result = _zlib(data, size) if method == 1 else _zstd(data, size)
    if len(result) != size:
        raise UnpackError("does not unpack to its %d bytes" % size)
    return result


def _zlib(data, size):
    try:
        return zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise UnpackError(str(error)) from None


def _zstd(data, size):
    from importlib import import_module
    try:
        zstd = import_module("compression.zstd")        # Python 3.14
    except ImportError:
        return _libzstd(data, size)
    try:
        return zstd.ZstdDecompressor().decompress(data, size + 1)
    except zstd.ZstdError as error:
        raise UnpackError(str(error)) from None


_library = None


def _libzstd(data, size):
    import ctypes
    global _library
    if _library is None:
        try:
            _library = ctypes.CDLL("libzstd.so.1")
            _library.ZSTD_decompress.restype = ctypes.c_size_t
            _library.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
        except (OSError, AttributeError):
            _library = False
    if not _library:
        raise UnpackError("is compressed with zstd, which needs Python 3.14 or the library libzstd.so.1")
    buffer = bytearray(size or 1)
    memory = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    got = _library.ZSTD_decompress(memory, size, bytes(data), len(data))
    del memory
    if _library.ZSTD_isError(ctypes.c_size_t(got)) or got > size:
        raise UnpackError("is no intact zstd data of %d bytes" % size)
    return bytes(buffer[:got])
