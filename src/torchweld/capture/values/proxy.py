"""types.MappingProxyType of a dict that the frame has made."""

from __future__ import annotations

import types

from torchweld.capture.values.base import DictValue, InstanceValue


class ProxyValue(InstanceValue):
    """A view of a whole dict, which shows what becomes of it. payload: the dict."""

    __slots__ = ()

    def __init__(self, of: DictValue) -> None:
        super().__init__(types.MappingProxyType, payload=of)
