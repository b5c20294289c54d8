"""The HTTP API of a running broker, for the commands."""

from warrenmq.client.http import CREATED, BrokerHttp, RequestFailed

__all__ = ["CREATED", "BrokerHttp", "RequestFailed"]
