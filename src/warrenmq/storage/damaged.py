"""Keeps damaged files in `lost+damaged`: nothing damaged is simply deleted."""

from __future__ import annotations

import logging
import os

from warrenmq.journal.files import Files

log = logging.getLogger("warrenmq.storage")

DAMAGED = "lost+damaged"
_PIECE = 1 << 20


def free_name(files: Files, root: str, path: str) -> str:
    """Return a free path in `lost+damaged`, named after the original path."""
    base = os.path.join(root, DAMAGED)
    if not files.exists(base):
        files.make_dirs(base)
        files.sync_dir(root)
    name = os.path.relpath(path, root).replace(os.sep, "-")
    target, number = os.path.join(base, name), 1
    while files.exists(target):
        number += 1
        target = os.path.join(base, f"{name}.{number}")
    return target


def move_aside(files: Files, root: str, path: str) -> str:
    """Move a damaged file or folder there; return its new path."""
    target = free_name(files, root, path)
    files.rename(path, target)
    return target


def copy_aside(files: Files, root: str, path: str) -> str:
    """Copy a damaged file there, while what is whole in it stays in use; return the copy's path."""
    target_path = free_name(files, root, path)
    source = files.open_read(path)
    try:
        target = files.create(target_path)
        try:
            offset = 0
            while piece := files.read(source, _PIECE, offset):
                files.write(target, piece, offset)
                offset += len(piece)
            files.sync(target)
        finally:
            files.close(target)
    finally:
        files.close(source)
    files.sync_dir(os.path.dirname(target_path))
    return target_path


def keep_copy(files: Files, root: str, path: str) -> None:
    """Copy a damaged file there if possible, and log it."""
    try:
        log.error("damaged file copied to %s", copy_aside(files, root, path))
    except OSError as error:
        log.error("%s could not be copied to lost+damaged: %s", path, error)
