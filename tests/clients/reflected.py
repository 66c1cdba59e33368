"""A gRPC client built from server reflection alone."""

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2

DEADLINE = 20.0


def _reflect(channel, protocol, **request):
    """One reflection request; both protocol versions have the same messages."""
    call = channel.stream_stream(
        f"/grpc.reflection.{protocol}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return next(iter(call(iter([reflection_pb2.ServerReflectionRequest(**request)]), timeout=DEADLINE)))


class Reflected:
    """The services of a server, by name, as callables."""

    def __init__(self, address, protocol="v1"):
        self.channel = grpc.insecure_channel(address)
        self.protocol = protocol
        response = _reflect(self.channel, protocol, list_services="")
        self.services = sorted(s.name for s in response.list_services_response.service)
        files = {}
        for service in self.services:
            self._fetch(files, file_containing_symbol=service)
        self.pool = descriptor_pool.DescriptorPool()
        added = set()
        for name in list(files):
            self._add(files, name, added)
        #: Called methods, for coverage.
        self.called = set()

    def _fetch(self, files, **request):
        response = _reflect(self.channel, self.protocol, **request)
        assert not response.HasField("error_response"), response.error_response
        for encoded in response.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(encoded)
            if file.name not in files:
                files[file.name] = file
                for dependency in file.dependency:
                    self._fetch(files, file_by_filename=dependency)

    def _add(self, files, name, added):
        if name in added:
            return
        added.add(name)
        for dependency in files[name].dependency:
            self._add(files, dependency, added)
        self.pool.Add(files[name])

    def message(self, name, **fields):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))(**fields)

    def methods(self):
        """Every method of every service, as `service/method`."""
        return {
            f"{service}/{method.name}"
            for service in self.services
            for method in self.pool.FindServiceByName(service).methods
        }

    def call(self, service, method, /, *requests, metadata=None, timeout=DEADLINE, **fields):
        """Calls a method; returns a message or an iterator."""
        found = self.pool.FindServiceByName(service).FindMethodByName(method)
        self.called.add(f"{service}/{method}")
        request_class = message_factory.GetMessageClass(found.input_type)
        many_in, many_out = found.client_streaming, found.server_streaming
        kind = {(False, False): "unary_unary", (False, True): "unary_stream"}
        kind |= {(True, False): "stream_unary", (True, True): "stream_stream"}
        stub = getattr(self.channel, kind[many_in, many_out])(
            f"/{service}/{method}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
        )
        request = iter(requests) if many_in else request_class(**fields)
        return stub(request, timeout=timeout, metadata=metadata)

    def close(self):
        self.channel.close()
