"""Looks at a standard server as any gRPC client may: no generated code, everything by reflection.

Usage: client.py ADDRESS
"""

import random
import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

START_TIMEOUT_S = 60
CALL_TIMEOUT_S = 10

# The messages of reflection v1 and v1alpha are the same; the Python package brings v1alpha's only.
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


class Reflection:
    """Descriptors of a server, asked for one by one."""

    def __init__(self, channel):
        self.call = channel.stream_stream(
            REFLECTION,
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        self.pool = descriptor_pool.DescriptorPool()
        self.known = set()

    def ask(self, **request):
        requests = iter([reflection_pb2.ServerReflectionRequest(**request)])
        (answer,) = self.call(requests, timeout=CALL_TIMEOUT_S)
        if answer.HasField("error_response"):
            sys.exit(f"reflection refused {request}: {answer.error_response.error_message}")
        return answer

    def services(self):
        return [service.name for service in self.ask(list_services="").list_services_response.service]

    def add(self, answer):
        """Adds a file to the pool after the files that it imports."""
        for encoded in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(encoded)
            if file.name in self.known:
                continue
            self.known.add(file.name)
            for name in file.dependency:
                if name not in self.known:
                    self.add(self.ask(file_by_filename=name))
            self.pool.Add(file)

    def service(self, name):
        self.add(self.ask(file_containing_symbol=name))
        return self.pool.FindServiceByName(name)


def main():
    (address,) = sys.argv[1:]
    channel = grpc.insecure_channel(address)
    grpc.channel_ready_future(channel).result(timeout=START_TIMEOUT_S)

    reflection = Reflection(channel)
    services = reflection.services()
    print("services:", ", ".join(sorted(services)))
    for expected in ("dchost.v1.Cluster", "dchost.v1.Variables", "grpc.health.v1.Health"):
        if expected not in services:
            sys.exit(f"the server does not list {expected}")

    health = health_pb2_grpc.HealthStub(channel)
    status = health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S, wait_for_ready=True).status
    print("health:", health_pb2.HealthCheckResponse.ServingStatus.Name(status))
    if status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit("the server is not healthy")

    method = reflection.service("dchost.v1.Cluster").methods_by_name["GetStatus"]
    request_class = message_factory.GetMessageClass(method.input_type)
    response_class = message_factory.GetMessageClass(method.output_type)
    get_status = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=request_class.SerializeToString,
        response_deserializer=response_class.FromString,
    )
    # A tool is a caller without a task; its id is random, as that of every run.
    caller = {"runId": str(random.getrandbits(64))}
    header = {"protocol": 1, "container": "default", "caller": caller}
    request = json_format.ParseDict({"header": header}, request_class())
    response = get_status(request, timeout=CALL_TIMEOUT_S)
    print("status:", json_format.MessageToJson(response))
    if response.header.incarnation == 0:
        sys.exit("the answer carries no incarnation")


if __name__ == "__main__":
    main()
