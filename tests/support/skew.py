"""A peer of another release, simulated: a real gRPC server between a client and a daemon of this tree.

There is no earlier release yet. An *older* peer is made of this tree's own protocol with parts of it taken out: what
it doesn't know it drops, in both directions, and calls that it doesn't have are UNIMPLEMENTED. A *newer* one adds a
field that nobody here knows to every message that passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from coldstart.rpc.v1 import cache_pb2

SERVICE = cache_pb2.DESCRIPTOR.services_by_name["Cache"]
PACKAGE = cache_pb2.DESCRIPTOR.package
Change = Callable[[str, bytes], bytes]  # a message's name, its bytes -> the bytes that are sent on


def same(name: str, data: bytes) -> bytes:
    return data


def newer(name: str, data: bytes) -> bytes:
    """Field 5000, a text, behind whatever there is."""
    return data + b"\xc2\xb8\x02\x05later"


def older(without: Mapping[str, Collection[str]]) -> Change:
    """Messages lose the named fields, and all that is in them."""
    file = descriptor_pb2.FileDescriptorProto()
    cache_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = "older.proto"
    missed = {(name, field) for name, fields in without.items() for field in fields}
    for message in file.message_type:
        for field in [f for f in message.field if (message.name, f.name) in missed]:
            message.field.remove(field)
            missed.discard((message.name, field.name))
    assert not missed, f"not in the protocol: {missed}"
    pool = descriptor_pool.DescriptorPool()
    for dependency in cache_pb2.DESCRIPTOR.dependencies:
        pool.AddSerializedFile(dependency.serialized_pb)
    pool.Add(file)
    known: dict[str, Any] = {}

    def change(name: str, data: bytes) -> bytes:
        if name not in known:
            found = pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
            known[name] = message_factory.GetMessageClass(found)
        message = known[name].FromString(data)
        message.DiscardUnknownFields()
        return bytes(message.SerializeToString())

    return change


class Between(grpc.GenericRpcHandler):
    """Hands every call on, changed on the way there and back."""

    def __init__(
        self, channel: grpc.Channel, request: Change, reply: Change, missing: Collection[str]
    ) -> None:
        assert set(missing) <= set(SERVICE.methods_by_name)
        self._channel, self._request, self._reply = channel, request, reply
        self._missing = missing
        self.called: list[str] = []

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        if name in self._missing or name not in SERVICE.methods_by_name:
            return None  # UNIMPLEMENTED
        method = SERVICE.methods_by_name[name]
        asked, answered = method.input_type.name, method.output_type.name

        def there(data: bytes) -> bytes:
            return self._request(asked, data)

        def back(data: bytes) -> bytes:
            return self._reply(answered, data)

        def call(request: Any, context: Any) -> Any:
            self.called.append(name)
            kind = "stream" if name == "Publish" else "unary"
            answer = "stream" if name == "Fetch" else "unary"
            on = getattr(self._channel, f"{kind}_{answer}")(details.method)
            try:
                if kind == "stream":
                    return back(on(map(there, request), timeout=60))
                if answer == "stream":
                    return map(back, on(there(request), timeout=60))
                return back(on(there(request), timeout=60))
            except grpc.RpcError as exc:
                context.abort(exc.code(), exc.details())

        if name == "Publish":
            return grpc.stream_unary_rpc_method_handler(call)
        if name == "Fetch":
            return grpc.unary_stream_rpc_method_handler(call)
        return grpc.unary_unary_rpc_method_handler(call)


@contextmanager
def between(
    address: str,
    folder: Path,
    *,
    request: Change = same,
    reply: Change = same,
    missing: Collection[str] = (),
) -> Iterator[tuple[str, Between]]:
    """A peer in front of the daemon at `address`; its own address, and what it was asked."""
    with grpc.insecure_channel(address.replace("unix://", "unix:")) as channel:
        handler = Between(channel, request, reply, missing)
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{folder}/skew.sock")
        server.start()
        try:
            yield f"unix://{folder}/skew.sock", handler
        finally:
            server.stop(None).wait(10)
