"""Names in request paths, each percent-encoded: a slash within a name is %2F."""

from __future__ import annotations

import re
from urllib.parse import unquote

from fastapi import Request

from warrenmq.core.vhost import VHost
from warrenmq.management.auth import identity_of
from warrenmq.management.errors import NotFound
from warrenmq.management.view import NodeView

NUMBER = re.compile(r"[0-9]{1,18}")


def names_in_path(request: Request, most: int) -> list[str]:
    """Return the names after the resource, as in /api/policies/VHOST/NAME; the last ones may be missing."""
    _, _, rest = request.scope["raw_path"].decode("ascii", "replace").partition("/api/")
    names = [unquote(part, errors="surrogateescape") for part in rest.split("/")[1:]]
    if len(names) == 2 and not names[1]:
        names.pop()
    if not 1 <= len(names) <= most or not all(names):
        raise NotFound("Not Found")
    return names


def vhosts_of(node: NodeView, request: Request) -> list[VHost]:
    """Return the virtual hosts that the user may enter."""
    visible = node.visible_vhosts(identity_of(request).name)
    return [vhost for name, vhost in node.broker.vhosts.items() if visible is None or name in visible]


def vhost_of(node: NodeView, request: Request, name: str) -> VHost:
    """Return a virtual host; raise NotFound if there is none or the user may not enter it."""
    vhost = node.broker.vhosts.get(name)
    if vhost is None or not node.broker.users.may_enter(identity_of(request).name, name):
        raise NotFound("Not Found")
    return vhost
