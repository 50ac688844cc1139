"""A file that is there whole or not at all, as core/base/replace_file.h has it for C++.

    python3 tools/replace_file.py PATH < CONTENT        for shell scripts
"""
import contextlib
import os
import secrets
import sys


def temporary_beside(path):
    """Where the content goes first, and the file that it becomes. A link stays one; what is no file
    (a terminal, a pipe, /dev/null) is written to as it is."""
    if os.path.isdir(path):
        raise IsADirectoryError(21, os.strerror(21), path)
    if os.path.exists(path) and not os.path.isfile(path):
        return path, None
    target = os.path.realpath(path)
    # Other hosts and containers may have this process's number.
    return f"{target}.tmp{secrets.token_hex(8)}", target


def replace_file(path, content):
    """`content`: bytes. Throws OSError; then the old file stays."""
    temporary, target = temporary_beside(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        if target is not None:
            os.replace(temporary, target)
    except BaseException:
        if target is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise


def require_replaceable(path):
    """For whoever will replace the file after long work: throws OSError as replace_file() would."""
    temporary, target = temporary_beside(path)
    if target is not None:
        with open(temporary, "wb"):
            pass
        os.unlink(temporary)


if __name__ == "__main__":
    try:
        replace_file(sys.argv[1], sys.stdin.buffer.read())
    except OSError as error:
        sys.exit(f"can't write {sys.argv[1]}: {error.strerror}")
